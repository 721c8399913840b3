"""The front and its replicas (deploy/ray/lca_ray) over plain servers, without Ray."""

import asyncio
import json
import pathlib
import sys
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "deploy" / "ray"))
from lca_ray import replica  # noqa: E402
from lca_ray.gate import Abort, Gate  # noqa: E402
from lca_ray.routing import rank  # noqa: E402

CHAT = "/v1/chat/completions"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*pieces):
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


def plain(status, body, *headers):
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


started = []


class Server:
    """Answers every request with the same bytes, after a while, then closes, or waits for the client to leave."""

    def __init__(self, reply, waits=False, after=0):
        self.reply, self.waits, self.after = reply, waits, after
        self.requests, self.left, self.port = [], asyncio.Event(), None

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, limit=1 << 24)
        self.port = self.server.sockets[0].getsockname()[1]
        started.append(self.server)
        return self

    async def serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n")
                       if line.startswith(b"content-length")), 0)
        self.requests.append(head + await reader.readexactly(length))
        await asyncio.sleep(self.after)
        writer.write(self.reply)
        if self.waits:
            await reader.read()
            self.left.set()
        writer.close()


class Messages:
    def __init__(self, messages):
        self.messages = messages

    def __aiter__(self):
        return self

    async def __anext__(self):
        return await anext(self.messages)

    def cancel(self):
        asyncio.ensure_future(self.messages.aclose())


class Cluster:
    """What Ray is in the application: calls the replica that the key ranks first."""

    def __init__(self, **servers):
        self.servers = servers
        self.died = set()  # replicas whose actor is gone: calling one raises
        self.gate = Gate(self.call, self.call_all, max_body=1 << 20, replica_wait=0.5)

    def call(self, request, key, avoid):
        names = rank(key or "any", list(self.servers))
        names.sort(key=lambda name: name in avoid)
        if not names:
            return Messages(self.never())
        if names[0] in self.died:
            return Messages(self.dead(names[0]))
        return Messages(replica.forward(self.servers[names[0]], names[0], request, tuple(avoid)))

    async def dead(self, name):
        self.servers.pop(name)
        raise ConnectionError("the replica died")
        yield

    async def never(self):
        await asyncio.sleep(60)
        yield

    async def call_all(self, request):
        return {}

    async def ask(self, method="POST", path=CHAT, body=b"", headers=(), leave=None, query=b""):
        """Status, headers and body; `leave`: an event after which the client is gone."""
        sent = []
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query,
                 "headers": [(b"host", b"llm.example.com"), *headers]}
        half = len(body) // 2
        incoming = [{"type": "http.request", "body": body[:half], "more_body": True},
                    {"type": "http.request", "body": body[half:]}]

        async def receive():
            if incoming:
                return incoming.pop(0)
            await (leave or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await asyncio.wait_for(self.gate(scope, receive, send), 10)
        if not sent:
            return None
        return types.SimpleNamespace(status=sent[0]["status"], headers=dict(sent[0]["headers"]), messages=sent,
                                     body=b"".join(message["body"] for message in sent[1:]),
                                     whole=not sent[-1].get("more_body", False))


def chat(text="hi", **more):
    return json.dumps({"messages": [{"role": "user", "content": text}], **more}).encode()


class GateTest(unittest.IsolatedAsyncioTestCase):
    async def asyncTearDown(self):
        while started:
            started.pop().close()

    async def test_request_and_reply_pass_unchanged(self):
        body = bytes(range(256)) * 40
        server = await Server(plain(418, body, "X-Own: a", "X-Own-2: b", "Connection: close")).start()
        reply = await Cluster(a=server).ask("POST", "/v1/chat/comp%20letions", body, [(b"x-mine", b"1")], query=b"a=%2F")
        head, _, sent = server.requests[0].partition(b"\r\n\r\n")
        self.assertEqual(sent, body)
        self.assertTrue(head.startswith(b"POST /v1/chat/comp%20letions?a=%2F HTTP/1.1\r\n"))
        self.assertIn(b"host: llm.example.com", head)
        self.assertIn(b"x-mine: 1", head)
        self.assertEqual((reply.status, reply.body), (418, body))
        self.assertEqual(reply.headers[b"X-Own"], b"a")
        self.assertNotIn(b"Connection", reply.headers)

    async def test_a_stream_passes_piece_by_piece_without_its_framing(self):
        server = await Server(EVENTS + chunked(b": reading\n\n", b"data: 1\n\n", b"data: [DONE]\n\n") + b"0\r\n\r\n").start()
        reply = await Cluster(a=server).ask(body=chat())
        self.assertEqual(reply.body, b": reading\n\ndata: 1\n\ndata: [DONE]\n\n")
        self.assertTrue(reply.whole)
        self.assertNotIn(b"Transfer-Encoding", reply.headers)

    async def test_a_body_beyond_the_limit_is_413_in_the_callers_dialect(self):
        cluster = Cluster(a=await Server(plain(200, b"")).start())
        for path, get in [(CHAT, lambda value: value["error"]["type"]),
                          ("/v1/messages", lambda value: value["error"]["type"])]:
            reply = await cluster.ask(path=path, body=b"x" * (1 << 21))
            self.assertEqual(reply.status, 413)
            self.assertIn(get(json.loads(reply.body)), ("invalid_request_error", "request_too_large"))

    async def test_a_client_that_leaves_closes_the_servers_connection(self):
        for reply in (b"", EVENTS + chunked(b"data: 1\n\n")):
            server = await Server(reply, waits=True).start()
            leave = asyncio.Event()
            asyncio.get_running_loop().call_later(0.1, leave.set)
            await Cluster(a=server).ask(body=chat(), leave=leave)
            await asyncio.wait_for(server.left.wait(), 1)

    async def test_a_server_that_dies_before_the_first_byte_is_replaced(self):
        good = await Server(plain(200, b"fine")).start()
        for bad in (await Server(b"").start(), types.SimpleNamespace(port=1), types.SimpleNamespace(port=None)):
            for word in range(6):  # for some of them the bad one is first
                reply = await Cluster(good=good, bad=bad).ask(body=chat(str(word)))
                self.assertEqual((reply.status, reply.body), (200, b"fine"))

    async def test_a_server_that_is_lost_after_long_work_is_replaced_too(self):
        # Longer than a request waits for a replica: a reply that is not streamed has no byte before its end.
        for late in (b"", plain(503, b"draining")):
            good, bad = await Server(plain(200, b"fine")).start(), await Server(late, after=0.7).start()
            cluster = Cluster(good=good, bad=bad)
            replies = await asyncio.gather(*(cluster.ask(body=chat(str(word))) for word in range(6)))
            self.assertEqual({(reply.status, reply.body) for reply in replies}, {(200, b"fine")})
            self.assertTrue(bad.requests)

    async def test_an_actor_that_dies_is_replaced(self):
        cluster = Cluster(good=await Server(plain(200, b"fine")).start(), bad=None)
        cluster.died.add("bad")
        for word in range(6):
            cluster.servers["bad"] = None
            self.assertEqual((await cluster.ask(body=chat(str(word)))).body, b"fine")

    async def test_a_request_that_kills_servers_meets_two_at_most(self):
        servers = {name: await Server(b"").start() for name in "abcd"}
        reply = await Cluster(**servers).ask(body=chat())
        self.assertEqual(reply.status, 502)
        self.assertEqual(sum(len(server.requests) for server in servers.values()), 2)
        slow = {name: await Server(b"", after=0.7).start() for name in "abcd"}
        reply = await Cluster(**slow).ask(body=chat())
        self.assertEqual(reply.status, 502)
        self.assertEqual(sum(len(server.requests) for server in slow.values()), 2)

    async def test_a_change_of_a_session_is_not_sent_twice(self):
        servers = {name: await Server(b"").start() for name in "ab"}
        reply = await Cluster(**servers).ask("DELETE", "/v1/sessions/ada")
        self.assertEqual(reply.status, 502)
        self.assertEqual(sum(len(server.requests) for server in servers.values()), 1)

    async def test_a_stream_that_breaks_ends_with_an_error_event(self):
        for ending in (b"", b"5\r\nda"):
            cluster = Cluster(a=await Server(EVENTS + chunked(b"data: 1\n\n") + ending).start())
            for path, name in [(CHAT, b""), ("/v1/messages", b"event: error\n"), ("/v1/responses", b"event: error\n")]:
                reply = await cluster.ask(path=path, body=chat())
                self.assertTrue(reply.whole)
                self.assertTrue(reply.body.startswith(b"data: 1\n\n"))
                last = reply.body.strip().split(b"\n\n")[-1].lstrip()
                self.assertTrue(last.startswith(name + b"data: "), last)
                self.assertIn("error", json.loads(last[len(name) + len(b"data: "):]).get("type", "error"))
                self.assertNotIn(b"[DONE]", reply.body)

    async def test_any_other_reply_that_breaks_is_not_completed(self):
        cluster = Cluster(a=await Server(plain(200, b"0123456789")[:-3]).start())
        with self.assertRaises(Abort):
            await cluster.ask("GET", "/openapi.json")

    async def test_a_full_replica_hands_over_and_its_answer_counts_where_all_are_full(self):
        full = await Server(plain(429, b"full", "Retry-After: 3")).start()
        free = await Server(plain(200, b"fine")).start()
        for word in range(6):
            self.assertEqual((await Cluster(full=full, free=free).ask(body=chat(str(word)))).body, b"fine")
        reply = await Cluster(full=full, full2=full).ask(body=chat())
        self.assertEqual((reply.status, reply.body, reply.headers[b"Retry-After"]), (429, b"full", b"3"))

    async def test_without_a_replica_it_is_503_after_a_while(self):
        for servers in ({}, {"a": types.SimpleNamespace(port=None)}):
            reply = await Cluster(**servers).ask(body=chat())
            self.assertEqual((reply.status, reply.headers[b"retry-after"]), (503, b"5"))
            self.assertEqual(json.loads(reply.body)["error"]["type"], "server_error")

    async def test_a_request_waits_for_a_server_that_restarts(self):
        server = await Server(plain(200, b"fine")).start()
        place = types.SimpleNamespace(port=None)
        asyncio.get_running_loop().call_later(0.2, lambda: setattr(place, "port", server.port))
        self.assertEqual((await Cluster(a=place).ask(body=chat())).body, b"fine")

    async def test_requests_of_one_session_meet_one_replica(self):
        servers = {name: await Server(plain(200, name.encode())).start() for name in "abc"}
        cluster, met = Cluster(**servers), {}
        for turn in range(3):
            for number in range(12):
                name = f"s{number}"
                reply = await cluster.ask(body=chat(f"turn {turn}", metadata={"session": name}))
                self.assertEqual(met.setdefault(name, reply.body), reply.body)
        self.assertEqual(len(set(met.values())), 3)


if __name__ == "__main__":
    unittest.main()
