"""Clients that leave, wherever their request is."""

import asyncio
import json
import random

from load import Left, ask, endless, streamed
from serving import RawConnection, Stream, wait_until


def cancelled(server):
    return server.metrics()["lca_requests_cancelled_total"]


def reply_tokens(server):
    return server.metrics()["lca_reply_tokens_total"]


def test_a_client_that_leaves_while_its_prompt_is_read_frees_its_slot(serving):
    server = serving("slow", "--prefix-cache", "off")
    stream = Stream(server, "/v1/completions", endless("p" * 5000))
    assert stream.reply.readline().startswith(b": reading")  # the prompt is being read
    stream.leave()
    assert wait_until(server.is_idle, 60)
    assert wait_until(lambda: cancelled(server) == 1, 60) and reply_tokens(server) < 16 * 60000


def test_a_client_that_leaves_in_the_middle_of_its_reply_frees_its_slot(serving):
    server = serving("slow")
    stream = Stream(server, "/v1/completions", endless())
    next(stream.chunks())
    stream.leave()
    assert wait_until(server.is_idle, 60)
    assert wait_until(lambda: cancelled(server) == 1, 60) and 0 < reply_tokens(server) < 16 * 60000


def test_a_client_that_asked_for_no_stream_and_leaves_frees_its_slot(serving):
    server = serving("slow")
    with RawConnection(server) as connection:
        body = json.dumps({**endless(), "stream": False})
        connection.send(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n")
        connection.send(body)
        assert wait_until(lambda: server.metrics()["lca_requests_running"] == 1, 60)
    assert wait_until(server.is_idle, 60)
    assert wait_until(lambda: cancelled(server) == 1, 60) and reply_tokens(server) < 16 * 60000


def test_a_client_that_leaves_the_queue_is_never_taken_up(serving):
    server = serving("slow", "--batch", "1", "--prefix-cache", "off")
    with Stream(server, "/v1/completions", endless()) as first:
        next(first.chunks())

        async def leave_early():
            task = asyncio.create_task(ask(server.port, "/v1/completions", {"prompt": "q", "max_tokens": 4}))
            while server.metrics()["lca_requests_queued"] == 0:
                await asyncio.sleep(0.01)
            task.cancel()

        asyncio.run(asyncio.wait_for(leave_early(), 60))
        assert wait_until(lambda: server.metrics()["lca_requests_queued"] == 0, 60)
        assert wait_until(lambda: cancelled(server) == 1, 60) and server.metrics()["lca_requests_running"] == 1
    assert wait_until(server.is_idle, 60)


def test_30_clients_that_leave_at_random_moments_leave_nothing_behind(serving):
    server = serving("slow", "--batch", "4", "--prefix-cache", "off")
    pick = random.Random(11)

    async def one():
        stay = pick.randrange(0, 12)

        def on_piece(asked, _):
            if len(asked.pieces) >= stay:
                raise Left

        body = streamed("w" * pick.choice([10, 2000, 6000]), 400, ignore_eos=True)
        asked = asyncio.create_task(ask(server.port, "/v1/completions", body, on_piece=on_piece))
        if stay == 0:
            await asyncio.sleep(pick.random())
            asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    async def all_of_them():
        await asyncio.gather(*(one() for _ in range(30)))

    server.complete("warm" * 1500, max_tokens=4)  # activations and scratch have their size then
    before = server.metrics()["lca_memory_bytes"]
    asyncio.run(all_of_them())
    assert wait_until(server.is_idle, 60)
    metrics = server.metrics()
    assert metrics["lca_memory_bytes"] <= before * 1.1
    assert wait_until(lambda: server.metrics()["lca_http_connections"] <= 1)
    assert server.complete("still here", max_tokens=2)["choices"]
