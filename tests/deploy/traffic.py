"""Conversations with a front of several `lca serve`, and what their usage says. Standard library only."""

import dataclasses
import http.client
import json
import pathlib
import socket
import threading
import time
import urllib.parse

TOPICS = ["lighthouses", "bread", "tides", "clocks", "bees", "bridges", "salt", "maps", "glass", "ferries", "winter",
          "copper", "gardens", "letters", "rivers", "kites"]

ASKED = 0.95  # share of follow-up turns that must find their cache


@dataclasses.dataclass
class Turn:
    prompt: int
    cached: int
    completion: int
    seconds: float


@dataclasses.dataclass
class Lost:
    """A request that did not come back whole."""
    status: int
    why: str
    begun: bool = False  # some of it had come


def request(base, method, path, value=None, headers=(), timeout=120):
    """Status and body."""
    address = urllib.parse.urlsplit(base)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=timeout)
    try:
        body = None if value is None else json.dumps(value)
        connection.request(method, path, body, {"Content-Type": "application/json", **dict(headers)})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def ask(base, body, headers=()):
    """Text and usage of a streamed chat completion, or Lost."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        status, data = request(base, "POST", "/v1/chat/completions", body, headers)
    except http.client.IncompleteRead as error:
        return Lost(200, str(error), True)
    except (OSError, http.client.HTTPException) as error:
        return Lost(0, f"{type(error).__name__}: {error}")
    if status != 200:
        return Lost(status, data.decode("utf-8", "replace")[:300])
    text, usage, done = "", None, False
    for line in data.decode().split("\n"):
        if line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            if "error" in event:
                return Lost(status, event["error"]["message"], True)
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                text += choice["delta"].get("content") or ""
    if not done or usage is None:
        return Lost(status, "the stream has no end", True)
    return text, usage


class Conversation:
    """`named`: how the session is told: "metadata", "header", "both" or None for no session."""

    def __init__(self, base, number, named=None, prefix="talk", words=150):
        self.base, self.named = base, named
        self.name = f"{prefix}-{number}"
        topic = TOPICS[number % len(TOPICS)]
        filler = " ".join(f"{topic} {number}-{word}" for word in range(words // 2))
        self.messages = [{"role": "user", "content": f"Notes {number} about {topic}: {filler}. What is this about?"}]
        self.turns, self.lost = [], []

    def say(self, question=None, tokens=12):
        """One turn; True if it came back whole. After a loss the same turn is asked again."""
        if self.messages[-1]["role"] == "assistant":
            self.messages.append({"role": "user", "content": question or f"Say more, part {len(self.turns)}."})
        body = {"model": "any", "messages": self.messages, "max_tokens": tokens, "temperature": 0}
        headers = {}
        if self.named in ("metadata", "both"):
            body["metadata"] = {"session": self.name}
        if self.named in ("header", "both"):
            headers["X-SMG-Routing-Key"] = self.name
        begin = time.monotonic()
        answer = ask(self.base, body, headers)
        if isinstance(answer, Lost):
            self.lost.append(answer)
            return False
        text, usage = answer
        self.messages.append({"role": "assistant", "content": text})
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.turns.append(Turn(usage["prompt_tokens"], cached, usage["completion_tokens"], time.monotonic() - begin))
        return True

    @property
    def tokens(self):
        """Of the last completed turn, its reply included."""
        return self.turns[-1].prompt + self.turns[-1].completion

    def hits(self):
        """For each follow-up turn: whether the prompt of the turn before was found, as far as a mark can lie."""
        return [turn.cached >= 0.9 * before.prompt for before, turn in zip(self.turns, self.turns[1:])]


def share(conversations):
    """Share of follow-up turns that found their cache, and their number."""
    hits = [hit for one in conversations for hit in one.hits()]
    for one in conversations:
        if not all(one.hits()) or one.lost:
            print(f"   {one.name}: {one.turns} {one.lost}")
    return (sum(hits) / len(hits) if hits else 0.0), len(hits)


def run(conversations, turns, clients=4, stop=None, patience=20):
    """`turns` turns of each, so many clients at a time; a turn that is lost is asked again."""
    left = list(conversations)
    lock = threading.Lock()

    def client():
        while True:
            with lock:
                if not left:
                    return
                one = left.pop(0)
            for _ in range(turns):
                failures = 0
                while not one.say() and failures < patience:
                    failures += 1
                    time.sleep(0.2)
                if stop is not None and stop.is_set():
                    return

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    return threads


def wait(threads):
    for thread in threads:
        thread.join()


def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.1)


class Report:
    def __init__(self):
        self.rows, self.failed = [], 0

    def add(self, what, value, holds):
        self.rows.append((what, value, "holds" if holds else "FAILS"))
        self.failed += not holds
        print(f"{what}: {value} ({self.rows[-1][2]})", flush=True)

    def table(self):
        return "\n".join(["| check | measured | |", "| --- | --- | --- |",
                          *(f"| {what} | {value} | {holds} |" for what, value, holds in self.rows)])


def free_port(wanted=0):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", wanted))
        return probe.getsockname()[1]


def servers_of(word):
    """Process id → its parent's, of the servers that run and have `word` in their command."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if str(word).encode() in words and b"serve" in words:
                found[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    return found


def check_sessions(base, report, talks, kept_by):
    """After a kill: every session holds its last completed turn, and the next turn finds it."""
    data = json.loads(request(kept_by, "GET", "/v1/sessions")[1])["data"]
    kept = {row["name"]: row["tokens"] for row in data}
    short = [talk.name for talk in talks if kept.get(talk.name, 0) < talk.tokens - 1]
    report.add("– sessions that hold their last completed turn", f"{len(talks) - len(short)} of {len(talks)}", not short)
    before = [talk.turns[-1].prompt for talk in talks]
    wait(run(talks, 1))
    found = sum(talk.turns[-1].cached >= 0.9 * tokens for talk, tokens in zip(talks, before))
    report.add("– that are found by the next turn", f"{found} of {len(talks)}", found == len(talks))


def check_lost(report, talks, turns, what):
    """After a kill: all turns were completed, and only streams that had begun ended with an error."""
    asked = sum(len(talk.turns) for talk in talks)
    report.add(f"{what} killed in traffic: turns completed", f"{asked} of {len(talks) * turns}",
               asked == len(talks) * turns)
    lost = [one for talk in talks for one in talk.lost]
    streams = sum(one.begun for one in lost)
    report.add("– requests that ended with an error", f"{len(lost)}, in the middle of a stream {streams}",
               len(lost) == streams)
    for one in lost:
        print(f"   {one}")
