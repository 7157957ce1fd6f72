"""Runs a client script's checks one by one, in its own environment, with nothing but the standard library.

A script defines functions with names of CHECKS and calls `run(globals())`, which prints one line of JSON for each.
"""

import json
import os
import time
import traceback
import urllib.request
from typing import Any

CHECKS = ("chat", "stream", "tools", "structured", "embeddings", "error", "cancel")

URL = os.environ["SERVER_URL"]  # without /v1
METRICS_URL = os.environ["METRICS_URL"]
EMBEDDING_MODEL = os.environ["EMBEDDING_MODEL"]

QUESTION = "What is the capital of France?"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
# long enough that only a cancel ends it soon
ENDLESS = {"ignore_eos": True}
ENDLESS_TOKENS = 4000


def wait_until_idle(seconds: float = 10.0) -> None:
    """Return when the server generates for nobody: what a cancel must come to."""
    end = time.monotonic() + seconds
    while _num_running():
        assert time.monotonic() < end, "the server still generates"
        time.sleep(0.05)


def _num_running() -> float:
    text = urllib.request.urlopen(METRICS_URL + "/metrics").read().decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def run(script: dict[str, Any]) -> None:
    for name in CHECKS:
        check = script.get(name)
        if check is not None:
            print(json.dumps({"check": name, **_outcome(check)}), flush=True)


def _outcome(check: Any) -> dict[str, str]:
    try:
        detail = check()
    except BaseException as error:
        traceback.print_exc()
        return {"outcome": "failed", "detail": f"{type(error).__name__}: {error}"[:500]}
    return {"outcome": "passed", "detail": detail or ""}
