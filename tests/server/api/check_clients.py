#!/usr/bin/env python3
"""Parses sample replies with the types of the openai and anthropic packages.

usage: check_clients.py TEST_PROGRAM

Runs the program's Reply tests, which write their replies to a folder, and has the clients' own
pydantic models and stream decoders read them. A field that is missing or of a wrong type fails.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import anthropic.types
import openai.types
import openai.types.chat
import openai.types.responses
from anthropic.types import RawMessageStreamEvent
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

WHOLE = {
    "chat": openai.types.chat.ChatCompletion,
    "completions": openai.types.Completion,
    "responses": openai.types.responses.Response,
    "messages": anthropic.types.Message,
}
CHUNK = {
    "chat": openai.types.chat.ChatCompletionChunk,
    "completions": openai.types.Completion,
    "responses": ResponseStreamEvent,
    "messages": RawMessageStreamEvent,
}


def events(text):
    """(event name or None, data) of every event, as the standard has it."""
    for block in text.split("\n\n"):
        name, data = None, None
        for line in block.splitlines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
        if data is not None:
            yield name, data


def check_stream(protocol, path):
    count = 0
    failed = ".failed." in path.name
    adapter = TypeAdapter(CHUNK[protocol])
    listed = list(events(path.read_text()))
    for place, (name, data) in enumerate(listed):
        last = place == len(listed) - 1
        if data == "[DONE]":
            assert last and not failed, path.name
            continue
        value = json.loads(data)
        if failed and last:
            assert "stopping" in data, data
            if protocol in ("chat", "completions"):
                assert value["error"]["message"], data
            elif protocol == "messages":
                assert name == "error" and value["type"] == "error", data
            else:
                adapter.validate_python(value)
            continue
        if protocol == "completions" and value["choices"]:
            # The package has one type for replies and chunks: it wants a reason, a chunk has none.
            value["choices"][0]["finish_reason"] = value["choices"][0]["finish_reason"] or "stop"
        if name is not None:
            assert value["type"] == name, data
        adapter.validate_python(value)
        count += 1
    assert count > 0, path.name
    return count


def main():
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], "--gtest_filter=Reply.*"], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "LCA_REPLY_SAMPLES": folder})
        paths = sorted(path for path in pathlib.Path(folder).iterdir() if path.name != "openapi.json")
        assert len(paths) > 20, "the program wrote no samples"
        for path in paths:
            protocol = path.name.split(".")[0]
            if path.suffix == ".sse":
                count += check_stream(protocol, path)
                continue
            value = json.loads(path.read_text())
            if path.name == "openai.models.json":
                for model in value["data"]:
                    openai.types.Model.model_validate(model)
            elif path.name == "anthropic.models.json":
                for model in value["data"]:
                    anthropic.types.ModelInfo.model_validate(model)
            elif path.name == "anthropic.count.json":
                anthropic.types.MessageTokensCount.model_validate(value)
            else:
                WHOLE[protocol].model_validate(value)
            count += 1
    print(f"{count} replies and events parsed")


if __name__ == "__main__":
    main()
