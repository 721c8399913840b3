"""Conversations with a front of several `lca serve`, and what their usage says. Standard library only."""

import dataclasses
import http.client
import json
import threading
import time
import urllib.parse

TOPICS = ["lighthouses", "bread", "tides", "clocks", "bees", "bridges", "salt", "maps", "glass", "ferries", "winter",
          "copper", "gardens", "letters", "rivers", "kites"]


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
                return Lost(status, event["error"]["message"])
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                text += choice["delta"].get("content") or ""
    if not done or usage is None:
        return Lost(status, "the stream has no end")
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
