"""The server under what the systemd unit refuses (deploy/lca.service)."""

import os
import pathlib
import subprocess

import pytest

CONFINED = pathlib.Path(__file__).resolve().parent / "confined.py"


def test_requests_are_answered_under_the_limits_of_the_systemd_unit(serving, tmp_path):
    if subprocess.run([CONFINED, "--version"], capture_output=True, env=os.environ, check=False).returncode == 77:
        pytest.skip("no filter of system calls here")
    server = serving("slow", "--sessions", tmp_path / "talks", program=CONFINED)
    reply = server.chat("What is kept? " * 40, metadata={"session": "ada"})
    assert reply["usage"]["completion_tokens"] >= 1
    assert [one["name"] for one in server.get("/v1/sessions").json()["data"]] == ["ada"]
    assert server.stop() == 0
