"""Schemathesis over /openapi.json of a running server."""

import dataclasses
import json
import pathlib
import subprocess
import sys

CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]


@dataclasses.dataclass
class Cases:
    generated: int
    failures: int
    code: int
    output: str


def counts_read(report):
    """Cases and failures out of an NDJSON report of events."""
    generated = failures = 0
    for line in pathlib.Path(report).read_text().splitlines():
        event = json.loads(line)
        scenario = event.get("ScenarioFinished")
        if not scenario:
            continue
        recorder = scenario.get("recorder") or {}
        generated += len(recorder.get("interactions") or recorder.get("cases") or {})
        for checks in (recorder.get("checks") or {}).values():
            failures += sum(check.get("status") not in ("success", "skip") for check in checks)
    return generated, failures


def schemathesis_run(server, folder, examples, seed=1, phases="coverage,fuzzing", workers=1, seconds=None):
    """Runs the checks; `examples` is per operation. Long or many replies are cut by the server's flags."""
    report = pathlib.Path(folder) / f"schema-{seed}.ndjson"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "schemathesis.cli", "run", server.url + "/openapi.json", "--checks",
               ",".join(CHECKS), "--phases", phases, "--max-examples", str(examples), "--seed", str(seed),
               "--workers", str(workers), "--continue-on-failure", "--suppress-health-check", "all",
               "--warnings", "off", "--no-color", "--request-timeout", "60", "--report", "ndjson",
               "--report-ndjson-path", str(report), *(["--max-time", str(seconds)] if seconds else [])]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    generated, failures = counts_read(report) if report.exists() else (0, 0)
    return Cases(generated, failures, done.returncode, done.stdout)
