"""A running `lca serve`, and ways to talk to it with the standard library alone.

`Serving` starts the program on a free port, waits until it is healthy, and stops or kills it; `RawConnection` sends
bytes as they are; `Stream` reads server-sent events as they come. load.py has the client for many requests at once.
"""

import dataclasses
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = pathlib.Path(os.environ.get("LCA_PROGRAM") or ROOT / "build" / "release" / "bin" / "lca")
ADDRESS = re.compile(r"at http://(\S+):(\d+)")


def wait_until(condition, seconds=10.0, every=0.02):
    """The first true value of a function within a time, else its last value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(every)


@dataclasses.dataclass
class Reply:
    status: int
    headers: dict  # by lower-case names
    body: bytes

    def json(self):
        return json.loads(self.body)

    def message(self):
        """The words of an error, in any dialect."""
        return self.json()["error"]["message"]


class Serving:
    """A server with flags; use as a context manager. `log` keeps what it said over restarts."""

    def __init__(self, model, *flags, program=None, log=None, port=0, environment=None, wait=60):
        self.command = [str(part) for part in (program or PROGRAM, "serve", model, *flags)]
        self.log = pathlib.Path(log) if log else None
        self.environment = {**os.environ, **(environment or {})}
        self.port, self.host, self.process, self.wait = port, "127.0.0.1", None, wait

    def start(self, healthy=True):
        """Starts the program; a restart keeps the port."""
        output = open(self.log, "ab") if self.log else open(os.devnull, "wb")
        with output:
            self.begin = output.tell() if self.log else 0
            self.process = subprocess.Popen([*self.command, "--port", str(self.port)], stdin=subprocess.DEVNULL,
                                            stdout=output, stderr=output, env=self.environment)
        if not self.port:
            found = wait_until(self.address_find, self.wait)
            if not found:
                self.kill()
                raise RuntimeError(f"the server does not say where it listens:\n{self.said()}")
            self.port = int(found[2])
        if healthy and not wait_until(self.is_healthy, self.wait):
            self.kill()
            raise RuntimeError(f"the server is not healthy:\n{self.said()}")
        return self

    def address_find(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with code {self.process.returncode}:\n{self.said()}")
        return ADDRESS.search(self.said())

    def said(self):
        """What it wrote since its last start."""
        if not self.log:
            return ""
        with open(self.log, "rb") as file:
            file.seek(self.begin)
            return file.read().decode(errors="replace")

    def is_healthy(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with code {self.process.returncode}:\n{self.said()}")
        try:
            return self.get("/health").status == 200
        except OSError:
            return False

    def stop(self, seconds=40):
        """Asks it to drain; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self):
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop(10)

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    # What the system knows of it.

    def resident_bytes(self):
        return self.status_field("VmRSS")

    def peak_resident_bytes(self):
        return self.status_field("VmHWM")

    def status_field(self, name):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)[1]) * 1024

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    # Requests, one connection each.

    def request(self, method, path, body=None, headers=None, timeout=120):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            kind = {"Content-Type": "application/json"} if data is not None else {}
            connection.request(method, path, data, {**kind, **(headers or {})})
            reply = connection.getresponse()
            return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, path, headers=None, timeout=20):
        return self.request("GET", path, None, headers, timeout)

    def post(self, path, body, headers=None, timeout=120):
        return self.request("POST", path, body, headers, timeout)

    def stream(self, path, body, headers=None):
        return Stream(self, path, {**body, "stream": True}, headers)

    def complete(self, prompt, **fields):
        """The reply of /v1/completions as JSON; anything but 200 raises."""
        reply = self.post("/v1/completions", {"prompt": prompt, "max_tokens": 16, "temperature": 0, **fields})
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {reply.body.decode(errors='replace')}")
        return reply.json()

    def chat(self, messages, headers=None, **fields):
        """The reply of /v1/chat/completions as JSON; anything but 200 raises."""
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        reply = self.post("/v1/chat/completions",
                          {"messages": messages, "max_tokens": 16, "temperature": 0, **fields}, headers)
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {reply.body.decode(errors='replace')}")
        return reply.json()

    def metrics(self):
        """Samples of /metrics by name with labels, as written."""
        reply = self.get("/metrics")
        if reply.status != 200:
            raise RuntimeError(f"/metrics: {reply.status}")
        lines = [line for line in reply.body.decode().splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def is_idle(self):
        """Nothing runs and nothing waits."""
        metrics = self.metrics()
        return metrics["lca_requests_running"] == 0 and metrics["lca_requests_queued"] == 0


class RawConnection:
    """A socket to the server; what is sent is sent as it is."""

    def __init__(self, server, timeout=30):
        self.socket = socket.create_connection((server.host, server.port), timeout)
        self.file = self.socket.makefile("rb")

    def send(self, data):
        self.socket.sendall(data.encode() if isinstance(data, str) else data)
        return self

    def read(self):
        """The next reply; None at the end of file."""
        first = self.file.readline()
        if not first:
            return None
        headers = {}
        for line in iter(self.file.readline, b"\r\n"):
            if not line:
                return None
            name, _, value = line.decode().partition(":")
            headers[name.strip().lower()] = value.strip()
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(self.chunks())
        else:
            body = self.file.read(int(headers.get("content-length", 0)))
        return Reply(int(first.split()[1]), headers, body)

    def chunks(self):
        while size := int(self.file.readline().strip() or b"0", 16):
            data = self.file.read(size)
            self.file.readline()
            yield data
        self.file.readline()

    def close(self):
        self.file.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Stream:
    """Server-sent events of one request: iterate for (event, data); comments are kept aside."""

    def __init__(self, server, path, body, headers=None, timeout=120):
        self.connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout)
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        self.reply = self.connection.getresponse()
        self.status, self.comments = self.reply.status, []

    def __iter__(self):
        event = "message"
        for line in iter(self.reply.readline, b""):
            line = line.rstrip(b"\r\n").decode()
            if line.startswith(":"):
                self.comments.append(line[1:].strip())
            elif line.startswith("event:"):
                event = line[6:].strip()
            elif line.startswith("data:"):
                yield event, line[5:].strip()
            elif not line:
                event = "message"

    def chunks(self):
        """The data of OpenAI's events as JSON, up to [DONE]."""
        for _, data in self:
            if data == "[DONE]":
                return
            yield json.loads(data)

    def text(self):
        """All text of chat or completion chunks of the first choice."""
        parts = []
        for chunk in self.chunks():
            for choice in chunk.get("choices", ()):
                if choice["index"] == 0:
                    parts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        return "".join(parts)

    def leave(self):
        """Closes the socket in the middle of it."""
        self.reply.close()
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.leave()
