"""The unmodified anthropic client."""

import typing

import anthropic
import pydantic
import pytest

ASK = [{"role": "user", "content": "hi"}]
GREEDY = {"temperature": 0}  # the client has no argument for it, the protocol has


class Answer(pydantic.BaseModel):
    verdict: typing.Literal["yes", "no"]
    size: typing.Literal[1, 2, 30]  # of bounds of numbers, this client only tells the model


TOOL = {"name": "answer", "description": "Answers.", "input_schema": Answer.model_json_schema()}


def client_of(server):
    return anthropic.Anthropic(api_key="none", base_url=server.url, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


@pytest.fixture(scope="module")
def caller(tools):
    return client_of(tools)


def test_a_stream_says_what_the_whole_message_says(client):
    fields = {"model": "claude", "max_tokens": 30, "messages": ASK, "system": "be short", "extra_body": GREEDY}
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        assert "".join(stream.text_stream) == "".join(block.text for block in whole.content)
        final = stream.get_final_message()
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_counted_tokens_are_those_of_the_message(client):
    fields = {"model": "claude", "messages": [{"role": "user", "content": "count me, please"}]}
    counted = client.messages.count_tokens(**fields).input_tokens
    usage = client.messages.create(**fields, max_tokens=1).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


def test_a_follow_up_reads_only_what_is_new(client):
    document = "All work and no play makes a dull text. " * 20
    ask = [{"role": "user", "content": document}]
    first = client.messages.create(model="claude", max_tokens=8, messages=ask, extra_body=GREEDY)
    said = "".join(block.text for block in first.content)
    second = client.messages.create(model="claude", max_tokens=8, extra_body=GREEDY, messages=[
        *ask, {"role": "assistant", "content": said}, {"role": "user", "content": "and then?"}])
    assert second.usage.cache_read_input_tokens > len(document)
    assert second.usage.input_tokens < 120


def test_a_schema_holds(client):
    parsed = client.messages.parse(model="claude", max_tokens=300, messages=ASK, output_format=Answer)
    assert isinstance(parsed.parsed_output, Answer)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "answer"}], ids=["any", "named"])
def test_tools_are_used(caller, choice):
    with caller.messages.stream(model="claude", max_tokens=400, messages=ASK, tools=[TOOL],
                                tool_choice={**choice, "disable_parallel_tool_use": True}) as stream:
        message = stream.get_final_message()
    (use,) = [block for block in message.content if block.type == "tool_use"]
    assert message.stop_reason == "tool_use"
    assert Answer.model_validate(use.input)
    after = caller.messages.create(model="claude", max_tokens=8, tools=[TOOL], messages=[
        *ASK, {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "good"}]}])
    assert after.usage.output_tokens >= 1


def test_errors_are_of_the_kinds_the_client_knows(client, server):
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model="claude", max_tokens=0, messages=ASK)
    with pytest.raises(anthropic.NotFoundError):
        client.get("/v1/messages/nothing", cast_to=object)
