"""Beginnings that were read are not read again, and the reply does not change for it."""

DOCUMENT = "".join(f"Line {line}: the quick brown fox counts {line * line}.\n" for line in range(60))


def turn(text):
    return {"role": "user", "content": text}


def cached_of(reply):
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_second_question_about_a_document_reads_the_question_alone(server):
    conversation = [{"role": "system", "content": DOCUMENT}]
    first = server.chat([*conversation, turn("What is in line 3?")])
    second = server.chat([*conversation, turn("And in line 41?")])
    assert cached_of(first) < len(DOCUMENT) // 2
    assert cached_of(second) >= len(DOCUMENT)
    assert second["usage"]["prompt_tokens"] - cached_of(second) < 100


def test_a_follow_up_turn_reads_only_what_is_new(server):
    conversation = [turn(DOCUMENT[::-1])]
    first = server.chat(conversation, max_tokens=24)
    conversation += [{"role": "assistant", "content": first["choices"][0]["message"]["content"]}, turn("go on")]
    second = server.chat(conversation)
    new = second["usage"]["prompt_tokens"] - cached_of(second)
    assert cached_of(second) >= first["usage"]["prompt_tokens"] - 1
    assert new < 120


def test_a_hit_says_what_a_miss_says(serving, server):
    fields = {"max_tokens": 32, "logprobs": True, "top_logprobs": 2}
    system = [{"role": "system", "content": DOCUMENT.upper()}]
    server.chat([*system, turn("first question")], **fields)
    hit = server.chat([*system, turn("second question")], **fields)
    miss = serving("llama").chat([*system, turn("second question")], **fields)
    assert cached_of(hit) >= len(DOCUMENT) and cached_of(miss) == 0
    assert hit["choices"] == miss["choices"]


def test_with_the_cache_off_nothing_is_reused(plain):
    system = [{"role": "system", "content": DOCUMENT}]
    replies = [plain.chat([*system, turn("the same")]) for _ in range(2)]
    assert [cached_of(reply) for reply in replies] == [0, 0]
    assert replies[0]["choices"] == replies[1]["choices"]


def test_echo_reuses_nothing(server):
    text = "a text that is read twice " * 30
    for _ in range(2):
        assert cached_of(server.complete(text, echo=True, logprobs=1, max_tokens=1)) == 0


def test_the_budget_of_kept_beginnings_holds(serving):
    server = serving("slow", "--prefix-memory", "8MiB")
    for at in range(8):
        server.complete(f"{at}" * 2000, max_tokens=1)
    metrics = server.metrics()
    assert 0 < metrics["lca_cache_bytes"] <= 8 << 20
    assert metrics["lca_cache_dense_bytes"] > metrics["lca_cache_bytes"]


def test_kept_sessions_take_no_more_than_dense(serving, tmp_path):
    server = serving("slow", "--sessions", tmp_path / "sessions")
    conversation = []
    for text in ("first " * 30, "second " * 200, "third " * 20):
        conversation.append(turn(text))
        reply = server.chat(conversation, metadata={"session": "s"})
        conversation.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
    metrics = server.metrics()
    assert 0 < metrics["lca_cache_bytes"] < metrics["lca_cache_dense_bytes"]
