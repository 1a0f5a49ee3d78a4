"""What all clients share: where the gateway is, and how a check is run and told."""

import os
import traceback

MODEL = "guide"
QUESTION = "What is rooflet?"


def base_url():
    return os.environ["ROOFLET_GATEWAY"] + "/v1"


def check(body):
    """Runs a check at once; the process fails with the first that does."""
    try:
        body()
    except BaseException:
        traceback.print_exc()
        raise SystemExit(f"failed: {body.__name__}")
    print(f"ok: {body.__name__}")
