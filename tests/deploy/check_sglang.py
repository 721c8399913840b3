#!/usr/bin/env python3
"""Two `lca serve` behind sglang-router (deploy/sglang-router/run.sh, cache_aware), with one folder of sessions.

    tests/deploy/check_sglang.py LCA MODEL [--conversations N] [--turns N] [--keep]

Checks: follow-up turns find their cache at least 95 % of the time, with sessions and without; a server that is killed in
the middle of traffic loses no completed turn. Run by run.sh in an environment with sglang-router.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import traffic

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "sglang-router" / "run.sh"


class Router:
    def __init__(self, folder, lca, model):
        self.folder, self.sessions = folder, folder / "sessions"
        self.sessions.mkdir()
        port, self.first = traffic.free_port(), self.two_ports()
        self.base = f"http://127.0.0.1:{port}"
        environment = {**os.environ, "LCA": str(lca), "PORT": str(port), "FIRST_PORT": str(self.first),
                       "PROMETHEUS_PORT": str(traffic.free_port()), "PYTHON": sys.executable}
        with open(folder / "router.log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [SCRIPT, model, "--threads", "1", "--memory", "1GiB", "--sessions", str(self.sessions)],
                env=environment, stdout=log, stderr=subprocess.STDOUT)

    @staticmethod
    def two_ports():
        """The first of two neighbours that are free now."""
        while True:
            port = traffic.free_port()
            try:
                traffic.free_port(port + 1)
                return port
            except OSError:
                pass

    def ready(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"run.sh ended: {(self.folder / 'router.log').read_text()[-3000:]}")
        return all(traffic.request(base, "GET", path, timeout=5)[0] == 200
                   for base, path in [(self.server(0), "/health"), (self.server(1), "/health"),
                                      (self.base, "/readiness"), (self.base, "/v1/models")])

    def server(self, number):
        return f"http://127.0.0.1:{self.first + number}"

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def check(router, report, count, turns):
    for named, label in (("metadata", "with sessions"), (None, "by their text")):
        talks = [traffic.Conversation(router.base, number, named, f"sglang-{label[:2]}") for number in range(count)]
        traffic.wait(traffic.run(talks, turns))
        hits, number = traffic.share(talks)
        report.add(f"follow-up turns {label} that find their cache", f"{100 * hits:.1f} % of {number}",
                   hits >= traffic.ASKED and number == count * (turns - 1))
    talks = [traffic.Conversation(router.base, number, "header", "sglang-kill") for number in range(count)]
    threads = traffic.run(talks, turns, patience=100)
    traffic.until(lambda: sum(len(talk.turns) for talk in talks) >= count * turns // 4, 300, "a quarter of the turns")
    os.kill(min(traffic.servers_of(router.sessions)), signal.SIGKILL)
    traffic.wait(threads)
    left = next(router.server(number) for number in (0, 1) if answers(router.server(number)))
    traffic.check_lost(report, talks, turns, "server")
    traffic.check_sessions(router.base, report, talks, left)


def answers(base):
    try:
        return traffic.request(base, "GET", "/health", timeout=5)[0] == 200
    except OSError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("lca", type=pathlib.Path)
    parser.add_argument("model")
    parser.add_argument("--conversations", type=int, default=12)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and sessions")
    given = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lca-sglang-"))
    report = traffic.Report()
    router = Router(folder, given.lca.resolve(), given.model)
    try:
        traffic.until(router.ready, 180, "the router and its servers are ready")
        check(router, report, given.conversations, given.turns)
        router.stop()
        time.sleep(1)
        left = traffic.servers_of(router.sessions)
        report.add("servers left after the end", len(left), not left)
    finally:
        if router.process.poll() is None:
            router.stop()
        if given.keep or report.failed:
            print(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(report.table())
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
