"""Rows about load: fairness during a long prompt, overload, many connections."""

import asyncio
import random
import statistics
import subprocess
import sys
import time

from soak_common import Row, Watch, memory_row  # finds load.py too

from load import ask, percentile, streamed


def prompts_make(count, length, seed=1):
    """Texts of one token a letter."""
    pick = random.Random(seed)
    return ["".join(pick.choices("abcdefghijklmnopqrstuvwxyz     ", k=length)) for _ in range(count)]


def ids_of(server, text, count):
    """The first ids of a text, repeated where it is too short."""
    ids = server.post("/tokenize", {"content": text[:16 * count]}).json()["tokens"]
    return (ids * (count // max(1, len(ids)) + 1))[:count]


def fairness(soak, tokens=7000, streams=4):
    row = Row("fairness", "four streams while a fifth client's 7,000-token prompt is read (SmolLM2, 2 threads)",
              "the streams' gap between tokens p95 ≤ 300 ms; the prompt takes ≤ 1.3 × its time alone plus the "
              "streams' own steps")
    if not soak.model:
        row.skipped = "no SmolLM2 here; make model fetches it"
        return row

    async def measure(server):
        prompt = ids_of(server, soak.text, tokens)
        small = [ids_of(server, soak.text[4000 * at:], 40 + at) for at in range(streams)]
        alone = await ask(server.port, "/v1/completions", streamed(prompt, 1))
        soak.say(f"fairness: the prompt alone takes {alone.first_piece or alone.seconds:.2f} s")

        calm = await asyncio.gather(*(ask(server.port, "/v1/completions", streamed(ids, 64, ignore_eos=True))
                                      for ids in small))
        # The streams are cut when the prompt is read, so their times come from a list of their own.
        seen = [[] for _ in small]

        def keep(at):
            return lambda asked, piece: seen[at].append(time.monotonic()) if piece else None

        tasks = [asyncio.create_task(ask(server.port, "/v1/completions", streamed(ids, 4000, ignore_eos=True),
                                         on_piece=keep(at))) for at, ids in enumerate(small)]
        await asyncio.sleep(1.5)
        fifth = await ask(server.port, "/v1/completions", streamed(prompt, 1, ignore_eos=True))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return alone, calm, fifth, seen

    with soak.serving(soak.model, "--threads", "2", "--prefix-cache", "off", log="fairness") as server:
        alone, calm, fifth, seen = asyncio.run(measure(server))
    step = statistics.median(gap for asked in calm for gap in asked.gaps)
    end = fifth.pieces[0] if fifth.pieces else fifth.ended
    during = [[when for when in times if fifth.began <= when <= end] for times in seen]
    gaps = [after - before for times in during for before, after in zip(times, times[1:])]
    steps = statistics.median(len(times) for times in during)
    time_alone, time_among = alone.pieces[0] - alone.began, end - fifth.began
    row.below("gap between tokens of the streams, p95", 1000 * percentile(gaps, 0.95), 300, " ms")
    row.below("the prompt among the streams", time_among, 1.3 * time_alone + steps * step, " s")
    row.told("the prompt alone", f"{time_alone:.2f} s")
    row.told("steps of the streams meanwhile", f"{steps:.0f} of {1000 * step:.0f} ms")
    return row


def overload(soak, length=2000, reply=16, queue=32):
    row = Row("overload", "64 clients, open loop at twice what the machine can do, 10 minutes",
              "429 for the excess (p99 < 50 ms), time to first token of the accepted ≤ 1.5 × (queue limit ÷ measured "
              "prefill rate), memory flat (±2 %), no wrong text")
    seconds = 60 * soak.minutes_of(row, 10)
    prompts = prompts_make(24, length)
    bodies = [streamed(prompt, reply, ignore_eos=True) for prompt in prompts]
    # Read, and nothing more: the first token comes with the end of the prompt.
    readings = [streamed(prompt, 1, ignore_eos=True) for prompt in prompts]

    async def capacity(server, bodies, right, span):
        """Requests a second in a closed loop that keeps the queue half full, and replies that were wrong."""
        end, done = time.monotonic() + span, []

        async def client(at):
            while time.monotonic() < end:
                asked = await ask(server.port, "/v1/completions", bodies[at % len(bodies)])
                done.append((asked, at % len(bodies)))
                at += 7

        begin = time.monotonic()
        await asyncio.gather(*(client(at) for at in range(queue // 2)))
        wrong = sum(asked.text != right[at] for asked, at in done)
        return len(done) / (time.monotonic() - begin), wrong

    async def flood(server, rate):
        pick, asked, tasks = random.Random(2), [], set()
        end = time.monotonic() + seconds

        async def one(at):
            asked.append((await ask(server.port, "/v1/completions", bodies[at]), at))

        async def client():
            while time.monotonic() < end:
                await asyncio.sleep(pick.expovariate(rate / 64))
                task = asyncio.create_task(one(pick.randrange(len(bodies))))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        told = asyncio.create_task(progress(asked))
        await asyncio.gather(*(client() for _ in range(64)))
        await asyncio.gather(*tasks)
        told.cancel()
        return asked

    async def progress(asked):
        while True:
            await asyncio.sleep(30)
            soak.say(f"overload: {len(asked):,} requests, {sum(a.status == 429 for a, _ in asked):,} refused")

    # One thread computes: the client that measures has the other core.
    flags = ["--threads", "1", "--prefix-cache", "off", "--queue", str(queue), "--batch", "8"]
    with soak.serving(soak.checkpoint("slow"), *flags, log="overload") as server:
        right, right_firsts = ([server.complete(prompt, max_tokens=count, ignore_eos=True)["choices"][0]["text"]
                                for prompt in prompts] for count in (reply, 1))
        span = max(10, min(60, seconds / 4))
        reads, wrong_reads = asyncio.run(capacity(server, readings, right_firsts, span))
        rate, wrong = asyncio.run(capacity(server, bodies, right, span))
        soak.say(f"overload: the machine reads {reads:.2f} prompts a second and answers {rate:.2f} requests")
        with Watch(server) as watch:
            asked = asyncio.run(flood(server, 2 * rate))
    taken = [(one, at) for one, at in asked if one.status == 200]
    refused = [one for one, _ in asked if one.status == 429]
    wrong += wrong_reads + sum(one.text != right[at] for one, at in taken)
    row.told("prompts read a second, requests answered a second", f"{reads:.2f}, {rate:.2f}")
    row.told("asked, answered, refused", f"{len(asked):,}, {len(taken):,}, {len(refused):,}")
    row.equal("neither 200 nor 429", len(asked) - len(taken) - len(refused), 0)
    row.below("429, p99", 1000 * percentile([one.seconds for one in refused], 0.99), 50, " ms")
    firsts = [one.first_piece or 1e9 for one, _ in taken]
    row.told("time to first token, median and largest", f"{percentile(firsts, 0.5):.3g} s, {max(firsts):.3g} s")
    row.below("time to first token, p99", percentile(firsts, 0.99), 1.5 * queue / reads, " s")
    row.equal("wrong texts", wrong, 0)
    memory_row(row, watch)
    return row


class Crowd:
    """A process with connections that are idle, or send a byte a second and come back when they are refused."""

    def __init__(self, server, count):
        self.command = [sys.executable, "-B", __file__, server.host, str(server.port), str(count)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "open\n":
            raise RuntimeError("the connections cannot be opened")
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


async def connection_idle(host, port, opened):
    while True:
        reader, writer = await asyncio.open_connection(host, port)
        opened[0] += 1
        try:
            await reader.read()  # until the server closes it
        except OSError:
            pass
        finally:
            opened[0] -= 1
            writer.close()


async def connection_slow(host, port, opened):
    while True:
        reader, writer = await asyncio.open_connection(host, port)
        opened[0] += 1
        try:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            while True:
                try:
                    await asyncio.wait_for(reader.read(), 1)
                    break  # refused: 408, and closed
                except asyncio.TimeoutError:
                    writer.write(b"x")
                    await writer.drain()
        except OSError:
            pass
        finally:
            opened[0] -= 1
            writer.close()


async def crowd_run(host, port, count):
    """Opens the connections, says "open", and keeps them until standard input ends."""
    opened = [0]
    kinds = (connection_idle, connection_slow)
    tasks = [asyncio.create_task(kinds[at % 2](host, port, opened)) for at in range(count)]
    while opened[0] < count:
        await asyncio.sleep(0.05)
    print("open", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def connections(soak, count=1000, pairs=5, requests=1000):
    row = Row("connections", "1,000 idle or slow connections", "median of five interleaved pairs: others' p99 at most "
              "25 % worse; `/health` p99 < 50 ms during a long prefill")
    body = streamed("a short prompt", 8, ignore_eos=True)

    async def p99(server):
        times = []
        for _ in range(requests):
            asked = await ask(server.port, "/v1/completions", body)
            if not asked.complete:
                raise RuntimeError(f"a request failed: {asked.status} {asked.problem}")
            times.append(asked.seconds)
        await asyncio.sleep(0.1)  # the last connection is closed: not one of the others
        return percentile(times, 0.99)

    def connections_open(server):
        """Beside the one that asks."""
        return int(server.metrics()["lca_http_connections"]) - 1

    async def compare(server):
        await p99(server)  # warms up
        ratios, others = [], []
        for pair in range(pairs):
            without = await p99(server)
            with Crowd(server, count):
                before = connections_open(server)
                among = await p99(server)
                others.append(min(before, connections_open(server)))
            soak.say(f"connections: pair {pair + 1}: p99 {1000 * without:.1f} ms, with {others[-1]:,} connections "
                     f"{1000 * among:.1f} ms")
            ratios.append(among / without)
            await asyncio.sleep(0.5)
        return ratios, others

    async def health(server):
        times = []
        for _ in range(3):
            long = asyncio.create_task(ask(server.port, "/v1/completions", streamed("z" * 60000, 1)))
            await asyncio.sleep(0.1)
            while not long.done():
                times.append((await ask(server.port, "/health", None, method="GET")).seconds)
                await asyncio.sleep(0.01)
        return times

    flags = ["--threads", "1", "--prefix-cache", "off"]
    with soak.serving(soak.checkpoint("llama"), *flags, log="connections") as server:
        ratios, others = asyncio.run(compare(server))
    with soak.serving(soak.checkpoint("slow"), *flags, log="health") as server:
        times = asyncio.run(health(server))
    row.least("others, before and after each measurement, fewest", min(others), count)
    row.below("p99 with 1,000 others against without, median of five", statistics.median(ratios), 1.25, " ×")
    row.told("the five", ", ".join(f"{ratio:.2f}" for ratio in ratios))
    row.below(f"`/health` during a prefill, p99 of {len(times)}", 1000 * percentile(times, 0.99), 50, " ms")
    return row


if __name__ == "__main__":  # a Crowd
    asyncio.run(crowd_run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
