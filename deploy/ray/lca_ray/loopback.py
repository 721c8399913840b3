"""One HTTP request to a server on loopback, over a connection of its own. Standard library only.

Bodies come back as they were sent, without the framing of chunks. Closing the connection tells the server that the
client is gone, so whoever asks closes it, always.
"""

import asyncio

HEAD_LIMIT = 64 * 1024
PIECE = 64 * 1024
# Headers that belong to one connection, not to the message.
HOP_BY_HOP = frozenset(("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
                        "upgrade", "expect"))


class BrokenReply(ConnectionError):
    """The server went away before its reply was whole."""


class Reply:
    """Status and headers of a reply; `pieces` are the bytes of its body as they come."""

    def __init__(self, reader, writer, bodiless):
        self._reader, self._writer, self._bodiless = reader, writer, bodiless
        self.status, self.headers = 0, []
        self._length, self._chunked = None, False

    async def read_head(self):
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            while head.startswith((b"HTTP/1.1 100", b"HTTP/1.1 102", b"HTTP/1.1 103")):
                head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            raise BrokenReply("the server went away before it answered") from error
        lines = head[:-4].decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ", 2)[1])
        for line in lines[1:]:
            name, value = line.split(":", 1)
            name, value = name.strip(), value.strip()
            if name.lower() == "transfer-encoding":
                self._chunked = value.lower() == "chunked"
            elif name.lower() not in HOP_BY_HOP:
                if name.lower() == "content-length":
                    self._length = int(value)
                self.headers.append((name, value))
        self._bodiless = self._bodiless or self.status in (204, 304)

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name), None)

    async def pieces(self):
        if self._bodiless:
            return
        try:
            async for piece in self._chunks() if self._chunked else self._plain():
                yield piece
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            raise BrokenReply("the server went away in the middle of its reply") from error

    async def _plain(self):
        left = self._length
        while left is None or left > 0:
            piece = await self._reader.read(PIECE if left is None else min(PIECE, left))
            if not piece:
                if left is not None:
                    raise BrokenReply("the body is shorter than announced")
                return
            left = None if left is None else left - len(piece)
            yield piece

    async def _chunks(self):
        while True:
            size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
            if size == 0:
                while await self._reader.readuntil(b"\r\n") != b"\r\n":
                    pass  # trailers
                return
            while size > 0:
                piece = await self._reader.read(min(PIECE, size))
                if not piece:
                    raise BrokenReply("the stream ends within a chunk")
                size -= len(piece)
                yield piece
            await self._reader.readexactly(2)

    def close(self):
        self._writer.close()


async def ask(port, method, target, headers, body=b"", timeout=None):
    """Sends a request and reads the head of its reply. Raises ConnectionError where there is no server, BrokenReply
    where it went away. `headers` are pairs of text; those of a connection and Content-Length are ours."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=HEAD_LIMIT)
    try:
        lines = [f"{method} {target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers
                  if name.lower() not in HOP_BY_HOP and name.lower() != "content-length"]
        if not any(name.lower() == "host" for name, _ in headers):
            lines.append(f"host: 127.0.0.1:{port}")
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(f"content-length: {len(body)}")
        lines.append("connection: close")
        text = "\r\n".join(lines)
        if text.count("\n") != len(lines) - 1 or "\0" in text:
            raise ValueError("a header holds a line break")
        writer.write(text.encode("latin-1") + b"\r\n\r\n" + body)
        reply = Reply(reader, writer, bodiless=method == "HEAD")
        # A server may refuse before it has read a large body: its answer is read even if sending failed.
        await asyncio.wait_for(reply.read_head(), timeout)
        return reply
    except BaseException:
        writer.close()
        raise


async def get(port, target, timeout):
    """Status and body of a small reply."""
    async def whole():
        reply = await ask(port, "GET", target, [])
        try:
            return reply.status, b"".join([piece async for piece in reply.pieces()])
        finally:
            reply.close()
    return await asyncio.wait_for(whole(), timeout)
