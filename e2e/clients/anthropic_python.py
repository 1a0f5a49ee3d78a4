"""anthropic-sdk-python against a gateway: common calls, parsed results and raised errors."""

import os

import anthropic
from anthropic import Anthropic
from setting import MODEL, QUESTION, check

client = Anthropic(base_url=os.environ["ROOFLET_GATEWAY"], api_key="any", max_retries=0)
QUESTIONS = [{"role": "user", "content": QUESTION}]
WEATHER = {
    "name": "weather",
    "description": "The weather in a town.",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"enum": ["Bern", "Basel"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
        "required": ["town", "days"],
        "additionalProperties": False,
    },
}


# The API supports `temperature`, but the SDK no longer has an argument for it.
GREEDY = {"extra_body": {"temperature": 0}}


def ask(**options):
    options = {"max_tokens": 12, "messages": QUESTIONS, **GREEDY, **options}
    return client.messages.create(model=MODEL, **options)


def text(message):
    return "".join(block.text for block in message.content if block.type == "text")


@check
def answers_whole():
    answer = ask(system="Be terse.")
    assert text(answer) and answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 12
    assert answer.role == "assistant" and answer.type == "message" and answer.model == MODEL


@check
def streams_the_same_text():
    whole = text(ask())
    with client.messages.stream(model=MODEL, max_tokens=12, messages=QUESTIONS, **GREEDY) as stream:
        assert "".join(stream.text_stream) == whole
        final = stream.get_final_message()
    assert text(final) == whole and final.stop_reason == "max_tokens" and final.usage.output_tokens == 12


@check
def counts_the_tokens_of_a_prompt():
    count = client.messages.count_tokens(model=MODEL, messages=QUESTIONS).input_tokens
    usage = ask().usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens > 0


@check
def stops_at_a_stop_sequence():
    whole = text(ask(max_tokens=24))
    word = whole.split()[2]
    cut = ask(max_tokens=24, stop_sequences=["never generated", word])
    assert text(cut) == whole[: whole.index(word)]
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", word)


@check
def continues_an_assistant_message():
    whole = text(ask())
    begun = whole[:5].rstrip()
    more = ask(messages=[*QUESTIONS, {"role": "assistant", "content": begun}])
    assert more.usage.input_tokens + more.usage.cache_read_input_tokens > client.messages.count_tokens(
        model=MODEL, messages=QUESTIONS
    ).input_tokens
    assert text(more)


@check
def calls_a_tool_and_accepts_its_result():
    options = {"tools": [WEATHER], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 200}
    answer = ask(**options)
    assert answer.stop_reason == "tool_use"
    [call] = [block for block in answer.content if block.type == "tool_use"]
    assert call.name == "weather" and call.input["town"] in ("Bern", "Basel") and 1 <= call.input["days"] <= 7
    with client.messages.stream(model=MODEL, messages=QUESTIONS, **GREEDY, **options) as stream:
        streamed = stream.get_final_message()
    [again] = [block for block in streamed.content if block.type == "tool_use"]
    assert (again.name, again.input) == (call.name, call.input)
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}
    history = [*QUESTIONS, {"role": "assistant", "content": answer.content}, result]
    assert text(ask(messages=history, tools=[WEATHER], tool_choice={"type": "none"}, max_tokens=4))


@check
def raises_specific_errors():
    for wrong, error in [
        (lambda: ask(max_tokens=0), anthropic.BadRequestError),
        (lambda: client.messages.create(model="nobody", max_tokens=1, messages=QUESTIONS), anthropic.NotFoundError),
        (lambda: ask(extra_body={"temprature": 1}), anthropic.BadRequestError),
        (lambda: ask(messages=[{"role": "user", "content": QUESTION * 5000}]), anthropic.BadRequestError),
    ]:
        try:
            wrong()
        except error as raised:
            assert raised.body["type"] == "error" and raised.body["error"]["message"]
        else:
            raise AssertionError(f"no {error.__name__}")
