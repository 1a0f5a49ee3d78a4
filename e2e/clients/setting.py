"""Shared settings of all clients: the gateway's address, and the decorator that runs a check."""

import os
import traceback

MODEL = "guide"
QUESTION = "What is rooflet?"


def base_url():
    return os.environ["ROOFLET_GATEWAY"] + "/v1"


def check(body):
    """Runs a check immediately. The first failure exits the process."""
    try:
        body()
    except BaseException:
        traceback.print_exc()
        raise SystemExit(f"failed: {body.__name__}")
    print(f"ok: {body.__name__}")
