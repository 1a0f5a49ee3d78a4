"""openai-python against a gateway: common calls, parsed results and raised errors."""

import json
from typing import Literal, Optional

import openai
from openai import OpenAI
from pydantic import BaseModel, Field
from setting import MODEL, QUESTION, base_url, check

client = OpenAI(base_url=base_url(), api_key="any", max_retries=0)
QUESTIONS = [{"role": "user", "content": QUESTION}]


def ask(**options):
    return client.chat.completions.create(model=MODEL, messages=QUESTIONS, temperature=0, **options)


@check
def lists_the_model():
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


@check
def returns_a_whole_answer():
    answer = ask(max_completion_tokens=12)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12


@check
def streams_the_same_text():
    whole = ask(max_tokens=12).choices[0].message.content
    chunks = list(ask(max_tokens=12, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole
    assert chunks[-1].usage.completion_tokens == 12
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"


@check
def completes_text():
    answer = client.completions.create(model=MODEL, prompt=["rooflet", "A node"], max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1]


@check
def scores_a_prompt():
    scored = client.completions.create(model=MODEL, prompt="rooflet", max_tokens=0, echo=True, logprobs=1)
    assert scored.choices[0].text == "rooflet"
    first, *others = scored.choices[0].logprobs.token_logprobs
    assert first is None and all(logprob <= 0 for logprob in others)


@check
def closes_a_stream_early():
    with ask(stream=True) as stream:
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
    assert ask(max_tokens=1).usage.completion_tokens == 1


@check
def stops_at_a_stop_string():
    whole = ask(max_tokens=24).choices[0].message.content
    word = whole.split()[2]
    cut = ask(max_tokens=24, stop=word)
    assert cut.choices[0].message.content == whole[: whole.index(word)]
    assert cut.choices[0].finish_reason == "stop"


@check
def returns_several_choices():
    answer = ask(max_tokens=4, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content == answer.choices[1].message.content, "greedy choices are equal"


@check
def returns_logprobs():
    tokens = ask(max_tokens=4, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(tokens) == 4
    for token in tokens:
        assert token.top_logprobs[0].logprob == token.logprob <= 0, "greedy decoding selects the most probable token"
        assert bytes(token.bytes).decode(errors="replace") == token.token


@check
def bans_a_token():
    first = client.completions.create(model=MODEL, prompt="rooflet", max_tokens=1, temperature=0, logprobs=1)
    token = first.choices[0].logprobs.tokens[0]
    ids = client.post("/../tokenize", body={"model": MODEL, "prompt": token}, cast_to=object)["tokens"]
    other = client.completions.create(
        model=MODEL, prompt="rooflet", max_tokens=1, temperature=0, logit_bias={str(ids[0]): -100}
    )
    assert other.choices[0].text != first.choices[0].text


@check
def embeds():
    same, again, other = client.embeddings.create(model=MODEL, input=["a Mac", "a Mac", "no Mac"]).data
    assert same.embedding == again.embedding != other.embedding
    assert abs(sum(x * x for x in same.embedding) - 1) < 1e-4, "embeddings have unit length"


@check
def raises_specific_errors():
    for wrong, error in [
        (lambda: ask(max_tokens=0), openai.BadRequestError),
        (lambda: client.chat.completions.create(model="nobody", messages=QUESTIONS), openai.NotFoundError),
        (lambda: ask(extra_body={"temprature": 1}), openai.BadRequestError),
        (
            lambda: client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": QUESTION * 5000}]
            ),
            openai.BadRequestError,
        ),
    ]:
        try:
            wrong()
        except error as raised:
            assert raised.code and raised.message
        else:
            raise AssertionError(f"no {error.__name__}")


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"town": {"enum": ["Bern", "Basel"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["town", "days"],
            "additionalProperties": False,
        },
    },
}


@check
def calls_a_tool_and_accepts_its_result():
    answer = ask(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False).choices[0]
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    [call] = answer.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "weather" and arguments["town"] in ("Bern", "Basel") and 1 <= arguments["days"] <= 7
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    after = client.chat.completions.create(
        model=MODEL, messages=[*QUESTIONS, answer.message, result], tools=[WEATHER], tool_choice="none", max_tokens=4
    )
    assert after.choices[0].message.content


@check
def streams_the_same_call():
    options = {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    whole = ask(parallel_tool_calls=False, **options).choices[0].message.tool_calls[0].function
    with client.chat.completions.stream(
        model=MODEL, messages=QUESTIONS, temperature=0, parallel_tool_calls=False, **options
    ) as stream:
        final = stream.get_final_completion().choices[0].message.tool_calls[0].function
    assert (final.name, final.arguments) == (whole.name, whole.arguments)


class Verdict(BaseModel):
    fits: bool
    reason: Literal["memory", "bandwidth"]
    chips: list[Literal["M1", "M4"]] = Field(min_length=1, max_length=2)
    note: Optional[Literal["none"]]


@check
def returns_structured_output():
    answer = client.chat.completions.parse(model=MODEL, messages=QUESTIONS, temperature=0, response_format=Verdict)
    verdict = answer.choices[0].message.parsed
    assert isinstance(verdict, Verdict) and 1 <= len(verdict.chips) <= 2
    assert answer.choices[0].finish_reason == "stop"


FLAT_WEATHER = {"type": "function", **WEATHER["function"], "strict": True}


@check
def responds():
    whole = ask(max_tokens=12).choices[0].message.content
    response = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=12, temperature=0)
    assert response.output_text == whole
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.usage.output_tokens == 12 and not response.model_extra.get("error")


@check
def streams_the_same_response():
    options = {"model": MODEL, "input": QUESTIONS, "max_output_tokens": 12, "temperature": 0}
    whole = client.responses.create(**options)
    events = list(client.responses.create(stream=True, **options))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text == whole.output_text


@check
def responds_with_a_call_and_accepts_its_result():
    options = {"model": MODEL, "temperature": 0, "tools": [FLAT_WEATHER]}
    required = {"tool_choice": "required", "parallel_tool_calls": False}
    response = client.responses.create(input=QUESTIONS, **required, **options)
    [call] = [item for item in response.output if item.type == "function_call"]
    assert call.name == "weather" and json.loads(call.arguments)["town"] in ("Bern", "Basel")
    with client.responses.stream(input=QUESTIONS, **required, **options) as stream:
        final = stream.get_final_response()
    [again] = [item for item in final.output if item.type == "function_call"]
    assert again.arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    history = [*QUESTIONS, *response.output, result]
    after = client.responses.create(input=history, tool_choice="none", max_output_tokens=4, **options)
    assert after.output_text


@check
def responds_with_structured_output():
    response = client.responses.parse(model=MODEL, input=QUESTION, temperature=0, text_format=Verdict)
    assert isinstance(response.output_parsed, Verdict) and response.status == "completed"


@check
def stores_and_deletes_responses():
    first = client.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=4)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    more = dict(model=MODEL, input="And?", temperature=0, max_output_tokens=4)
    second = client.responses.create(previous_response_id=first.id, **more)
    assert second.usage.input_tokens > first.usage.total_tokens
    client.responses.delete(first.id)
    try:
        client.responses.create(previous_response_id=first.id, **more)
    except openai.BadRequestError as raised:
        assert (raised.param, raised.code) == ("previous_response_id", "previous_response_not_found")
    else:
        raise AssertionError("no BadRequestError")
