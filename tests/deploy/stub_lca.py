#!/usr/bin/env python3
"""Stands for `lca serve` where no model is wanted: mock.py behind the program's flags.

    tests/deploy/stub_lca.py serve MODEL [--host H] [--port N] [--sessions DIR] [flags that are ignored]

A question that holds `die-now` ends the process before the first byte, `die-later` in the middle of the stream,
`slow` waits for a second first. With --broken it ends before it listens.
"""

import argparse
import os
import signal
import sys
import threading
import time

import mock


class StubHandler(mock.PageHandler):
    def route(self, method, path, query, body):
        if method == "GET" and path == "/metrics":
            text = f"# HELP lca_jobs Jobs.\n# TYPE lca_jobs counter\nlca_jobs {len(self.mock.requests)}\n"
            return self.reply("text/plain; version=0.0.4", text.encode())
        if method == "GET" and path == "/gone":  # clients that left before their reply was whole
            return self.reply("text/plain", str(self.mock.gone).encode())
        return super().route(method, path, query, body)

    def reply(self, kind, data):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def chat(self, body):
        question = str(body["messages"][-1]["content"])
        if "die-now" in question:
            os._exit(3)
        if "slow" in question:
            time.sleep(1)
        self.deadly = "die-later" in question
        super().chat(body)

    deadly = False

    def event(self, value):
        super().event(value)
        if self.deadly:
            os._exit(4)


def start(port=0, sessions=None, **settings):
    server = mock.MockServer(port=port, sessions=sessions, **settings)
    original = mock.PageHandler
    mock.PageHandler = StubHandler
    try:
        return server.start()
    finally:
        mock.PageHandler = original


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--sessions")
    parser.add_argument("--rate", type=float, default=60)
    parser.add_argument("--broken", action="store_true")
    given, _ = parser.parse_known_args()
    if given.broken:
        print("lca serve: this model cannot be loaded", file=sys.stderr)
        sys.exit(1)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    server = start(given.port, given.sessions, rate=given.rate)
    print(f"lca serve: {given.model} at {server.address}", file=sys.stderr, flush=True)
    over.wait()
    print("lca serve: drained", file=sys.stderr, flush=True)
    server.stop()


if __name__ == "__main__":
    main()
