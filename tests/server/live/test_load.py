"""Many clients at once: the same bytes, refusals for the excess, others undisturbed."""

import asyncio
import random

from load import ask, endless, streamed
from serving import RawConnection, Stream, wait_until

LETTERS = "abcdefghijklmnopqrstuvwxyz ,.\n"


def requests_make(count, seed=5):
    """Chats and completions of different lengths and samplers."""
    pick = random.Random(seed)
    made = []
    for at in range(count):
        text = "".join(pick.choices(LETTERS, k=pick.choice([3, 40, 200, 1300])))
        fields = {"max_tokens": pick.choice([1, 7, 24]), "temperature": pick.choice([0, 0.8]), "seed": at}
        made.append(("/v1/completions", {"prompt": text, **fields}) if at % 2 else
                    ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields}))
    return made


def test_64_clients_get_the_bytes_that_each_gets_alone(plain):
    requests = requests_make(64)

    async def alone():
        return [await ask(plain.port, path, body) for path, body in requests]

    async def together():
        return await asyncio.gather(*(ask(plain.port, path, {**body, "stream": at % 4 < 2})
                                      for at, (path, body) in enumerate(requests)))

    first, second = asyncio.run(alone()), asyncio.run(together())
    assert [one.status for one in first] == [200] * 64
    assert [one.complete for one in second] == [True] * 64, [one.problem for one in second if not one.complete]
    assert [one.text for one in second] == [one.text for one in first]
    assert [one.finish for one in second] == [one.finish for one in first]


async def queue_fill(server, body, count):
    """So many requests, one after the other, each in the queue before the next is sent."""
    tasks = []
    for at in range(count):
        tasks.append(asyncio.create_task(ask(server.port, "/v1/completions", body)))
        while server.metrics()["lca_requests_queued"] <= at:
            await asyncio.sleep(0.01)
    return tasks


def test_what_does_not_fit_the_queue_is_refused_at_once(serving):
    server = serving("slow", "--queue", "4", "--batch", "1", "--prefix-cache", "off")
    first = Stream(server, "/v1/completions", endless())
    next(first.chunks())

    async def rush():
        body = streamed("x" * 500, 4)
        waiting = await queue_fill(server, body, 4)
        refused = await asyncio.gather(*(ask(server.port, "/v1/completions", body) for _ in range(12)))
        assert not any(task.done() for task in waiting)  # nobody's place was taken, and nobody waited for one
        first.leave()
        return await asyncio.gather(*waiting), refused

    taken, refused = asyncio.run(asyncio.wait_for(rush(), 120))
    assert [one.status for one in refused] == [429] * 12
    assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
    assert all(one.complete for one in taken) and len({one.text for one in taken}) == 1
    assert wait_until(server.is_idle, 60)
    assert server.complete("again")["choices"]  # there is room again


def test_queued_bytes_are_limited_too(serving):
    server = serving("slow", "--queue", "1000", "--queue-bytes", "16000", "--batch", "1", "--prefix-cache", "off")
    with Stream(server, "/v1/completions", endless()) as first:
        next(first.chunks())

        async def rush():
            waiting = await queue_fill(server, streamed("y" * 7500, 2), 2)
            refused = await ask(server.port, "/v1/completions", streamed("y" * 7500, 2))
            small = await queue_fill(server, streamed("y", 2), 3)
            for task in (*waiting, *small):
                task.cancel()
            return refused

        assert asyncio.run(asyncio.wait_for(rush(), 120)).status == 429


def test_health_answers_while_a_prompt_is_read(serving):
    server = serving("slow", "--prefix-cache", "off")

    async def both():
        long = asyncio.create_task(ask(server.port, "/v1/completions", streamed("z" * 30000, 2)))
        while server.metrics()["lca_requests_running"] == 0:
            await asyncio.sleep(0.005)
        health = await ask(server.port, "/health", None, method="GET")
        return await long, health

    # That it was answered before the prompt was read; how fast, the soak measures.
    long, health = asyncio.run(asyncio.wait_for(both(), 120))
    assert long.complete and health.status == 200 and health.ended < long.pieces[0]


def test_300_idle_and_slow_connections_disturb_nobody(server):
    connections = [RawConnection(server) for _ in range(300)]
    try:
        for at, connection in enumerate(connections):
            if at % 3:
                connection.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
            if at % 3 == 2:
                connection.send('Content-Length: 1000\r\n\r\n{"prompt": "')
        assert wait_until(lambda: server.metrics()["lca_http_connections"] >= 300, 60)
        for _ in range(20):
            assert server.complete("hello")["usage"]["completion_tokens"] >= 1
    finally:
        for connection in connections:
            connection.close()
    assert wait_until(lambda: server.metrics()["lca_http_connections"] < 10, 60)
