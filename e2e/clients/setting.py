"""Shared settings of all clients: the gateway's address, and the decorator that runs a check."""

import json
import os
import traceback

MODEL = os.environ.get("ROOFLET_MODEL", "guide")
# Additional fields of requests: variables of the chat template.
VARIABLES = json.loads(os.environ.get("ROOFLET_TEMPLATE_VARIABLES", "{}"))
EXTRA_BODY = {"chat_template_kwargs": VARIABLES} if VARIABLES else {}
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
