"""A server that speaks the routes of `lca serve` that the deployment's tests use, without a model.

Words are tokens. A reply is a fixed text chosen by the question, so that a reply that was cut can be
continued. The cache follows the index law: 4 sink tokens, groups of
16, a window of 64 to 79.
"""

import json
import pathlib
import re
import socket
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SINK, GROUP, WINDOW, ENTRY_BYTES = 4, 16, 64, 23040
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}\Z")

SHORT = ("The cache keeps the **newest tokens exact** and one representative for each older group. "
         "Three things follow:\n\n- memory grows slowly,\n- decoding stays fast,\n- a session fits in "
         "a small file.\n")
CODE = ("Two lines are enough:\n\n```sh\nlca serve smollm2 --sessions talks --compare --port 8080 "
        "--context 32768 --api-key-file key.txt\ncurl localhost:8080/v1/models\n```\n\nThe first starts "
        "the server, the second asks it which `model` it has.\n")
MARKUP = "<img src=x onerror=alert(1)> <script>alert(2)</script> [bad](javascript:alert(3)) is only text.\n"


def tokens_of(text):
    return re.findall(r"\s*\S+|\s+\Z", text)


def reply_of(question, dense):
    if "markup" in question:
        text = MARKUP
    elif "code" in question:
        text = CODE
    elif "long" in question:
        text = " ".join(f"word{number}" for number in range(400)) + "."
    else:
        text = SHORT
    return tokens_of(("Dense says: " if dense else "") + text)


def cache_of(count):
    sink = min(count, SINK)
    groups = max(0, (count - sink - WINDOW) // GROUP)
    window = count - sink - groups * GROUP
    return {"tokens": count, "groups": groups, "window": window, "sink": sink, "shared_bytes": 0,
            "bytes": (sink + groups + window) * ENTRY_BYTES, "dense_bytes": count * ENTRY_BYTES}


class Failure(Exception):
    def __init__(self, status, message, **headers):
        super().__init__(message)
        self.status, self.headers = status, headers


class MockServer:
    """start() and stop() may alternate: a restart keeps the port and what is in the session folder."""

    def __init__(self, port=0, sessions=None, key=None, compare=False, rate=60, prefill_rate=20000,
                 context=8192):
        self.port, self.key, self.compare = port, key, compare
        self.sessions = pathlib.Path(sessions) if sessions else None
        self.rate, self.prefill_rate, self.context = rate, prefill_rate, context
        # What came, clients that left before their answer was written, paths nobody serves.
        self.requests, self.gone, self.unknown = [], 0, []
        self.forks, self.continues = True, True
        self.loading, self.busy, self.queue, self.delay = False, 0, 0, 0
        self.server = None

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        self.caches = {}  # name → tokens, of sessions in memory
        self.connections = set()
        self.stopping = False
        if self.sessions:
            for path in self.sessions.glob("*.json"):
                self.caches[path.stem] = json.loads(path.read_text())["tokens"]
        owner = self

        class Handler(PageHandler):
            mock = owner

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self):
        """As a kill does: open streams end in the middle."""
        self.stopping = True
        self.server.shutdown()
        self.server.server_close()
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def path_of(self, name):
        return self.sessions / f"{name}.json"

    def save(self, name, tokens, messages):
        self.caches[name] = tokens
        if self.sessions:
            self.path_of(name).write_text(json.dumps({"tokens": tokens, "messages": messages}))

    def load(self, name):
        if not self.sessions or not NAME.match(name) or not self.path_of(name).exists():
            raise Failure(404, f"there is no session {name}")
        return json.loads(self.path_of(name).read_text())


class PageHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    mock = None

    def setup(self):
        super().setup()
        self.mock.connections.add(self.request)

    def handle(self):
        try:
            super().handle()
        except ConnectionError:
            pass  # reset between two requests

    def finish(self):
        self.mock.connections.discard(self.request)
        try:
            super().finish()
        except OSError:
            pass

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self.answer_or_leave("GET")

    def do_POST(self):
        self.answer_or_leave("POST")

    def do_DELETE(self):
        self.answer_or_leave("DELETE")

    def answer_or_leave(self, method):
        try:
            self.answer(method)
        except OSError:
            self.mock.gone += 1
            self.close_connection = True

    def answer(self, method):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        address = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(address.path)
        try:
            if path == "/health" and not self.mock.loading:
                return self.send(200, {"status": "ok"})
            if self.mock.loading:
                raise Failure(503, "the model is loading")
            if self.mock.key and self.headers.get("Authorization") != f"Bearer {self.mock.key}":
                raise Failure(401, "the key is missing or wrong")
            self.mock.requests.append((method, self.path, json.loads(body) if body else None))
            self.route(method, path, dict(urllib.parse.parse_qsl(address.query)),
                       json.loads(body) if body else None)
        except Failure as error:
            self.send(error.status, {"error": {"message": str(error), "type": "invalid_request_error"}},
                      error.headers)

    def send(self, status, value, headers=()):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name in headers:
            self.send_header(name.replace("_", "-"), headers[name])
        self.end_headers()
        self.wfile.write(data)

    def route(self, method, path, query, body):
        mock = self.mock
        parts = path.strip("/").split("/")
        if method == "GET" and path == "/page-config":
            compare = {"model": "mock-dense"} if mock.compare else None
            return self.send(200, {"model": "mock", "context": mock.context, "compare": compare,
                                   "sessions": mock.sessions is not None, "group": GROUP, "max_body": 1 << 24,
                                   "continues": mock.continues})
        if method == "POST" and path == "/v1/chat/completions":
            return self.chat(body)
        if method == "GET" and path == "/v1/sessions":
            return self.send(200, {"data": [self.session(file) for file in sorted(mock.sessions.glob("*.json"))]})
        if parts[:2] == ["v1", "sessions"] and len(parts) >= 3:
            return self.session_act(method, parts, body)
        if method == "GET" and parts[0] == "cache" and len(parts) == 2:
            return self.cache(parts[1], query)
        mock.unknown.append(path)
        raise Failure(404, f"{path} is no route")

    def session(self, file):
        tokens = len(json.loads(file.read_text())["tokens"])
        return {"name": file.stem, "tokens": tokens, "bytes": cache_of(tokens)["bytes"],
                "saved": int(file.stat().st_mtime)}

    def session_act(self, method, parts, body):
        mock, name = self.mock, parts[2]
        kept = mock.load(name)
        if method == "DELETE" and len(parts) == 3:
            mock.path_of(name).unlink()
            mock.caches.pop(name, None)
            return self.send(200, {"deleted": True})
        if method == "GET" and parts[3:] == ["messages"]:
            return self.send(200, {"messages": kept["messages"]})
        if method == "POST" and parts[3:] == ["fork"]:
            if not mock.forks:
                raise Failure(400, "nothing marks this message")
            if mock.path_of(body["to"]).exists():
                raise Failure(409, f"there is a session {body['to']}")
            if not 0 < body["at_message"] <= len(kept["messages"]):
                raise Failure(400, f"at_message is not between 1 and {len(kept['messages'])}")
            messages = kept["messages"][:body["at_message"]]
            mock.save(body["to"], self.prompt(messages), messages)
            return self.send(200, {"name": body["to"]})
        raise Failure(404, "no such route")

    def cache(self, name, query):
        tokens = self.mock.caches.get(name)
        if tokens is None:
            raise Failure(404, f"there is no cache {name}")
        reply = cache_of(len(tokens))
        if "text" in query:
            first, last = map(int, query["text"].split("-"))
            if last < first or last - first >= 4096:
                raise Failure(400, "text is FIRST-LAST, at most 4096 tokens")
            reply["text"] = {"first": first, "tokens": list(tokens[first:last + 1])}
        self.send(200, reply)

    @staticmethod
    def prompt(messages):
        tokens = []
        for message in messages:
            tokens += [f"<|{message['role']}|>"] + tokens_of(message["content"])
        return tokens

    def chat(self, body):
        mock, messages = self.mock, body["messages"]
        dense = mock.compare and body["model"] == "mock-dense"
        name = None if dense else body.get("metadata", {}).get("session")
        prompt = self.prompt(messages)
        if mock.busy > 0:
            mock.busy -= 1
            raise Failure(429, "too many requests wait", Retry_After="3")
        if len(prompt) > mock.context:
            raise Failure(400, f"the prompt has {len(prompt)} tokens, the context {mock.context}")
        question = [one["content"] for one in messages if one["role"] == "user"][-1]
        reply = reply_of(question, dense)
        time.sleep(mock.delay)
        if body.get("continue_final_message") and mock.continues:
            written = len(tokens_of(messages[-1]["content"]))
            if "".join(reply[:written]) != messages[-1]["content"]:
                raise Failure(400, "the last message is not the beginning of the reply")
            reply = reply[written:]
        else:
            prompt.append("<|assistant|>")
        old = mock.caches.get(name, [])
        cached = next((at for at, (a, b) in enumerate(zip(old, prompt)) if a != b), min(len(old), len(prompt)))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for ahead in range(mock.queue, 0, -1):
            self.chunk(f": queued {ahead}\n\n")
            time.sleep(0.6)
        done = cached
        while True:
            if name:
                mock.caches[name] = prompt[:done]
            left = (len(prompt) - done) / mock.prefill_rate
            self.chunk(f": reading {done} of {len(prompt)} tokens, {left:.1f} s left\n\n")
            if done == len(prompt):
                break
            step = min(512, len(prompt) - done)
            time.sleep(step / mock.prefill_rate)
            done += step
        limit = body.get("max_tokens") or len(reply)
        for written, token in enumerate(reply[:limit]):
            time.sleep(1 / mock.rate)
            self.event({"choices": [{"index": 0, "delta": {"content": token}, "finish_reason": None}]})
            if name:
                mock.caches[name] = prompt + reply[:written + 1]
            if "fail" in question and written == 5:
                return self.end({"error": {"message": "the step failed", "type": "server_error"}})
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length" if limit < len(reply) else "stop"}]})
        if name:
            text = "".join(reply[:limit])
            kept = [dict(one) for one in messages]
            if body.get("continue_final_message"):
                kept[-1]["content"] += text
            else:
                kept.append({"role": "assistant", "content": text})
            mock.save(name, prompt + reply[:limit], kept)
        self.end({"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(reply[:limit]),
                                           "prompt_tokens_details": {"cached_tokens": cached}}})

    def chunk(self, text):
        if self.mock.stopping:
            raise ConnectionAbortedError
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, value):
        self.chunk(f"data: {json.dumps({'model': 'mock', **value})}\n\n")

    def end(self, value):
        self.event(value)
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
