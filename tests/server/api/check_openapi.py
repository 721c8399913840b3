#!/usr/bin/env python3
"""Checks the OpenAPI document against itself, the sample replies and the clients' requests.

usage: check_openapi.py TEST_PROGRAM

Needs the packages openapi-spec-validator and jsonschema.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import jsonschema
import openapi_spec_validator

REPLIES = {
    "chat": "ChatReply",
    "completions": "CompletionsReply",
    "responses": "ResponsesReply",
    "messages": "MessagesReply",
    "openai.models": "Models",
    "anthropic.models": "Models",
    "anthropic.count": "CountTokensReply",
}
REQUESTS = {
    "chat_completions": "ChatRequest",
    "completions": "CompletionsRequest",
    "responses": "ResponsesRequest",
    "messages": "MessagesRequest",
    "messages_count_tokens": "CountTokensRequest",
}


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], "--gtest_filter=Reply.*"], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "LCA_REPLY_SAMPLES": folder})
        samples = {path.stem: json.loads(path.read_text()) for path in pathlib.Path(folder).glob("*.json")}
    document = samples.pop("openapi")
    openapi_spec_validator.validate(document)

    def check(schema, value):
        full = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
        jsonschema.Draft202012Validator(full).validate(value)

    for name, value in samples.items():
        check(REPLIES.get(name) or REPLIES[name.split(".")[0]], value)
    requests = sorted((pathlib.Path(__file__).parent / "requests").glob("*.json"))
    for path in requests:
        check(REQUESTS[path.stem.split("-", 1)[1]], json.loads(path.read_text()))
    print(f"{len(samples)} replies and {len(requests)} requests follow the document")


if __name__ == "__main__":
    main()
