"""instructor against a gateway: validated objects by a strict format, by tools and by free JSON."""

from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field
from setting import EXTRA_BODY, MODEL, QUESTION, base_url, check


class Verdict(BaseModel):
    """Judgement of a question."""

    kind: Literal["program", "person"]
    certain: bool
    words: list[Literal["node", "model"]] = Field(max_length=3)


def ask(mode, **more):
    client = instructor.from_openai(OpenAI(base_url=base_url(), api_key="any", max_retries=0), mode=mode)
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        response_model=more.pop("response_model", Verdict),
        temperature=0,
        max_tokens=600,
        max_retries=0,
        extra_body=EXTRA_BODY,
        **more,
    )


@check
def returns_objects_in_each_mode():
    # The guide is a tiny model, so only modes that enforce the schema can succeed.
    for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
        assert isinstance(ask(mode), Verdict), mode


@check
def streams_partial_objects():
    partial = instructor.Partial[Verdict]
    parts = list(ask(instructor.Mode.JSON_SCHEMA, response_model=partial, stream=True))
    assert len(parts) > 1
    Verdict.model_validate(parts[-1].model_dump())
