"""ollama-python against a server that keeps the model loaded for one hour: residency of the model."""

import datetime
import os
import time

import ollama
from setting import QUESTION, check

MODEL = "brief"
MINUTES = {"hour": 60, "requested": 10}
client = ollama.Client(host=os.environ["ROOFLET_GATEWAY"])
GREEDY = {"temperature": 0, "num_predict": 4}


def running():
    """Returns the entry of the model in the list of running models, or None."""
    found = [model for model in client.ps().models if model.model == f"{MODEL}:latest"]
    return found[0] if found else None


def wait_until_unloaded():
    end = time.monotonic() + 60
    while running():
        assert time.monotonic() < end, running()


def check_end(minutes):
    left = running().expires_at - datetime.datetime.now(datetime.timezone.utc)
    assert minutes - 1 < left.total_seconds() / 60 <= minutes + 0.1, left


@check
def empty_requests_unload_and_load():
    for request in [client.generate, client.chat]:
        assert request(MODEL, keep_alive=0).done_reason == "unload"
        wait_until_unloaded()
        assert request(MODEL, keep_alive="10m").done_reason == "load"
        check_end(MINUTES["requested"])


@check
def request_loads_an_unloaded_model():
    client.generate(MODEL, keep_alive=0)
    wait_until_unloaded()
    first = client.generate(MODEL, QUESTION, options=GREEDY)
    again = client.generate(MODEL, QUESTION, options=GREEDY)
    assert first.response == again.response and first.load_duration > 0 and again.load_duration == 0
    check_end(MINUTES["hour"])


@check
def requests_set_the_time():
    client.chat(MODEL, messages=[{"role": "user", "content": QUESTION}], options=GREEDY, keep_alive="10m")
    check_end(MINUTES["requested"])
    # A request without the field changes nothing.
    client.embed(MODEL, QUESTION)
    check_end(MINUTES["requested"])
    client.embed(MODEL, QUESTION, keep_alive=-1)
    assert running().expires_at.year > 2100
    *_, last = client.generate(MODEL, QUESTION, options=GREEDY, stream=True, keep_alive=0)
    assert last.done_reason == "length"
    wait_until_unloaded()
