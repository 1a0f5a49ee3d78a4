"""openai and langchain-openai on any chat template: each format and each required tool holds."""

from typing import Literal

from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, Field
from setting import EXTRA_BODY, MODEL, QUESTION, base_url, check

client = OpenAI(base_url=base_url(), api_key="any", max_retries=0)
OPTIONS = {"model": MODEL, "temperature": 0, "extra_body": EXTRA_BODY}


class Verdict(BaseModel):
    """Judgement of a question."""

    kind: Literal["program", "person"]
    chips: list[Literal["M4", "M5"]] = Field(min_length=1, max_length=2)


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"town": {"enum": ["Bern", "Basel"]}},
            "required": ["town"],
            "additionalProperties": False,
        },
    },
}


def messages():
    return [{"role": "user", "content": QUESTION}]


@check
def openai_parses_a_strict_format():
    answer = client.chat.completions.parse(messages=messages(), response_format=Verdict, max_tokens=600, **OPTIONS)
    choice = answer.choices[0]
    assert isinstance(choice.message.parsed, Verdict), choice
    assert choice.finish_reason == "stop", choice


@check
def openai_parses_a_response():
    response = client.responses.parse(input=QUESTION, text_format=Verdict, max_output_tokens=600, **OPTIONS)
    assert isinstance(response.output_parsed, Verdict), response


@check
def openai_calls_a_required_tool():
    answer = client.chat.completions.create(
        messages=messages(), tools=[WEATHER], tool_choice="required", max_tokens=600, **OPTIONS
    )
    calls = answer.choices[0].message.tool_calls
    assert calls and calls[0].function.name == "weather", answer
    assert "Bern" in calls[0].function.arguments or "Basel" in calls[0].function.arguments


@check
def langchain_returns_structured_output():
    chat = ChatOpenAI(
        model=MODEL, base_url=base_url(), api_key="any", temperature=0, max_tokens=600, extra_body=EXTRA_BODY
    )
    for method in ("json_schema", "function_calling"):
        answer = chat.with_structured_output(Verdict, method=method).invoke(QUESTION)
        assert isinstance(answer, Verdict), method
