"""Many requests at once over asyncio, with the time of every piece; standard library alone."""

import asyncio
import dataclasses
import json
import time


@dataclasses.dataclass
class Asked:
    """What became of one request. Times are of time.monotonic()."""

    status: int = 0  # 0: the connection broke
    text: str = ""
    began: float = 0.0
    answered: float = 0.0  # the status line
    pieces: list = dataclasses.field(default_factory=list)  # when each piece of text came
    ended: float = 0.0
    usage: dict = dataclasses.field(default_factory=dict)
    finish: str = ""
    headers: dict = dataclasses.field(default_factory=dict)
    complete: bool = False  # the last event came
    problem: str = ""

    @property
    def first_piece(self):
        return self.pieces[0] - self.began if self.pieces else None

    @property
    def gaps(self):
        return [after - before for before, after in zip(self.pieces, self.pieces[1:])]

    @property
    def seconds(self):
        return self.ended - self.began

    @property
    def cached(self):
        return self.usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)


class Left(Exception):
    """Raised by `on_piece` to close the connection in the middle of a reply."""


async def head_read(reader):
    line = await reader.readline()
    if not line:
        raise ConnectionError("closed before a reply")
    headers = {}
    while (header := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = header.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(line.split()[1]), headers


async def body_parts(reader, headers):
    """Parts of a body as they come."""
    if headers.get("transfer-encoding") != "chunked":
        yield await reader.readexactly(int(headers.get("content-length", 0)))
        return
    while True:
        line = await reader.readline()
        if not line:
            raise ConnectionError("closed in the middle of a reply")
        size = int(line, 16)
        data = await reader.readexactly(size + 2)
        if not size:
            return
        yield data[:-2]


async def lines_of(parts):
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")


async def ask(port, path, body, headers=None, on_piece=None, host="127.0.0.1", method="POST"):
    """One request on a connection of its own; streams where the body says so. Never raises but for cancelling."""
    asked = Asked(began=time.monotonic())
    writer = None
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
        data = json.dumps(body).encode() if body is not None else b""
        head = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close",
                "Content-Type: application/json", f"Content-Length: {len(data)}",
                *(f"{name}: {value}" for name, value in (headers or {}).items())]
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + data)
        await writer.drain()
        asked.status, asked.headers = await head_read(reader)
        asked.answered = time.monotonic()
        parts = body_parts(reader, asked.headers)
        if asked.headers.get("content-type", "").startswith("text/event-stream"):
            await events_take(asked, lines_of(parts), on_piece)
        else:
            whole_take(asked, b"".join([part async for part in parts]))
    except Left:
        asked.problem = "left"
    except (OSError, ConnectionError, asyncio.IncompleteReadError, ValueError, KeyError) as problem:
        asked.problem = f"{type(problem).__name__}: {problem}"
    finally:
        asked.ended = time.monotonic()
        if writer:
            writer.close()
    return asked


async def events_take(asked, lines, on_piece):
    """Chunks of chat and completions."""
    async for line in lines:
        if line.startswith(b": ") and on_piece:
            on_piece(asked, None)
        if not line.startswith(b"data:"):
            continue
        if line[5:].strip() == b"[DONE]":
            asked.complete = not asked.problem
            return
        chunk = json.loads(line[5:])
        if "error" in chunk:
            asked.problem = chunk["error"]["message"]
            continue
        asked.usage = chunk.get("usage") or asked.usage
        for choice in chunk.get("choices", ()):
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            asked.finish = choice.get("finish_reason") or asked.finish
            if piece:
                asked.text += piece
                asked.pieces.append(time.monotonic())
            if on_piece:
                on_piece(asked, piece)


def whole_take(asked, body):
    if asked.headers.get("content-type", "").startswith("application/json"):
        reply = json.loads(body)
        asked.usage = reply.get("usage") or {}
        for choice in reply.get("choices", ())[:1]:
            asked.text = choice.get("text") or (choice.get("message") or {}).get("content") or ""
            asked.finish = choice.get("finish_reason") or ""
        if asked.status != 200 and "error" in reply:
            asked.problem = reply["error"]["message"]
    else:
        asked.text = body.decode(errors="replace")
    asked.complete = asked.status == 200


def streamed(prompt, tokens, **fields):
    """The body of a streamed completion with usage."""
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, **fields}


def endless(prompt="p", **fields):
    """The body of a stream that no machine ends while a test runs: sixteen replies as long as the context."""
    return {**streamed(prompt, 60000, ignore_eos=True, n=16), **fields}


def percentile(values, part):
    """The value below which a part (0 to 1) lies; 0 of no values."""
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


async def gather_limited(count, makers):
    """Results of coroutine makers, so many at once."""
    gate = asyncio.Semaphore(count)

    async def one(maker):
        async with gate:
            return await maker()

    return await asyncio.gather(*(one(maker) for maker in makers))
