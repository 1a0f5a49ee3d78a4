"""langchain-openai against a gateway."""

from typing import Literal

from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from setting import MODEL, QUESTION, base_url, check

chat = ChatOpenAI(
    model=MODEL, base_url=base_url(), api_key="any", temperature=0, max_tokens=12, max_retries=0, stream_usage=True
)


@check
def returns_a_whole_answer():
    answer = chat.invoke(QUESTION)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] == 12


@check
def streams_the_same_text():
    chunks = list(chat.stream(QUESTION))
    assert "".join(chunk.content for chunk in chunks) == chat.invoke(QUESTION).content
    assert any(chunk.usage_metadata for chunk in chunks)


class Weather(BaseModel):
    """The weather of a town."""

    town: Literal["Bern", "Basel"]


@check
def returns_structured_output():
    wide = chat.model_copy(update={"max_tokens": 200})
    for method in ("json_schema", "function_calling"):
        answer = wide.with_structured_output(Weather, method=method).invoke(QUESTION)
        assert answer.town in ("Bern", "Basel"), method
