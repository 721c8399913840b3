#!/usr/bin/env python3
"""Writes corpus/api/: the clients' requests and a few of ours, each after the byte of its route."""

import json
import pathlib

HERE = pathlib.Path(__file__).parent
ROUTES = {"chat_completions": 0, "completions": 1, "responses": 2, "messages": 3, "messages_count_tokens": 4}
OURS = [
    (5, {"content": "hi", "add_special": True, "parse_special": False, "with_pieces": True}),
    (6, {"tokens": [0, 1, 2]}),
    (7, {"to": "b", "at_message": 2}),
    (0, {"messages": [{"role": "user", "content": "hi"}], "stream": True, "n": 2, "logprobs": True,
         "top_logprobs": 2, "metadata": {"session": "s"}, "stop": ["a", "b"], "top_k": 5, "min_p": 0.1,
         "repetition_penalty": 1.1, "ignore_eos": True, "max_completion_tokens": 5, "seed": -1,
         "stream_options": {"include_usage": True}, "response_format": {"type": "json_object"}}),
    (1, {"prompt": [[1, 2], [3]], "n": 2, "best_of": 2, "echo": True, "logprobs": 3, "stream": True}),
    (130, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], "stream": True,
           "include": ["message.output_text.logprobs"], "text": {"format": {"type": "json_object"}}}),
    (131, {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "stream": True}),
]


def main():
    folder = HERE / "corpus" / "api"
    folder.mkdir(exist_ok=True)
    inputs = [(ROUTES[path.stem.split("-", 1)[1]], json.loads(path.read_text()))
              for path in sorted((HERE.parent / "server" / "api" / "requests").glob("*.json"))]
    for number, (route, body) in enumerate(inputs + OURS):
        (folder / f"{number:02}.bin").write_bytes(bytes([route]) + json.dumps(body).encode())


if __name__ == "__main__":
    main()
