"""What a replica does with one request: passes it to its server, and the reply back, byte for byte. Without Ray.

It answers with messages: ("at", replica) once; ("head", status, headers); ("body", bytes) any number of times;
("end",). Or, before a head: ("none",) where the caller asked to avoid this replica, ("failed", why, sent) where there
is no reply; after a head: ("broken", why).
"""

from . import loopback


async def forward(process, name, request, avoid=()):
    if name in avoid:
        yield ("none",)
        return
    yield ("at", name)
    port = process.port
    if port is None:
        yield ("failed", "its server is starting", False)
        return
    reply = None
    try:
        try:
            reply = await loopback.ask(port, request["method"], request["target"], request["headers"], request["body"])
        except loopback.BrokenReply as error:
            yield ("failed", str(error), True)
            return
        except OSError as error:
            yield ("failed", f"its server does not answer: {error}", False)
            return
        yield ("head", reply.status, reply.headers)
        try:
            async for piece in reply.pieces():
                yield ("body", piece)
        except loopback.BrokenReply as error:
            yield ("broken", str(error))
            return
        yield ("end",)
    finally:
        # Also where the caller has cancelled: the end of the connection frees the slot of the request.
        if reply is not None:
            reply.close()
