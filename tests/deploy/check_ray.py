#!/usr/bin/env python3
"""Two replicas of `lca serve` behind Ray Serve on one machine, with one folder of sessions.

    tests/deploy/check_ray.py LCA MODEL [--conversations N] [--turns N] [--keep]

Checks: bytes pass unchanged; a stream comes piece by piece; a client that leaves frees its slot; follow-up turns find
their cache at least 95 % of the time; a server that is killed in the middle of traffic, and then a whole replica, lose no
completed turn. Prints a table; the exit code is 0 if all holds. Run by run.sh in an environment with Ray.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import yaml

import traffic

HERE = pathlib.Path(__file__).resolve().parent
RAY = HERE.parents[1] / "deploy" / "ray"


class Application:
    """`serve run` of the committed config.yaml with two replicas that stay, unless `scaling` says otherwise."""

    def __init__(self, folder, lca, model, flags, scaling=None, replicas=2, **args):
        self.wanted = replicas
        self.folder, self.sessions, self.logs = folder, folder / "sessions", folder / "logs"
        self.sessions.mkdir()
        config = yaml.safe_load((RAY / "config.yaml").read_text())
        port = traffic.free_port()
        self.base = f"http://127.0.0.1:{port}"
        config["http_options"]["port"] = port
        app = config["applications"][0]
        app["args"] |= {"program": str(lca), "model": model, "flags": flags, "sessions": str(self.sessions),
                        "log_dir": str(self.logs), "replica_wait_s": 60, **args}
        for deployment in app["deployments"]:
            if deployment["name"] == "Lca":
                deployment["autoscaling_config"] |= scaling or {"min_replicas": 2, "initial_replicas": 2, "max_replicas": 2}
                deployment |= {"health_check_period_s": 2, "graceful_shutdown_timeout_s": 20}
            deployment["ray_actor_options"] = {"num_cpus": 0}
        self.config = folder / "config.yaml"
        self.config.write_text(yaml.safe_dump(config))

    def start(self):
        environment = {**os.environ, "PYTHONPATH": str(RAY), "PYTHONDONTWRITEBYTECODE": "1",
                       "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(self.folder / "r")}
        self.output = open(self.folder / "serve.log", "w", encoding="utf-8")
        self.process = subprocess.Popen([pathlib.Path(sys.executable).parent / "serve", "run", self.config],
                                        env=environment, stdout=self.output, stderr=subprocess.STDOUT)
        traffic.until(self.ready, 180, "the application is ready")

    def ready(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"serve run ended: {(self.folder / 'serve.log').read_text()[-3000:]}")
        return len(self.replicas()) == self.wanted

    def replicas(self):
        """Names of the replicas that answer."""
        status, body = traffic.request(self.base, "GET", "/metrics", timeout=10)
        return set(re.findall(r'replica="([^"]+)"', body.decode())) if status == 200 else set()

    def port_of(self, replica):
        """Where the server of a replica listens now, by its log."""
        return int(re.findall(r" at http://127\.0\.0\.1:(\d+)", (self.logs / f"lca-{replica}.log").read_text())[-1])

    def servers(self):
        return traffic.servers_of(self.sessions)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.output.close()


def check_bytes(app, report):
    """The same request through the front and directly."""
    direct = f"http://127.0.0.1:{app.port_of(sorted(app.replicas())[0])}"
    cases = [("GET", "/openapi.json", None), ("GET", "/", None), ("POST", "/v1/chat/completions", {"messages": 3}),
             ("POST", "/v1/messages", {"messages": []}), ("POST", "/tokenize", {"content": "Grüße, 世界 \u0000"}),
             ("GET", "/nothing", None), ("DELETE", "/v1/sessions/nobody", None)]
    equal = 0
    for method, path, value in cases:
        ours, theirs = (traffic.request(base, method, path, value) for base in (app.base, direct))
        equal += ours == theirs
        if ours != theirs:
            print(f"{method} {path}: {ours} is not {theirs}")
    report.add("replies equal to the server's own, byte for byte", f"{equal} of {len(cases)}", equal == len(cases))


def open_stream(base, tokens, name):
    """A socket that a long reply is written to."""
    body = json.dumps({"messages": [{"role": "user", "content": f"Count, {name}."}], "max_tokens": tokens,
                       "ignore_eos": True, "stream": True}).encode()
    port = int(base.rsplit(":", 1)[1])
    client = socket.create_connection(("127.0.0.1", port), 30)
    client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                   f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return client


def running(app):
    text = traffic.request(app.base, "GET", "/metrics")[1].decode()
    return sum(float(value) for value in re.findall(r"^lca_requests_running\{[^}]*\} (\S+)$", text, re.MULTILINE))


def check_stream(app, report):
    with open_stream(app.base, 200, "one") as client:
        times = []
        data = b""
        while b"[DONE]" not in data and (piece := client.recv(65536)):
            data += piece
            times.append(time.monotonic())
    report.add("pieces of a stream of 200 tokens", f"{len(times)} in {times[-1] - times[0]:.2f} s", len(times) >= 50)


def check_leaving(app, report):
    client = open_stream(app.base, 4000, "two")
    client.recv(65536)
    traffic.until(lambda: running(app) == 1, 20, "the stream runs")
    begin = time.monotonic()
    client.close()
    try:
        traffic.until(lambda: running(app) == 0, 20, "the slot is free")
    except TimeoutError:
        report.add("a client that left frees its slot", "not within 20 s", False)
        return
    report.add("a client that left frees its slot", f"after {time.monotonic() - begin:.2f} s", True)


def check_follow_up(app, report, count, turns):
    for named, label in (("metadata", "with sessions"), (None, "by their first message")):
        talks = [traffic.Conversation(app.base, number, named, f"follow-{label[:2]}") for number in range(count)]
        traffic.wait(traffic.run(talks, turns))
        hits, number = traffic.share(talks)
        report.add(f"follow-up turns {label} that find their cache", f"{100 * hits:.1f} % of {number}",
                   hits >= traffic.ASKED and number == count * (turns - 1))
    # The measure itself: conversations that change the server at every turn must miss.
    ports = [app.port_of(name) for name in sorted(app.replicas())]
    talks = [traffic.Conversation("", count + number, None, "control") for number in range(4)]
    for turn in range(3):
        for talk in talks:
            talk.base = f"http://127.0.0.1:{ports[turn % 2]}"
            talk.say()
    misses = [talk.turns[1].cached < 0.9 * talk.turns[0].prompt for talk in talks]
    report.add("control: a second turn at the other server misses", f"{sum(misses)} of {len(misses)}", all(misses))


def check_kill(app, report, count, turns, what):
    """Kills in the middle of traffic; then every completed turn must be there."""
    talks = [traffic.Conversation(app.base, number, "metadata", f"kill-{what}") for number in range(count)]
    threads = traffic.run(talks, turns)
    traffic.until(lambda: sum(len(talk.turns) for talk in talks) >= count * turns // 4, 300, "a quarter of the turns")
    victim, parent = sorted(app.servers().items())[0]
    os.kill(victim if what == "server" else parent, signal.SIGKILL)
    traffic.wait(threads)
    traffic.check_lost(report, talks, turns, what)
    traffic.check_sessions(app.base, report, talks, app.base)
    traffic.until(app.ready, 120, "both replicas are there again")


def check_shutdown(app, report):
    app.stop()
    time.sleep(1)
    left = app.servers()
    report.add("servers left after the application's end", len(left), not left)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("lca", type=pathlib.Path)
    parser.add_argument("model")
    parser.add_argument("--conversations", type=int, default=12)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and sessions")
    given = parser.parse_args()
    # A short path: Ray's sockets lie below it.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lca-ray-"))
    report = traffic.Report()
    app = Application(folder, given.lca.resolve(), given.model, ["--threads", "1", "--memory", "1GiB"])
    try:
        app.start()
        print(f"two replicas are ready: {sorted(app.replicas())}", flush=True)
        check_bytes(app, report)
        check_stream(app, report)
        check_leaving(app, report)
        check_follow_up(app, report, given.conversations, given.turns)
        check_kill(app, report, given.conversations, given.turns, "server")
        check_kill(app, report, given.conversations, given.turns, "replica")
        check_shutdown(app, report)
    finally:
        if app.process.poll() is None:
            app.stop()
        if given.keep or report.failed:
            print(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(report.table())
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
