"""ollama-python against a gateway: common calls, parsed results and raised errors."""

import datetime
import json
import os

import httpx
import ollama
from setting import MODEL, QUESTION, check

GATEWAY = os.environ["ROOFLET_GATEWAY"]
client = ollama.Client(host=GATEWAY)
QUESTIONS = [{"role": "user", "content": QUESTION}]
GREEDY = {"temperature": 0, "num_predict": 12}
TOWN = {
    "type": "object",
    "properties": {"town": {"enum": ["Bern", "Basel"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["town", "days"],
    "additionalProperties": False,
}


def weather(town: str) -> str:
    """Returns the weather in a town.

    Args:
      town: Name of the town.
    """
    return f"sunny in {town}"


def ask(**options):
    options = {"messages": QUESTIONS, "options": GREEDY, **options}
    return client.chat(MODEL, **options)


def check_figures(answer, tokens):
    assert answer.done and answer.eval_count == tokens and answer.prompt_eval_count > 0
    assert 0 < answer.prompt_eval_duration and 0 < answer.eval_duration
    assert answer.prompt_eval_duration + answer.eval_duration <= answer.total_duration
    assert datetime.datetime.fromisoformat(answer.created_at).tzinfo


@check
def finds_the_server_and_its_models():
    assert httpx.head(GATEWAY).status_code == 200
    assert httpx.get(GATEWAY).text == "Ollama is running"
    assert httpx.get(f"{GATEWAY}/api/version").json()["version"]
    [listed] = client.list().models
    assert listed.model == f"{MODEL}:latest" and listed.size > 0 and len(listed.digest) == 64
    assert listed.details.family and listed.details.parameter_size and listed.modified_at
    [running] = client.ps().models
    assert running.model == listed.model and running.digest == listed.digest and running.context_length > 0
    assert running.expires_at > datetime.datetime.now(datetime.timezone.utc)


@check
def shows_a_model():
    for name in [MODEL, f"{MODEL}:latest"]:
        shown = client.show(name)
        architecture = shown.modelinfo["general.architecture"]
        assert architecture == shown.details.family
        assert shown.modelinfo[f"{architecture}.context_length"] > 0
        assert "completion" in shown.capabilities and "messages" in shown.template
        assert shown.parameters.splitlines()[0].split()[0] == "temperature"


@check
def answers_whole():
    answer = ask(messages=[{"role": "system", "content": "Be terse."}, *QUESTIONS])
    assert answer.message.role == "assistant" and answer.message.content
    assert answer.model == MODEL and answer.done_reason == "length"
    check_figures(answer, 12)
    assert client.chat(f"{MODEL}:latest", messages=QUESTIONS, options=GREEDY).message.content == ask().message.content


@check
def streams_the_same_text():
    whole = ask().message.content
    *parts, last = ask(stream=True)
    assert len(parts) > 2 and not any(part.done for part in parts)
    assert "".join(part.message.content for part in parts) + last.message.content == whole
    assert last.done_reason == "length"
    check_figures(last, 12)


@check
def generates_with_and_without_the_template():
    whole = client.generate(MODEL, QUESTION, system="", options=GREEDY)
    assert whole.response == ask().message.content
    *parts, last = client.generate(MODEL, QUESTION, stream=True, options=GREEDY)
    assert "".join(part.response for part in parts) + last.response == whole.response
    check_figures(last, 12)
    raw = client.generate(MODEL, "rooflet is", raw=True, options={"temperature": 0, "num_predict": 4})
    assert raw.response and raw.eval_count == 4
    assert raw.prompt_eval_count < whole.prompt_eval_count


@check
def loads_and_unloads():
    for request in [client.generate(MODEL, keep_alive=-1), client.generate(MODEL, keep_alive=0), client.chat(MODEL)]:
        assert request.done and request.done_reason == "load"
    answer = httpx.post(f"{GATEWAY}/api/generate", json={"model": MODEL, "keep_alive": "5m", "options": {"num_ctx": 64}})
    assert answer.headers["x-rooflet-ignored-fields"] == "options.num_ctx, keep_alive"


@check
def stops_at_a_string():
    whole = ask(options={**GREEDY, "num_predict": 24}).message.content
    word = whole.split()[2]
    cut = ask(options={**GREEDY, "num_predict": 24, "stop": ["never generated", word]})
    assert cut.message.content == whole[: whole.index(word)] and cut.done_reason == "stop"


@check
def answers_in_a_format():
    options = {"options": {"temperature": 0, "num_predict": 200}}
    answer = json.loads(ask(format=TOWN, **options).message.content)
    assert answer["town"] in ("Bern", "Basel") and 1 <= answer["days"] <= 7
    streamed = "".join(part.message.content for part in ask(format=TOWN, stream=True, **options))
    assert json.loads(streamed) == answer
    assert json.loads(client.generate(MODEL, QUESTION, format=TOWN, **options).response) == answer


@check
def accepts_tools_and_their_results():
    answer = ask(tools=[weather])
    assert answer.message.content or answer.message.tool_calls
    call = {"function": {"name": "weather", "arguments": {"town": "Bern"}}}
    history = [
        *QUESTIONS,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": weather("Bern")},
    ]
    with_result = ask(messages=history, tools=[weather])
    assert with_result.prompt_eval_count > answer.prompt_eval_count
    assert with_result.message.content or with_result.message.tool_calls


@check
def returns_logprobs():
    answer = ask(logprobs=True, top_logprobs=2)
    assert len(answer.logprobs) == 12
    assert all(score.logprob <= 0 and len(score.top_logprobs) == 2 for score in answer.logprobs)
    assert answer.logprobs[0].top_logprobs[0].token == answer.logprobs[0].token
    streamed = [score for part in ask(logprobs=True, stream=True) for score in part.logprobs or []]
    assert [score.token for score in streamed] == [score.token for score in answer.logprobs]


@check
def embeds():
    embedded = client.embed(MODEL, [QUESTION, "Bern"])
    assert len(embedded.embeddings) == 2 and embedded.prompt_eval_count > 0
    for vector in embedded.embeddings:
        assert abs(sum(number * number for number in vector) - 1) < 1e-3
    assert client.embed(MODEL, QUESTION).embeddings == embedded.embeddings[:1]
    assert client.embeddings(MODEL, QUESTION).embedding == embedded.embeddings[0]


@check
def raises_specific_errors():
    image = [{"role": "user", "content": "What is this?", "images": [b"not an image"]}]
    for wrong, status, words in [
        (lambda: client.chat("nobody", messages=QUESTIONS), 404, "nobody"),
        (lambda: client.show("nobody"), 404, "nobody"),
        (lambda: next(client.chat("nobody", messages=QUESTIONS, stream=True)), 404, "nobody"),
        (lambda: ask(options={"temperature": -1}), 400, "options.temperature"),
        (lambda: ask(messages=image), 400, "messages[0].images"),
        (lambda: ask(messages=[{"role": "user", "content": QUESTION * 5000}]), 400, "maximum context length"),
        (lambda: client.generate(MODEL, QUESTION, suffix="the end"), 400, "suffix"),
        (lambda: client.pull("llama3.2"), 400, "ModelDeployment"),
        (lambda: client.delete(MODEL), 400, "ModelDeployment"),
    ]:
        try:
            wrong()
        except ollama.ResponseError as raised:
            assert raised.status_code == status and words in raised.error, (raised.status_code, raised.error)
        else:
            raise AssertionError(f"no error: {words}")
