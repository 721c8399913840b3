"""/metrics counts what happens."""

import re

SAMPLE = re.compile(r'[a-z_]+(\{([a-z_]+="[^"\\\n]*",?)+\})? (\d+(\.\d+)?(e[+-]?\d+)?|\+Inf|NaN)$')


def test_every_line_is_prometheus_text(server):
    server.complete("hello")
    reply = server.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    named = set()
    for line in reply.body.decode().splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in named, f"{name} has two types"
            named.add(name)
        elif not line.startswith("# HELP "):
            assert SAMPLE.match(line), line
            assert re.match(r"[a-z_]+", line)[0] in named or re.sub(
                r"_(bucket|sum|count)$", "", re.match(r"[a-z_]+", line)[0]) in named, line


def test_counters_follow_requests(server):
    before = server.metrics()
    reply = server.complete("count this prompt", max_tokens=5, ignore_eos=True)
    after = server.metrics()

    def grown(name):
        return after[name] - before.get(name, 0)

    assert grown("lca_requests_finished_total") == 1
    assert grown("lca_prompt_tokens_total") == reply["usage"]["prompt_tokens"] == 17
    assert grown("lca_reply_tokens_total") == 5
    assert grown("lca_time_to_first_token_seconds_count") == 1
    assert grown("lca_time_between_tokens_seconds_count") == 4


def test_cached_tokens_and_bytes_are_shown(server):
    messages = [{"role": "system", "content": "metrics " * 200}, {"role": "user", "content": "x"}]
    server.chat(messages)
    before = server.metrics()
    server.chat(messages)
    after = server.metrics()
    assert after["lca_cached_tokens_total"] - before["lca_cached_tokens_total"] > 1500
    assert 0 < after["lca_cache_bytes"] <= after["lca_cache_dense_bytes"]


def test_progress_is_told_while_a_long_prompt_is_read(serving):
    server = serving("slow", "--prefix-cache", "off")
    stream = server.stream("/v1/completions", {"prompt": "p" * 20000, "max_tokens": 2})
    stream.text()
    assert any(re.search(r"reading [\d,]+ of [\d,]+ tokens", comment) for comment in stream.comments), stream.comments
