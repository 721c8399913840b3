"""Clients that leave, wherever their request is."""

import asyncio
import random

from load import Left, ask, streamed
from serving import Stream, wait_until


def cancelled(server):
    return server.metrics()["lca_requests_cancelled_total"]


def test_a_client_that_leaves_while_its_prompt_is_read_frees_its_slot(serving):
    server = serving("slow", "--prefix-cache", "off")
    stream = Stream(server, "/v1/completions", streamed("p" * 60000, 8))
    assert wait_until(lambda: server.metrics()["lca_requests_running"] == 1)
    stream.leave()
    assert wait_until(server.is_idle, 1.0)
    assert cancelled(server) == 1


def test_a_client_that_leaves_in_the_middle_of_its_reply_frees_its_slot(serving):
    server = serving("slow")
    stream = Stream(server, "/v1/completions", streamed("p", 20000, ignore_eos=True))
    next(stream.chunks())
    stream.leave()
    assert wait_until(server.is_idle, 0.75)
    assert cancelled(server) == 1


def test_a_client_that_leaves_the_queue_is_never_taken_up(serving):
    server = serving("slow", "--batch", "1", "--prefix-cache", "off")
    with Stream(server, "/v1/completions", streamed("p", 20000, ignore_eos=True)) as first:
        next(first.chunks())

        async def leave_early():
            task = asyncio.create_task(ask(server.port, "/v1/completions", {"prompt": "q", "max_tokens": 4}))
            await asyncio.sleep(0.3)
            queued = server.metrics()["lca_requests_queued"]
            task.cancel()
            return queued

        assert asyncio.run(leave_early()) == 1
        assert wait_until(lambda: server.metrics()["lca_requests_queued"] == 0, 1.0)
        assert server.metrics()["lca_requests_running"] == 1
    assert wait_until(server.is_idle, 1.0)


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
    assert wait_until(server.is_idle, 5)
    metrics = server.metrics()
    assert metrics["lca_memory_bytes"] <= before * 1.1
    assert wait_until(lambda: server.metrics()["lca_http_connections"] <= 1)
    assert server.complete("still here", max_tokens=2)["choices"]
