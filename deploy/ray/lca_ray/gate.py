"""The front of all replicas: an ASGI application that finds the replica of a request and passes the reply on.

Without Ray: `call(request, key, avoid)` returns the messages of replica.py as an asynchronous iterator with `cancel()`,
`call_all(request)` the whole replies of all replicas, by name.
"""

import asyncio
import time

from . import dialect, metrics
from .routing import routing_key

HELD_LIMIT = 1 << 20
RETRY_AFTER_S = 5
# Servers that may be lost with a request in them; one that kills servers must not meet them all.
MOST_LOST = 2


class ClientGone(Exception):
    pass


class Abort(Exception):
    """The connection must end without the reply's last byte: it is not whole."""


class Gate:
    def __init__(self, call, call_all, max_body=64 << 20, replica_wait=15, first="message", log=None):
        self.call, self.call_all = call, call_all
        self.max_body, self.replica_wait, self.first = max_body, replica_wait, first
        self.log = log or (lambda text: None)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            raise Abort(f"{scope['type']} is not served")
        try:
            await self.answer(scope, receive, send)
        except ClientGone:
            pass

    async def answer(self, scope, receive, send):
        body = await self.read_body(receive)
        path = scope["path"]
        if body is None:
            return await send_whole(send, 413, [("content-type", "application/json")],
                                    dialect.error_body(path, 413, f"the body is larger than {self.max_body} bytes"))
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        target = (scope.get("raw_path") or path.encode()).decode("latin-1")
        if scope.get("query_string"):
            target = target.split("?")[0] + "?" + scope["query_string"].decode("latin-1")
        request = {"method": scope["method"], "target": target, "path": path, "headers": headers, "body": body}
        work = asyncio.ensure_future(self.pass_on(request, send))
        gone = asyncio.ensure_future(client_gone(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientGone
            work.result()
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))

    async def read_body(self, receive):
        """The whole body; None where it is too large."""
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.max_body:
                return None
            if not message.get("more_body"):
                return b"".join(parts)

    async def pass_on(self, request, send):
        path, method = request["path"], request["method"]
        if path == "/metrics" and method == "GET":
            status, headers, body = metrics.merge(await self.call_all(request))
            return await send_whole(send, status, headers, body)
        key = routing_key(method, path, dict(request["headers"]), request["body"], self.first)
        # What is asked twice: all but changes of sessions, where the second answer would be another.
        repeats = method in ("GET", "HEAD", "OPTIONS") or not path.startswith("/v1/sessions")
        # How long a request waits for a replica; the time that it spends at one does not count.
        deadline = time.monotonic() + self.replica_wait
        avoid, held, lost = [], None, 0
        while True:
            messages = self.call(request, key, avoid)
            name, finished, sent = None, False, False
            try:
                first = await asyncio.wait_for(anext(messages), max(0.1, deadline - time.monotonic()))
                if first[0] == "none":
                    finished = True
                    if held is not None:
                        return await send_whole(send, *held)
                    raise LookupError("no other replica")
                name, sent = first[1], True
                message = await anext(messages)
                if message[0] == "failed":
                    finished, sent = True, message[2]
                    raise ConnectionError(message[1])
                status, headers = message[1], message[2]
                if status in (429, 503) and repeats:
                    held = (status, headers, await collect(messages))
                    finished = True
                    avoid.append(name)
                    deadline = time.monotonic() + self.replica_wait
                    continue
                await self.stream(messages, status, headers, path, send)
                finished = True
                return
            except (LookupError, ConnectionError, asyncio.TimeoutError, StopAsyncIteration) as error:
                # No byte of a reply was sent yet. The next in rank; when all failed, all again, until one is there.
                if name is not None:
                    self.log(f"{method} {path}: {name}: {error}")
                    avoid.append(name)
                lost += sent
                if sent and (lost == MOST_LOST or not repeats):
                    return await self.refuse(send, path, 502, f"the replica is gone: {error}")
                if sent:
                    deadline = time.monotonic() + self.replica_wait
                if first_failed(error):
                    avoid.clear()
                if time.monotonic() >= deadline:
                    return await self.refuse(send, path, 503, "no replica is ready")
                await asyncio.sleep(0.1 if first_failed(error) else 0)
            finally:
                if not finished:
                    messages.cancel()

    async def stream(self, messages, status, headers, path, send):
        """Passes on the reply whose head has come. Its end in the middle is an error event in an event stream; else
        the connection ends."""
        await send_head(send, status, headers)
        events = any(name.lower() == "content-type" and value.startswith("text/event-stream")
                     for name, value in headers)
        try:
            async for message in messages:
                if message[0] == "body":
                    await send({"type": "http.response.body", "body": message[1], "more_body": True})
                elif message[0] == "end":
                    return await send({"type": "http.response.body", "body": b""})
                else:
                    raise ConnectionError(message[1])
            raise ConnectionError("the replica ended")
        except ConnectionError as error:
            self.log(f"{path}: broken in the middle: {error}")
            if not events:
                raise Abort(str(error)) from error
            text = f"the replica is gone, the reply is not whole: {error}"
            await send({"type": "http.response.body", "body": dialect.error_event(path, text)})

    async def refuse(self, send, path, status, message):
        headers = [("content-type", "application/json")]
        if status == 503:
            headers.append(("retry-after", str(RETRY_AFTER_S)))
        await send_whole(send, status, headers, dialect.error_body(path, status, message))


def first_failed(error):
    return isinstance(error, (LookupError, asyncio.TimeoutError))


async def collect(messages):
    """The body of a reply that may be dropped."""
    parts = []
    async for message in messages:
        if message[0] == "body" and sum(map(len, parts)) < HELD_LIMIT:
            parts.append(message[1])
        elif message[0] == "broken":
            raise ConnectionError(message[1])
    return b"".join(parts)


async def client_gone(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_head(send, status, headers):
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def send_whole(send, status, headers, body):
    if not any(name.lower() == "content-length" for name, _ in headers):
        headers = [*headers, ("content-length", str(len(body)))]
    await send_head(send, status, headers)
    await send({"type": "http.response.body", "body": body})


async def lifespan(receive, send):
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
