"""litellm against a gateway."""

import litellm
from setting import MODEL, QUESTION, base_url, check

ASK = {
    "model": f"openai/{MODEL}",
    "api_base": base_url(),
    "api_key": "any",
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 12,
    "num_retries": 0,
}


@check
def returns_a_whole_answer():
    answer = litellm.completion(temperature=0, **ASK)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 12


@check
def streams_the_same_text():
    whole = litellm.completion(temperature=0, **ASK).choices[0].message.content
    stream = litellm.completion(temperature=0, stream=True, **ASK)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole


@check
def raises_a_bad_request():
    try:
        litellm.completion(**{**ASK, "messages": [{"role": "user", "content": QUESTION * 5000}]})
    except litellm.BadRequestError as raised:
        assert "context" in str(raised)
    else:
        raise AssertionError("no BadRequestError")
