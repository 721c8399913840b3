"""Sessions survive the server."""

import signal
import time

from load import endless
from serving import Stream, wait_until

FIELDS = {"max_tokens": 12, "logprobs": True, "top_logprobs": 4}


def turn(text):
    return {"role": "user", "content": text}


def talk(server, name, conversation, text, **fields):
    """One turn of a session; the conversation grows."""
    conversation.append(turn(text))
    reply = server.chat(conversation, metadata={"session": name}, **{**FIELDS, **fields})
    conversation.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
    return reply


def names_of(server):
    return {session["name"]: session for session in server.get("/v1/sessions").json()["data"]}


def test_a_session_survives_kill_9_with_its_tokens_and_logits(serving, tmp_path):
    server = serving("llama", "--sessions", tmp_path / "sessions", "--precision", "f32")
    conversation = []
    talk(server, "kept", conversation, "Remember this: " + "blue " * 300)
    talk(server, "kept", conversation, "What was it?")
    assert server.post("/v1/sessions/kept/fork", {"to": "twin"}).status == 200
    tokens = names_of(server)["kept"]["tokens"]
    expected = talk(server, "twin", list(conversation), "Say it again.")
    server.kill()
    server.start()
    assert names_of(server)["kept"]["tokens"] == tokens
    resumed = talk(server, "kept", list(conversation), "Say it again.")
    assert resumed["choices"] == expected["choices"]  # texts and log-probabilities
    assert resumed["usage"] == expected["usage"]
    assert resumed["usage"]["prompt_tokens_details"]["cached_tokens"] >= tokens - 1


def test_routes_of_sessions(serving, tmp_path):
    server = serving("llama", "--sessions", tmp_path / "sessions")
    conversation = []
    talk(server, "one", conversation, "hello " * 300)
    by_header = server.chat([turn("hi")], headers={"X-SMG-Routing-Key": "two"})
    assert by_header["choices"] and set(names_of(server)) == {"one", "two"}
    cache = server.get("/cache/one").json()
    assert set(cache) >= {"tokens", "groups", "window", "sink", "shared_bytes", "bytes", "dense_bytes"}
    assert cache["groups"] > 0 and cache["bytes"] < cache["dense_bytes"]
    fork = server.post("/v1/sessions/one/fork", {"to": "three", "at_message": 1})
    assert fork.status == 200, fork.body
    assert names_of(server)["three"]["tokens"] <= names_of(server)["one"]["tokens"]
    assert server.request("DELETE", "/v1/sessions/one").status in (200, 204)
    assert set(names_of(server)) == {"two", "three"}
    assert server.get("/cache/one").status == 404
    assert server.request("DELETE", "/v1/sessions/one").status == 404
    assert server.post("/v1/sessions/nobody/fork", {"to": "x"}).status == 404
    for name in ("..", ".hidden", "a%2Fb", "x" * 65):
        assert server.request("DELETE", f"/v1/sessions/{name}").status in (400, 404)
    bad = server.post("/v1/chat/completions", {"messages": [turn("x")], "metadata": {"session": "../up"}})
    assert bad.status == 400


def test_where_text_and_session_differ_the_text_wins(serving, tmp_path):
    server = serving("llama", "--sessions", tmp_path / "sessions", "--precision", "f32")
    conversation = []
    talk(server, "s", conversation, "The first text. " * 20)
    other = [turn("The first text. " * 20), {"role": "assistant", "content": "not what was said"}, turn("next")]
    in_session = server.chat(other, metadata={"session": "s"}, **FIELDS)
    fresh = serving("llama", "--precision", "f32").chat(other, **FIELDS)
    assert in_session["choices"][0]["message"] == fresh["choices"][0]["message"]


def test_two_servers_share_a_folder(serving, tmp_path):
    first = serving("llama", "--sessions", tmp_path / "sessions")
    second = serving("llama", "--sessions", tmp_path / "sessions")
    conversation = []
    for at, server in enumerate([first, second, first, second]):
        reply = talk(server, "shared", conversation, f"turn {at} " * 20)
        if at:
            new = reply["usage"]["prompt_tokens"] - reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert new < 320
    assert names_of(first)["shared"]["tokens"] == names_of(second)["shared"]["tokens"]


def test_a_session_that_runs_is_busy_for_others(serving, tmp_path):
    server = serving("slow", "--sessions", tmp_path / "sessions")
    body = {"messages": [turn("x")], "metadata": {"session": "busy"}, "temperature": 0, "ignore_eos": True}
    with Stream(server, "/v1/chat/completions", {**body, "max_tokens": 60000, "n": 16, "stream": True}) as stream:
        next(stream.chunks())
        begin = time.monotonic()
        refused = server.post("/v1/chat/completions", {**body, "max_tokens": 1})
        assert refused.status == 409 and time.monotonic() - begin >= 2
        assert server.request("DELETE", "/v1/sessions/busy").status == 409
        assert server.get("/cache/busy").json()["tokens"] > 0
    assert wait_until(server.is_idle, 60)
    assert server.post("/v1/chat/completions", {**body, "max_tokens": 1}).status == 200


def test_a_fork_does_not_write_over_another_session(serving, tmp_path):
    server = serving("llama", "--sessions", tmp_path / "sessions")
    talk(server, "one", [], "hello")
    talk(server, "two", [], "something else")
    before = names_of(server)
    refused = server.post("/v1/sessions/one/fork", {"to": "two"})
    assert refused.status == 409 and "two" in refused.message()
    assert names_of(server) == before


def test_a_file_of_another_model_is_409_and_stays(serving, tmp_path):
    first = serving("llama", "--sessions", tmp_path / "sessions")
    talk(first, "kept", [], "hello")
    other = serving("slow", "--sessions", tmp_path / "sessions")
    body = {"messages": [turn("x")], "metadata": {"session": "kept"}, "max_tokens": 1}
    for stream in (False, True):
        assert other.post("/v1/chat/completions", {**body, "stream": stream}).status == 409
    assert names_of(first)["kept"]["tokens"] > 0


def test_sigterm_lets_a_reply_end_and_saves_it(serving, tmp_path):
    server = serving("slow", "--sessions", tmp_path / "sessions")
    stream = server.stream("/v1/chat/completions", {"messages": [turn("hello")], "max_tokens": 300,
                                                    "ignore_eos": True, "metadata": {"session": "last"}})
    next(stream.chunks())
    server.process.send_signal(signal.SIGTERM)
    assert len(stream.text()) > 100
    assert server.process.wait(40) == 0  # a second signal would end it at once
    server.start()
    assert names_of(server)["last"]["tokens"] > 300


def test_who_comes_while_the_server_drains_is_told_so(serving):
    server = serving("slow", "--drain", "600")
    chat = {"messages": [turn("x")], "max_tokens": 1}

    def drains():
        try:
            return server.get("/health").status == 503
        except OSError:  # it was connected when draining began, and had asked nothing yet
            return False

    with Stream(server, "/v1/completions", endless()) as stream:
        next(stream.chunks())
        server.process.send_signal(signal.SIGTERM)
        assert wait_until(drains, 60)
        openai, anthropic = server.post("/v1/chat/completions", chat), server.post("/v1/messages", chat)
        assert openai.status == anthropic.status == 503
        assert openai.json()["error"]["type"] == "server_error" and anthropic.json()["type"] == "error"
        assert int(openai.headers["retry-after"]) >= 1
        next(stream.chunks())  # what runs goes on
    assert server.process.wait(60) == 0


def test_a_fork_where_nothing_is_marked_is_read_again(serving, tmp_path):
    server = serving("slow", "--sessions", tmp_path, "--precision", "f32")
    talk = [{"role": "user", "content": "a short one"}]
    for text in ("x" * 5000, "go on", "and on"):
        reply = server.chat(talk, metadata={"session": "long"})
        talk += [{"role": "assistant", "content": reply["choices"][0]["message"]["content"]},
                 {"role": "user", "content": text}]
    for at, name in ((0, "none"), (1, "one"), (2, "two")):
        fork = server.post("/v1/sessions/long/fork", {"to": name, "at_message": at})
        assert fork.status == 200, fork.body
        assert len(server.get(f"/v1/sessions/{name}/messages").json()["messages"]) == at
        assert server.get(f"/cache/{name}").json()["tokens"] < 200
    branch = [*talk[:2], {"role": "user", "content": "another question"}]
    forked = server.chat(branch, metadata={"session": "two"})
    assert forked["choices"] == server.chat(branch, metadata={"session": "fresh"})["choices"]
    assert server.get("/cache/two").json()["tokens"] > 20
