"""The unmodified openai client."""

import enum
import typing

import openai
import pydantic
import pytest

ASK = [{"role": "user", "content": "hi"}]


class Colour(str, enum.Enum):
    red = "red"
    green = "green"


class Animal(pydantic.BaseModel):
    name: typing.Annotated[str, pydantic.Field(max_length=6)]
    legs: typing.Annotated[int, pydantic.Field(ge=0, le=8)]
    colour: Colour
    tame: bool
    parent: "Animal | None" = None


class weather(pydantic.BaseModel):
    """Tells the weather at a place."""

    place: typing.Literal["here", "there"]
    days: typing.Annotated[int, pydantic.Field(ge=1, le=9)]


class clock(pydantic.BaseModel):
    """Tells the time."""


TOOLS = [openai.pydantic_function_tool(weather), openai.pydantic_function_tool(clock)]


def client_of(server):
    return openai.OpenAI(api_key="none", base_url=server.url + "/v1", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


@pytest.fixture(scope="module")
def caller(tools):
    return client_of(tools)


def test_models_are_listed(client):
    names = [model.id for model in client.models.list()]
    assert len(names) == 1
    assert client.models.retrieve(names[0]).id == names[0]


def test_chat_names_the_real_model_and_counts_tokens(client):
    reply = client.chat.completions.create(model="gpt-4o", messages=ASK, max_tokens=8, temperature=0)
    assert reply.model == client.models.list().data[0].id
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert 1 <= reply.usage.completion_tokens <= 8
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_stream_says_what_the_whole_reply_says(client):
    fields = {"model": "m", "messages": ASK, "max_tokens": 40, "temperature": 1, "seed": 7}
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) \
        == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_n_replies_have_seeds_of_their_own(client):
    reply = client.chat.completions.create(model="m", messages=ASK, n=3, max_tokens=16, seed=1)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in reply.choices}) == 3


def test_stop_ends_before_the_text(client):
    whole = client.completions.create(model="m", prompt="abc", max_tokens=60, temperature=0).choices[0].text
    mark = next(letter for letter in whole[5:] if letter.isascii())
    cut = client.completions.create(model="m", prompt="abc", max_tokens=60, temperature=0, stop=[mark]).choices[0]
    assert cut.text == whole[:whole.index(mark)] and cut.finish_reason == "stop"


def test_logprobs_of_chat_come_with_bytes_and_the_likeliest(client):
    reply = client.chat.completions.create(model="m", messages=ASK, max_tokens=4, temperature=0, logprobs=True,
                                           top_logprobs=3)
    tokens = reply.choices[0].logprobs.content
    assert len(tokens) == reply.usage.completion_tokens
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert token.logprob == token.top_logprobs[0].logprob  # greedy
        assert token.logprob <= 0


@pytest.mark.parametrize("prompt", ["abcdef", list(b"abcdef")], ids=["text", "ids"])
def test_echo_returns_the_prompt_and_one_token_more(client, prompt):
    choice = client.completions.create(model="m", prompt=prompt, max_tokens=1, echo=True, logprobs=2,
                                       temperature=0).choices[0]
    assert choice.text.startswith("abcdef")
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs) == 7
    assert choice.logprobs.token_logprobs[0] is None and choice.logprobs.top_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])


def test_a_batch_of_prompts_is_answered_in_order(client):
    prompts = ["one", "two", "three"]
    batch = client.completions.create(model="m", prompt=prompts, max_tokens=8, temperature=0)
    alone = [client.completions.create(model="m", prompt=prompt, max_tokens=8, temperature=0).choices[0].text
             for prompt in prompts]
    assert [choice.text for choice in batch.choices] == alone


def test_pydantic_schema_holds_whatever_is_sampled(client):
    for seed in range(8):
        parsed = client.chat.completions.parse(model="m", messages=ASK, response_format=Animal, seed=seed,
                                               temperature=1, max_tokens=1500).choices[0]
        if parsed.finish_reason != "length":
            assert isinstance(parsed.message.parsed, Animal)
            return
    pytest.fail("no reply of eight reached its end")


def test_streamed_pydantic_schema_holds(client):
    with client.chat.completions.stream(model="m", messages=ASK, response_format=weather, seed=3,
                                        max_tokens=400) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, weather)


def test_json_object_is_an_object(client):
    reply = client.chat.completions.create(model="m", messages=ASK, response_format={"type": "json_object"},
                                           max_tokens=12)
    assert reply.choices[0].message.content.lstrip().startswith("{")


def test_a_keyword_that_is_not_enforced_is_named(client):
    schema = {"type": "string", "pattern": "^a+$"}
    with pytest.raises(openai.BadRequestError, match="pattern"):
        client.chat.completions.create(model="m", messages=ASK, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})


def test_responses_whole_streamed_and_parsed(client):
    whole = client.responses.create(model="m", input="hi", instructions="be short", store=False, temperature=0,
                                    max_output_tokens=20)
    with client.responses.stream(model="m", input="hi", instructions="be short", temperature=0,
                                 max_output_tokens=20) as stream:
        events = list(stream)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == {"completed": "response.completed", "incomplete": "response.incomplete"}[whole.status]
    parsed = client.responses.parse(model="m", input="hi", text_format=weather, max_output_tokens=400)
    assert isinstance(parsed.output_parsed, weather)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="m", input="hi", previous_response_id="resp_1")


def test_required_tools_are_called_with_arguments_that_follow_their_schema(caller):
    for seed in range(4):
        reply = caller.chat.completions.parse(model="m", messages=ASK, tools=TOOLS, tool_choice="required",
                                              parallel_tool_calls=False, max_tokens=400, seed=seed)
        choice = reply.choices[0]
        assert choice.finish_reason == "tool_calls"
        for call in choice.message.tool_calls:
            assert isinstance(call.function.parsed_arguments, (weather, clock))


def test_a_named_tool_is_called_in_a_stream_and_its_result_is_taken(caller):
    with caller.chat.completions.stream(model="m", messages=ASK, tools=TOOLS, parallel_tool_calls=False,
                                        max_tokens=400, seed=5,
                                        tool_choice={"type": "function", "function": {"name": "weather"}}) as stream:
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "weather" and weather.model_validate_json(call.function.arguments)
    after = caller.chat.completions.create(model="m", max_tokens=8, tools=TOOLS, messages=[
        *ASK, message.model_dump(exclude_none=True, exclude={"parsed"}),
        {"role": "tool", "tool_call_id": call.id, "content": "rain"}])
    assert after.usage.prompt_tokens > 100


def test_a_strict_tool_is_refused_where_its_schema_cannot_be_enforced(caller):
    def ask(strict):
        return caller.chat.completions.create(model="m", messages=ASK, max_tokens=8, tools=[
            {"type": "function", "function": {"name": "f", "strict": strict, "parameters": {
                "type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"}}}}}])
    with pytest.raises(openai.BadRequestError, match="tool f: .*pattern"):
        ask(True)  # the model may call it, and nothing would hold it to the pattern
    assert ask(False).usage.completion_tokens <= 8
    assert caller.chat.completions.create(model="m", messages=ASK, max_tokens=8, tools=TOOLS).usage.completion_tokens


def test_tools_without_a_template_for_them_are_refused(client):
    with pytest.raises(openai.BadRequestError, match="tool"):
        client.chat.completions.create(model="m", messages=ASK, tools=TOOLS)
