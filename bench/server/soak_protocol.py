"""Rows about the protocol: others' clients, the evaluation harness, generated requests, fuzzing."""

import os
import re
import shutil
import subprocess

from soak_common import ROOT, Row, pytest_run


def clients(soak):
    row = Row("clients", "unmodified `openai` and `anthropic` Python clients: streaming, JSON schema (Pydantic), tools",
              "all pass")
    passed, failed, output = pytest_run(soak, "test_openai_client.py", "test_anthropic_client.py")
    row.equal("tests that fail", failed, 0)
    row.least("tests that pass", passed, 20)
    if failed:
        soak.say(output[-3000:])
    return row


def lm_eval(soak):
    row = Row("lm-eval", "lm-evaluation-harness `local-completions`, local multiple-choice task, `--precision f32`",
              "sums within 1e-4 of `lca logits`")
    passed, failed, output = pytest_run(soak, "test_lm_eval.py")
    row.equal("tests that fail", failed, 0)
    worst = [float(value) for value in re.findall(r"worst difference (\S+)", output)]
    row.below("worst difference of a sum", max(worst) if worst else float("inf"), 1e-4)
    if failed:
        soak.say(output[-3000:])
    return row


def asan_build(soak):
    """The program under the address and undefined-behaviour sanitizers."""
    if soak.asan:
        return soak.asan
    soak.say("building the program with sanitizers: build/asan")
    for command in (["cmake", "--preset", "asan"], ["cmake", "--build", "--preset", "asan", "--target", "lca-cli"]):
        if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
            raise RuntimeError(f"{' '.join(command)} failed")
    return ROOT / "build" / "asan" / "bin" / "lca"


def schema(soak, wanted=20_000):
    from schema_cases import schemathesis_run

    row = Row("schema", "schemathesis over `/openapi.json` (`not_a_server_error`, status, content type and response "
              "conformance), `--max-reply 16`, ≥ 20,000 cases, ASan+UBSan", "no failure")
    if soak.minutes is not None:
        wanted = min(wanted, int(1000 * soak.minutes))
        row.shortened = f"{wanted:,} of 20,000 cases" if wanted < 20_000 else ""
    environment = {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0", "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}
    cases = failures = 0
    server = soak.serving(soak.checkpoint("llama"), "--max-reply", "16", "--sessions", soak.folder / "schema-sessions",
                          program=asan_build(soak), log="schema", environment=environment)
    with server:
        seed = 0
        while cases < wanted:
            seed += 1
            examples = max(10, min(250, (wanted - cases) // 18))
            done = schemathesis_run(server, soak.folder, examples, seed, "fuzzing" if seed > 1 else "coverage,fuzzing")
            cases, failures = cases + done.generated, failures + (1 if done.code else 0)
            soak.say(f"schema: {cases:,} cases, runs with failures {failures}")
            if done.code:
                (soak.folder / f"schema-{seed}.txt").write_text(done.output)
                soak.say(done.output[-3000:])
            if not done.generated:
                break
        code = server.stop()
    row.least("cases", cases, wanted)
    row.equal("runs with failures", failures, 0)
    row.equal("exit code of the server", -1 if code is None else code, 0)
    row.equal("reports of the sanitizers", len(re.findall(r"ERROR: \w+Sanitizer|runtime error:", server.said())), 0)
    return row


def fuzz(soak, targets=("http", "api", "schema")):
    row = Row("fuzz", "fuzz targets for HTTP and JSON layers, 3 minutes each", "no finding")
    if not shutil.which("clang++"):
        row.skipped = "clang++ not found"
        return row
    seconds = int(60 * soak.minutes_of(row, 3))
    soak.say("building the fuzz targets: build/fuzz")
    names = [f"fuzz_{target}" for target in targets]
    for command in (["cmake", "--preset", "fuzz"], ["cmake", "--build", "--preset", "fuzz", "--target", *names]):
        if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
            raise RuntimeError(f"{' '.join(command)} failed")
    for target in targets:
        soak.say(f"fuzz: {target} for {seconds} s")
        done = subprocess.run(["ctest", "--preset", "fuzz", "-R", rf"^fuzz\.{target}$", "-V"], cwd=ROOT,
                              env={**os.environ, "FUZZ_SECONDS": str(seconds)}, stdout=subprocess.PIPE, text=True)
        units = re.search(r"number_of_executed_units: (\d+)", done.stdout)
        row.told(f"{target}: inputs", f"{int(units[1]):,}" if units else "?")
        row.equal(f"{target}: findings", 0 if done.returncode == 0 else 1, 0)
    return row
