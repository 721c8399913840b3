"""Rows about what must survive or vanish: killed servers, clients that leave, twenty minutes of everything."""

import asyncio
import json
import random
import shutil
import time

from soak_common import Row, Watch, memory_row  # finds load.py and serving.py too

from load import Left, ask, percentile, streamed
from serving import wait_until

WORDS = "the cache keeps newest tokens exact and one representative for each older group of them".split()


def turn(pick, words):
    return {"role": "user", "content": " ".join(pick.choices(WORDS, k=words))}


class Talk:
    """A conversation in a session of the server that is killed, and the same on one that is not."""

    def __init__(self, number, rests):
        self.name, self.pick, self.messages = f"talk{number}", random.Random(number), []
        self.rests = rests  # between two requests; else one is always on its way
        self.behind = []  # requests that were completed, and what was said; not yet repeated on the other server
        self.cut = False  # a request ran when the server was killed

    def body(self, words, tokens, **fields):
        self.messages.append(turn(self.pick, words))
        return {"messages": list(self.messages), "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                "metadata": {"session": self.name}, **fields}

    def completed(self, body, text):
        self.behind.append((body, text))
        self.messages.append({"role": "assistant", "content": text})

    @property
    def length(self):
        return sum(len(message["content"]) for message in self.messages)


def first_logprobs(reply):
    if "choices" not in reply:
        raise RuntimeError(f"not answered: {reply}")
    entry = reply["choices"][0]["logprobs"]["content"][0]
    return [(top["bytes"], top["logprob"]) for top in entry["top_logprobs"]]


def kills(soak, wanted=100, talks=6):
    row = Row("kills", "kill −9 at 100 random moments under load with `--sessions`",
              "every session whose reply was completed resumes with its tokens, first-token logits equal")
    if soak.minutes is not None and 10 * soak.minutes < wanted:
        wanted = max(5, int(10 * soak.minutes))
        row.shortened = f"{wanted} of 100 kills"
    pick = random.Random(4)
    folder, twin_folder = soak.folder / "kill-sessions", soak.folder / "kill-twin"
    for one in (folder, twin_folder):
        shutil.rmtree(one, ignore_errors=True)
    model = soak.checkpoint("long")  # a talk may grow by thousands of tokens before the next kill
    flags = ["--precision", "f32", "--threads", "1", "--sessions"]
    server = soak.serving(model, *flags, folder, log="kills").start()
    twin = soak.serving(model, *flags, twin_folder, log="twin").start()
    counts = {"resumed": 0, "cut": 0, "ahead": 0, "tokens": 0, "logits": 0, "texts": 0, "lost": 0, "read again": 0}
    state = [Talk(at, at % 2 == 1) for at in range(talks)]  # a kill meets sessions of both kinds
    made = talks

    async def load(until):
        async def one(talk):
            while time.monotonic() < until:
                reply = talk.pick.choice([3, 12, 40] if talk.rests else [12, 120, 480])
                body = talk.body(talk.pick.choice([2, 20, 60]), reply, stream=True)
                asked = await ask(server.port, "/v1/chat/completions", body)
                if not asked.complete:
                    talk.messages.pop()  # for the client the turn never was; the file may have it
                    talk.cut = True
                    return
                talk.completed(body, asked.text)
                if talk.rests:
                    await asyncio.sleep(talk.pick.uniform(0, 0.3))

        tasks = [asyncio.create_task(one(talk)) for talk in state]
        await asyncio.sleep(max(0, until - time.monotonic()))
        server.kill()
        await asyncio.gather(*tasks)

    def repeat(talk):
        """What was completed, again on the server that is not killed."""
        for body, text in talk.behind:
            reply = twin.post("/v1/chat/completions", {**body, "stream": False}).json()
            counts["texts"] += reply["choices"][0]["message"]["content"] != text
        talk.behind = []

    def check(talk, kept):
        """One turn on both servers. A reply may be on disk though the kill came before its last event was sent; its
        session is ahead of its client then, and only what the client has must be there."""
        other = {one["name"]: one["tokens"] for one in twin.get("/v1/sessions").json()["data"]}[talk.name]
        tokens = kept.get(talk.name, 0)
        ahead = talk.cut and tokens > other
        counts["cut"] += talk.cut
        counts["ahead"] += ahead
        counts["lost"] += talk.name not in kept
        counts["tokens"] += tokens != other and not ahead
        body = talk.body(3, 4, logprobs=True, top_logprobs=5)
        resumed, right = (one.post("/v1/chat/completions", body).json() for one in (server, twin))
        counts["resumed"] += 1
        if not ahead:
            counts["logits"] += first_logprobs(resumed) != first_logprobs(right)
            counts["read again"] += resumed["usage"] != right["usage"]
            if first_logprobs(resumed) != first_logprobs(right) or resumed["usage"] != right["usage"]:
                soak.say(f"kills: {talk.name}, {tokens} tokens, cut {talk.cut}: {resumed['usage']} and "
                         f"{first_logprobs(resumed)[:2]}, without kill {right['usage']} and {first_logprobs(right)[:2]}")
        talk.messages.append({"role": "assistant", "content": resumed["choices"][0]["message"]["content"]})

    try:
        for kill in range(wanted):
            asyncio.run(load(time.monotonic() + pick.uniform(0.05, 1.5)))
            server.start()
            kept = {one["name"]: one["tokens"] for one in server.get("/v1/sessions").json()["data"]}
            for talk in state:
                if talk.messages:
                    repeat(talk)
                    check(talk, kept)
            for at, talk in enumerate(state):
                if talk.length > 2500 or talk.cut:
                    state[at] = Talk(made, talk.rests)
                    made += 1
            if kill % 10 == 9:
                soak.say(f"kills: {kill + 1} of {wanted}, {counts}")
    finally:
        server.kill()
        twin.stop()
    row.least("kills", wanted, wanted)
    row.told("sessions resumed", f"{counts['resumed']:,}")
    row.least("of which cut in the middle of a turn", counts["cut"], 2 * wanted)
    row.told("of which with that turn on disk", f"{counts['ahead']:,}")
    row.equal("sessions lost", counts["lost"], 0)
    row.equal("other number of tokens", counts["tokens"], 0)
    row.equal("other logits at the first token", counts["logits"], 0)
    row.equal("other count of cached tokens", counts["read again"], 0)
    row.equal("other texts than without kills", counts["texts"], 0)
    return row


def leaving(soak, wanted=100):
    row = Row("leaving", "100 clients that leave at random moments", "slots, pages and memory all back")
    pick = random.Random(9)

    async def one(server):
        stay, wait = pick.choice([0, 0, 1, 3, 10, 30]), pick.uniform(0, 1.0)
        await asyncio.sleep(pick.uniform(0, 10))

        def on_piece(asked, _):
            if len(asked.pieces) >= stay > 0:
                raise Left

        body = streamed("w" * pick.choice([10, 1000, 8000]), 2000, ignore_eos=True)
        task = asyncio.create_task(ask(server.port, "/v1/completions", body, on_piece=on_piece))
        if not stay:
            await asyncio.sleep(wait)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def wave(server):
        await asyncio.gather(*(one(server) for _ in range(wanted)))

    with soak.serving(soak.checkpoint("slow"), "--threads", "1", "--batch", "8", log="leaving") as server:
        for _ in range(3):  # fill the prefix cache, and grow what grows once
            asyncio.run(wave(server))
        wait_until(server.is_idle, 20)
        before = (server.metrics(), server.resident_bytes(), server.descriptors())
        asyncio.run(wave(server))
        begin = time.monotonic()
        idle = wait_until(server.is_idle, 20)
        seconds = time.monotonic() - begin
        wait_until(lambda: server.metrics()["lca_http_connections"] <= 1, 5)
        after = (server.metrics(), server.resident_bytes(), server.descriptors())
        slots = []
        for _ in range(20):  # how soon a slot is free, one by one
            times = []

            def on_piece(asked, piece, times=times):
                if asked.pieces:
                    times.append(time.monotonic())
                    raise Left

            asyncio.run(ask(server.port, "/v1/completions", streamed("a", 2000, ignore_eos=True), on_piece=on_piece))
            wait_until(server.is_idle, 5, 0.005)
            slots.append(time.monotonic() - times[0])
    row.equal("requests that still run or wait", 0 if idle else 1, 0)
    row.below("after the last one left, idle within", seconds, 1, " s")
    row.below("slot free after leaving, p95 of 20", 1000 * percentile(slots, 0.95), 250, " ms")
    pages = after[0]["lca_memory_bytes"] - before[0]["lca_memory_bytes"]
    row.below("bytes of requests that stayed", max(0, pages), 0)
    row.below("resident memory, one more wave against three", 100 * (after[1] / before[1] - 1), 2, " %")
    row.equal("descriptors that stayed", max(0, after[2] - before[2]), 0)
    return row


TOOL = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"where": {"enum": ["here", "there"]}}, "required": ["where"],
    "additionalProperties": False}}}
SCHEMA = {"type": "object", "properties": {"yes": {"type": "boolean"}, "size": {"type": "integer", "minimum": 0,
                                                                               "maximum": 9}},
          "required": ["yes", "size"], "additionalProperties": False}


def mixed_request(pick):
    """A request of any kind: (path, body, status that must come)."""
    messages = [turn(pick, pick.choice([2, 30, 150]))]
    common = {"messages": messages, "max_tokens": pick.choice([1, 8, 32]), "seed": pick.randrange(1000)}
    stream = pick.random() < 0.5
    kind = pick.randrange(12)
    if kind < 3:
        return "/v1/chat/completions", {**common, "stream": stream}, 200
    if kind == 3:
        return "/v1/chat/completions", {**common, "max_tokens": 200, "response_format": {
            "type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}, 200
    if kind == 4:
        return "/v1/chat/completions", {**common, "max_tokens": 200, "tools": [TOOL], "tool_choice": "required",
                                        "stream": stream}, 200
    if kind == 5:
        return "/v1/chat/completions", {**common, "metadata": {"session": f"s{pick.randrange(6)}"}}, 200
    if kind == 6:
        return "/v1/messages", {**common, "stream": stream, "seed": 1}, 200
    if kind == 7:
        return "/v1/responses", {"input": messages[0]["content"], "max_output_tokens": 8, "stream": stream}, 200
    if kind == 8:
        return "/v1/completions", {"prompt": messages[0]["content"], "max_tokens": 4, "echo": True, "logprobs": 2,
                                   "n": pick.choice([1, 2])}, 200
    if kind == 9:
        return "/v1/completions", {"prompt": ["one", "two"], "max_tokens": 6}, 200
    if kind == 10:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": "x y " * 9000}]}, 400
    return "/v1/chat/completions", {**common, "temperature": pick.choice([5, "hot"])}, 400


def mixed(soak, clients=8):
    row = Row("mixed", "20 minutes of mixed traffic", "memory flat, no descriptor leaked")
    seconds = 60 * soak.minutes_of(row, 20)
    wrong, done, left = [], [0], [0]

    async def client(server, at, end):
        pick = random.Random(at)
        while time.monotonic() < end:
            path, body, status = mixed_request(pick)
            leaves = pick.random() < 0.08 and body.get("stream")

            def on_piece(asked, _, leaves=leaves):
                if leaves:
                    raise Left

            asked = await ask(server.port, path, body, on_piece=on_piece)
            done[0] += 1
            left[0] += asked.problem == "left"
            if asked.status != status and not (status == 200 and asked.status == 409):
                wrong.append((asked.status, asked.problem, path, json.dumps(body)[:300]))

    async def traffic(server):
        end = time.monotonic() + seconds
        tasks = [asyncio.create_task(client(server, at, end)) for at in range(clients)]
        told = time.monotonic()
        while not all(task.done() for task in tasks):
            await asyncio.sleep(1)
            if time.monotonic() - told > 60:
                told = time.monotonic()
                soak.say(f"mixed: {done[0]:,} requests, {len(wrong)} wrong, {server.resident_bytes() >> 20} MiB, "
                         f"{server.descriptors()} descriptors")
        await asyncio.gather(*tasks)

    sessions = soak.folder / "mixed-sessions"
    shutil.rmtree(sessions, ignore_errors=True)
    with soak.serving(soak.checkpoint("qwen2"), "--prefix-memory", "4MiB", "--sessions", sessions,
                      log="mixed") as server:
        server.chat("warm")
        before = server.descriptors()
        with Watch(server) as watch:
            asyncio.run(traffic(server))
        wait_until(server.is_idle, 10)
        wait_until(lambda: server.descriptors() <= before, 10, 0.2)
        after = server.descriptors()
        code = server.stop()
    row.told("requests, of which left in the middle", f"{done[0]:,}, {left[0]:,}")
    row.equal("other status than expected", len(wrong), 0)
    memory_row(row, watch)
    row.equal("descriptors that stayed", max(0, after - before), 0)
    row.equal("exit code after SIGTERM", -1 if code is None else code, 0)
    for one in wrong[:5]:
        soak.say(f"mixed: wrong: {one}")
    return row
