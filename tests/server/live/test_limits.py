"""What is refused, with which status, and in whose dialect."""

import json
import os
import shutil
import subprocess
import time

import pytest

from serving import PROGRAM, RawConnection

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
MESSAGES = {**CHAT, "model": "m"}


def is_openai_error(reply):
    error = reply.json()["error"]
    return set(error) == {"message", "type", "param", "code"} and reply.headers["content-type"] == "application/json"


def is_anthropic_error(reply):
    body = reply.json()
    return body["type"] == "error" and {"type", "message"} <= set(body["error"])


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(server):
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 5000}]}),
                       ("/v1/completions", {"prompt": "x" * 5000}),
                       ("/v1/completions", {"prompt": [120] * 5000}),
                       ("/v1/responses", {"input": "x" * 5000}),
                       ("/v1/messages", {"messages": [{"role": "user", "content": "x" * 5000}], "max_tokens": 5})):
        reply = server.post(path, body)
        assert reply.status == 400, path
        digits = reply.message().replace(",", "")
        assert "4096" in digits and ("5000" in digits or "50" in digits), reply.message()


def test_a_reply_ends_where_the_context_ends(server):
    reply = server.complete("x" * 4000, max_tokens=1000, ignore_eos=True)
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] <= 4097


def test_errors_come_in_the_dialect_of_the_route(server):
    assert is_openai_error(server.post("/v1/chat/completions", {}))
    assert is_openai_error(server.post("/v1/completions", {"prompt": 7}))
    assert is_openai_error(server.post("/v1/responses", {"input": "x", "store": True}))
    assert is_anthropic_error(server.post("/v1/messages", {}))
    assert is_anthropic_error(server.post("/v1/messages/count_tokens", {"messages": 3}))
    assert is_openai_error(server.get("/v1/nothing"))
    assert is_anthropic_error(server.get("/v1/nothing", {"anthropic-version": "2023-06-01"}))


@pytest.mark.parametrize("path, body", [("/v1/chat/completions", CHAT), ("/v1/messages", MESSAGES)])
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"messages": [' * 3000, b'{"a":1}{"b":2}'])
def test_bodies_that_are_no_request_are_400(server, path, body, raw):
    reply = server.post(path, raw)
    assert reply.status == 400
    assert is_anthropic_error(reply) if path == "/v1/messages" else is_openai_error(reply)
    assert server.post(path, body).status == 200


def test_fields_that_are_not_honoured_are_named(server):
    for field, value in (("frequency_penalty", 1), ("logit_bias", {"5": 1}), ("n", 0), ("temperature", 3),
                         ("top_logprobs", 21), ("max_tokens", 0), ("stop", [""])):
        reply = server.post("/v1/chat/completions", {**CHAT, field: value})
        assert reply.status == 400 and field in reply.message() + str(reply.json()["error"]["param"]), field
    assert server.post("/v1/chat/completions", {**CHAT, "nobody_defines_this": 1, "user": "u", "store": True,
                                                "frequency_penalty": 0}).status == 200
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    assert server.post("/v1/chat/completions", {"messages": image}).status == 400


def test_an_error_inside_a_stream_is_before_it_or_its_last_event(server):
    stream = server.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 5000}]})
    assert stream.status in (200, 400)
    if stream.status == 200:
        *_, (_, last) = list(stream)
        assert "error" in json.loads(last)


def test_methods_and_paths(server):
    reply = server.get("/v1/chat/completions")
    assert reply.status == 405 and "POST" in reply.headers["allow"]
    assert server.request("PUT", "/health").status == 405
    assert server.request("HEAD", "/health").status == 200
    assert server.get("/no/such/path").status == 404
    assert server.get("/v1/models/none").status == 404


def test_bodies_and_headers_that_are_too_long(serving):
    server = serving("llama", "--max-body", "64KiB")
    assert server.post("/v1/completions", {"prompt": "x" * 70000}).status == 413
    with RawConnection(server) as connection:
        connection.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert connection.read().status == 413
    with RawConnection(server) as connection:
        connection.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + "a" * 200_000)
        assert connection.read().status == 431


def test_a_slow_sender_gets_408(server):
    with RawConnection(server) as connection:
        connection.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
        begin = time.monotonic()
        while time.monotonic() - begin < 25:  # a byte now and then does not help
            time.sleep(1)
            try:
                connection.send("x")
            except OSError:
                break
            connection.socket.settimeout(0.01)
            try:
                if connection.socket.recv(1, 2):  # MSG_PEEK
                    break
            except TimeoutError:
                pass
        connection.socket.settimeout(5)
        assert connection.read().status == 408
        assert time.monotonic() - begin < 20


def test_pipelined_requests_are_answered_in_order(server):
    one = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    two = "GET /no/such HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with RawConnection(server) as connection:
        connection.send(one + two + one)
        assert [connection.read().status for _ in range(3)] == [200, 404, 200]


def test_chunked_bodies_are_read(server):
    body = json.dumps({"prompt": "abc", "max_tokens": 2}).encode()
    with RawConnection(server) as connection:
        connection.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 7):
            part = body[at:at + 7]
            connection.send(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        connection.send("0\r\n\r\n")
        assert connection.read().status == 200


def test_foreign_hosts_and_origins_are_403(server):
    assert server.get("/health", {"Host": "evil.example"}).status == 403
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1},
                       {"Origin": "http://evil.example"}).status == 403
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, {"Origin": server.url}).status == 200


def test_a_key_guards_all_but_health_and_page(serving, tmp_path):
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    server = serving("llama", "--api-key-file", file)
    assert server.get("/health").status == 200 and server.get("/").status == 200
    for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/sessions"):
        assert server.get(path).status == 401
    assert is_anthropic_error(server.post("/v1/messages", MESSAGES))
    assert server.post("/v1/messages", MESSAGES, {"x-api-key": "s3cret"}).status == 200
    assert server.get("/v1/models", {"Authorization": "Bearer s3cret"}).status == 200
    assert server.get("/v1/models", {"Authorization": "Bearer s3cre"}).status == 401
    by_environment = serving("llama", environment={"LCA_API_KEY": "other"})
    assert by_environment.get("/v1/models").status == 401
    assert by_environment.get("/v1/models", {"x-api-key": "other"}).status == 200


def test_binding_beyond_loopback_wants_a_key(models):
    done = subprocess.run([PROGRAM, "serve", models["llama"], "--host", "0.0.0.0", "--port", "0"],
                          capture_output=True, text=True, timeout=30)
    assert done.returncode != 0 and "key" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_port_that_is_taken_is_said_in_one_line(server, models):
    done = subprocess.run([PROGRAM, "serve", models["llama"], "--port", str(server.port)], capture_output=True,
                          text=True, timeout=30)
    assert done.returncode != 0 and str(server.port) in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_other_model_names_are_404_where_it_is_strict(serving):
    server = serving("llama", "--strict-model", "--name", "mine")
    assert server.post("/v1/chat/completions", {**CHAT, "model": "other"}).status == 404
    assert server.post("/v1/chat/completions", {**CHAT, "model": "mine"}).json()["model"] == "mine"


def test_tokens_go_to_text_and_back(server):
    tokens = server.post("/tokenize", {"content": "héllo"}).json()["tokens"]
    assert tokens == list("héllo".encode())
    assert server.post("/detokenize", {"tokens": tokens}).json()["content"] == "héllo"


def test_no_prompt_is_in_the_log(server):
    server.complete("a very particular sentence")
    assert "particular" not in server.said()


def test_a_model_that_cannot_be_loaded_ends_the_server_with_one_line(models, tmp_path):
    broken = shutil.copytree(models["llama"], tmp_path / "broken")
    os.truncate(broken / "model.safetensors", 1000)
    for _ in range(5):
        done = subprocess.run([PROGRAM, "serve", broken, "--port", "0"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and done.stderr.count("lca: error: ") == 1, (done.returncode, done.stderr)


def test_an_empty_key_is_no_key(models):
    done = subprocess.run([PROGRAM, "serve", models["llama"], "--port", "0", "--api-key", ""], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 2 and "--api-key is empty" in done.stderr


@pytest.mark.parametrize("flags, limit, dense", [
    # A quarter is the dense instance's; of either part a quarter is for kept beginnings, or what is said.
    (("--memory", "128MiB"), 72, 24), (("--memory", "192MiB", "--prefix-memory", "64MiB"), 96, 32),
    (("--memory", "128MiB", "--prefix-cache", "off"), 96, 32)])
def test_two_instances_take_the_memory_of_one(serving, flags, limit, dense):
    server = serving("slow", "--compare", *flags)
    assert server.metrics()["lca_memory_limit_bytes"] == limit * 2**20
    reply = server.post("/v1/completions", {"model": "tiny-slow-dense", "prompt": "x", "max_tokens": 60000})
    assert reply.status == 400 and f" {dense}.0 MiB are there" in reply.message(), reply.body
    for name in ("tiny-slow", "tiny-slow-dense"):
        assert server.complete("short", model=name)["model"] == name
