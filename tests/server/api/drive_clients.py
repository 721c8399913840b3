#!/usr/bin/env python3
"""Drives the unmodified openai and anthropic clients over sample replies, without a network.

usage: drive_clients.py TEST_PROGRAM [REQUESTS_FOLDER]

Every call is answered with a reply that the program's Reply tests wrote; what the client makes of
it is checked. The bodies that the clients send are written to the folder where one is given: the
test ParseClients reads them from tests/server/api/requests/.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import anthropic
import openai
from pydantic import BaseModel

try:
    import httpx2 as httpx
except ImportError:
    import httpx


class Answer(BaseModel):
    x: int


class f(BaseModel):  # a tool: its name is the class's
    """Looks x up."""

    x: int


class g(BaseModel):
    """Takes nothing."""


class Wire:
    """Answers requests with the sample that `next` names, and keeps their bodies."""

    def __init__(self, samples, keep):
        self.samples, self.keep, self.next, self.bodies = samples, keep, None, 0

    def answer(self, request):
        sample = self.samples / self.next
        if request.content:
            body = json.loads(request.content)
            assert bool(body.get("stream")) == self.next.endswith(".sse"), (self.next, body)
            if self.keep:
                route = request.url.path.removeprefix("/v1/").replace("/", "_")
                name = f"{self.bodies:02}-{route}.json"
                (self.keep / name).write_text(json.dumps(body, indent=1) + "\n")
            self.bodies += 1
        kind = "text/event-stream" if self.next.endswith(".sse") else "application/json"
        return httpx.Response(200, headers={"content-type": kind}, content=sample.read_bytes())

    def client(self):
        return httpx.Client(transport=httpx.MockTransport(self.answer))


TEXT = 'Hello\n"ä"'
ASK = [{"role": "user", "content": "hi"}]
SYSTEM_ASK = [{"role": "developer", "content": [{"type": "text", "text": "be short"}]}, *ASK]


def check_chat(client, wire):
    chat = client.chat.completions
    wire.next = "chat.text.json"
    reply = chat.create(model="m", messages=SYSTEM_ASK, temperature=0, seed=3, n=1, stop=["x"], user="u")
    assert reply.choices[0].message.content == TEXT
    assert reply.usage.prompt_tokens_details.cached_tokens == 4
    wire.next = "chat.text.sse"
    chunks = list(chat.create(model="m", messages=ASK, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    wire.next = "chat.logprobs.json"
    reply = chat.create(model="m", messages=ASK, logprobs=True, top_logprobs=2)
    assert reply.choices[0].logprobs.content[0].bytes == [195]
    wire.next = "chat.object.json"
    assert chat.parse(model="m", messages=ASK, response_format=Answer).choices[0].message.parsed == Answer(x=1)
    tools = [openai.pydantic_function_tool(f), openai.pydantic_function_tool(g)]
    wire.next = "chat.calls.json"
    calls = chat.parse(model="m", messages=ASK, tools=tools).choices[0].message.tool_calls
    assert calls[0].function.parsed_arguments == f(x=1)
    wire.next = "chat.calls.sse"
    with chat.stream(model="m", messages=ASK, tools=tools, tool_choice="required") as stream:
        message = stream.get_final_completion().choices[0].message
    assert [c.function.name for c in message.tool_calls] == ["f", "g"]
    wire.next = "chat.text.json"
    chat.create(model="m", messages=[*ASK, message.model_dump(exclude_none=True, exclude={"parsed"}),
                                     {"role": "tool", "tool_call_id": "c1", "content": "42"}])
    wire.next = "chat.failed.sse"
    try:
        list(chat.create(model="m", messages=ASK, stream=True))
        raise AssertionError("the stream's error was not seen")
    except openai.APIError as error:
        assert "stopping" in str(error)


def check_completions(client, wire):
    wire.next = "completions.text.json"
    for prompt in ("hi", [1, 2, 3], ["a", "b"], [[1], [2, 3]]):
        reply = client.completions.create(model="m", prompt=prompt, max_tokens=1, echo=True, logprobs=1)
        assert reply.choices[0].text == TEXT
    wire.next = "completions.text.sse"
    chunks = client.completions.create(model="m", prompt="hi", stream=True)
    assert "".join(c.choices[0].text for c in chunks) == TEXT


def check_responses(client, wire):
    responses = client.responses
    wire.next = "responses.text.json"
    assert responses.create(model="m", input="hi", instructions="be short", store=False).output_text == TEXT
    wire.next = "responses.text.sse"
    with responses.stream(model="m", input=ASK) as stream:
        assert stream.get_final_response().output_text == TEXT
    wire.next = "responses.object.json"
    assert responses.parse(model="m", input="hi", text_format=Answer).output_parsed == Answer(x=1)
    tool = {"type": "function", "name": "f", "parameters": f.model_json_schema(), "strict": True}
    wire.next = "responses.calls.sse"
    with responses.stream(model="m", input="hi", tools=[tool]) as stream:
        output = stream.get_final_response().output
    assert [item.type for item in output] == ["message", "function_call", "function_call"]
    wire.next = "responses.text.json"
    back = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in output]
    responses.create(model="m", input=[*ASK, *back,
                                       {"type": "function_call_output", "call_id": "c1", "output": "42"}])


def check_messages(client, wire):
    messages = client.messages
    wire.next = "messages.text.json"
    reply = messages.create(model="m", max_tokens=9, messages=ASK, system="be short", stop_sequences=["x"])
    assert reply.content[0].text == TEXT and reply.usage.cache_read_input_tokens == 4
    wire.next = "messages.text.sse"
    with messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
        assert "".join(stream.text_stream) == TEXT
    tool = {"name": "f", "description": "d", "input_schema": f.model_json_schema()}
    wire.next = "messages.calls.sse"
    with messages.stream(model="m", max_tokens=9, messages=ASK, tools=[tool],
                         tool_choice={"type": "any"}) as stream:
        content = stream.get_final_message().content
    assert content[1].input == {"x": 1}
    wire.next = "messages.text.json"
    back = [block.model_dump(exclude_none=True) for block in content]
    messages.create(model="m", max_tokens=9, messages=[
        *ASK, {"role": "assistant", "content": back},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "42"}]}])
    if hasattr(messages, "parse"):
        wire.next = "messages.object.json"
        assert messages.parse(model="m", max_tokens=9, messages=ASK, output_format=Answer).parsed_output == Answer(x=1)
    wire.next = "anthropic.count.json"
    assert messages.count_tokens(model="m", messages=ASK).input_tokens == 7
    wire.next = "messages.failed.sse"
    try:
        list(messages.create(model="m", max_tokens=9, messages=ASK, stream=True))
        raise AssertionError("the stream's error was not seen")
    except anthropic.APIError as error:
        assert "stopping" in str(error)


def main():
    keep = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], "--gtest_filter=Reply.*"], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "LCA_REPLY_SAMPLES": folder})
        wire = Wire(pathlib.Path(folder), keep)
        client = openai.OpenAI(api_key="k", base_url="http://127.0.0.1/v1", http_client=wire.client(),
                               max_retries=0)
        check_chat(client, wire)
        check_completions(client, wire)
        check_responses(client, wire)
        wire.next = "openai.models.json"
        assert client.models.list().data[0].id == "tiny"
        client = anthropic.Anthropic(api_key="k", base_url="http://127.0.0.1", http_client=wire.client(),
                                     max_retries=0)
        check_messages(client, wire)
        wire.next = "anthropic.models.json"
        assert client.models.list().data[0].id == "tiny"
        print(f"{wire.bodies} requests of openai {openai.__version__} and anthropic {anthropic.__version__}")


if __name__ == "__main__":
    main()
