#!/usr/bin/env python3
"""Ray Serve with a stub in the place of `lca serve`: replicas come and go with the load, and servers die at bad moments.

    tests/deploy/check_scaling.py [LCA MODEL]       (both are ignored)

Run by run.sh in an environment with Ray.
"""

import json
import pathlib
import shutil
import sys
import tempfile
import threading
import time

import traffic
from check_ray import HERE, Application


def ask(app, text):
    body = {"model": "x", "messages": [{"role": "user", "content": text}], "stream": True}
    status, data = traffic.request(app.base, "POST", "/v1/chat/completions", body)
    return status, data.decode()


def check_scaling(app, report):
    """Eight streams at a time on one replica whose target is two."""
    over, whole, broken = threading.Event(), [], []

    def client(number):
        turn = 0
        while not over.is_set():
            turn += 1
            status, text = ask(app, f"a long reply, {number} {turn}")
            (whole if status == 200 and text.endswith("data: [DONE]\n\n") else broken).append((status, text[-200:]))

    first = app.replicas()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    traffic.until(lambda: len(app.replicas()) == 2, 120, "a second replica")
    report.add("a second replica under load", f"after {time.monotonic() - begin:.0f} s", True)
    both = app.replicas()
    time.sleep(10)
    over.set()
    for thread in threads:
        thread.join()
    begin = time.monotonic()
    traffic.until(lambda: len(app.replicas()) == 1, 120, "one replica again")
    report.add("one replica without load", f"after {time.monotonic() - begin:.0f} s", True)
    report.add("streams that were whole", f"{len(whole)} of {len(whole) + len(broken)}", not broken)
    for one in broken:
        print(f"   {one}")
    (gone,) = both - app.replicas()
    log = app.logs / f"lca-{gone}.log"
    traffic.until(lambda: "lca serve: drained" in log.read_text(), 60, "the server of the replica that left is drained")
    report.add("the server of the replica that left was drained", f"{gone} (first: {sorted(first)[0]})", True)


def check_deaths(app, report):
    status, text = ask(app, "die-later")
    event = json.loads(text.strip().split("\n\n")[-1].removeprefix("data: "))
    report.add("a server that dies in the middle: the last event", event["error"]["type"],
               status == 200 and event["error"]["type"] == "server_error" and "[DONE]" not in text)
    status, text = ask(app, "hello")
    report.add("the next request, while it starts again", status, status == 200 and text.endswith("data: [DONE]\n\n"))
    before = deaths(app)
    status, _ = ask(app, "die-now")
    traffic.until(lambda: deaths(app) - before == 2, 20, "the log of two deaths")
    time.sleep(2)
    report.add("a request that kills servers", f"{status} after {deaths(app) - before} of them",
               status == 502 and deaths(app) - before == 2)
    # That is three; with the next the replica has used up its restarts and is replaced.
    old = app.replicas()
    ask(app, "die-later")
    traffic.until(lambda: app.replicas() and not app.replicas() & old, 120, "another replica")
    report.add("a replica whose server dies too often is replaced", f"{sorted(old)} by {sorted(app.replicas())}", True)
    status, text = ask(app, "hello")
    report.add("the next request", status, status == 200 and text.endswith("data: [DONE]\n\n"))


def deaths(app):
    return sum(path.read_text().count(") ended with") for path in app.logs.glob("lca-*.log"))


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lca-ray-"))
    report = traffic.Report()
    scaling = {"min_replicas": 1, "initial_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 2,
               "upscale_delay_s": 2, "downscale_delay_s": 5, "look_back_period_s": 5, "metrics_interval_s": 1}
    app = Application(folder, HERE / "stub_lca.py", "tiny", [], scaling, 1, restarts=3)
    try:
        app.start()
        check_scaling(app, report)
        check_deaths(app, report)
        app.stop()
        time.sleep(1)
        left = traffic.servers_of(app.sessions)
        report.add("servers left after the end", len(left), not left)
    finally:
        if app.process.poll() is None:
            app.stop()
        if report.failed:
            print(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(report.table())
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
