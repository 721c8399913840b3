"""Many clients at once: the same bytes, refusals for the excess, others undisturbed."""

import asyncio
import random
import time

from load import ask, streamed
from serving import RawConnection, wait_until

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


def test_what_does_not_fit_the_queue_is_refused_at_once(serving):
    server = serving("slow", "--queue", "4", "--batch", "2", "--prefix-cache", "off")
    prompt = "x" * 20000

    async def rush():
        return await asyncio.gather(*(ask(server.port, "/v1/completions", streamed(prompt, 4)) for _ in range(24)))

    asked = asyncio.run(rush())
    taken = [one for one in asked if one.status == 200]
    refused = [one for one in asked if one.status == 429]
    assert len(taken) + len(refused) == 24 and len(taken) >= 4 and len(refused) >= 4
    assert all(one.complete for one in taken) and len({one.text for one in taken}) == 1
    assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
    first = min(one.ended for one in taken)
    assert sum(one.ended < first for one in refused) >= 4  # they did not wait for anybody
    assert wait_until(server.is_idle)
    assert server.complete("again")["choices"]  # there is room again


def test_queued_bytes_are_limited_too(serving):
    server = serving("slow", "--queue", "1000", "--queue-bytes", "16000", "--batch", "1", "--prefix-cache", "off")

    async def rush():
        return await asyncio.gather(*(ask(server.port, "/v1/completions", streamed("y" * 7500, 2))
                                      for _ in range(12)))

    statuses = [one.status for one in asyncio.run(rush())]
    assert 200 in statuses and 429 in statuses


def test_health_answers_during_a_long_prefill(serving):
    server = serving("slow", "--prefix-cache", "off")

    async def both():
        long = asyncio.create_task(ask(server.port, "/v1/completions", streamed("z" * 40000, 2)))
        await asyncio.sleep(0.1)
        times = []
        while not long.done():
            times.append((await ask(server.port, "/health", None, method="GET")).seconds)
            await asyncio.sleep(0.01)
        return await long, times

    long, times = asyncio.run(both())
    # A server that reads first and answers then would answer once; how fast it is, the soak measures.
    assert long.complete and len(times) >= 4


def test_300_idle_and_slow_connections_disturb_nobody(server):
    connections = [RawConnection(server) for _ in range(300)]
    try:
        for at, connection in enumerate(connections):
            if at % 3:
                connection.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
            if at % 3 == 2:
                connection.send('Content-Length: 1000\r\n\r\n{"prompt": "')
        assert wait_until(lambda: server.metrics()["lca_http_connections"] >= 300)
        begin = time.monotonic()
        for _ in range(20):
            assert server.complete("hello")["usage"]["completion_tokens"] >= 1
        assert time.monotonic() - begin < 10
    finally:
        for connection in connections:
            connection.close()
    assert wait_until(lambda: server.metrics()["lca_http_connections"] < 10)
