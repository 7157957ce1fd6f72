"""aiperf against each endpoint that generates."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import URL

NUM_REQUESTS = 8


def profile(kind: str, folder: Path) -> dict[str, str]:
    options = {
        "--model": "chat",
        "--url": URL,
        "--endpoint-type": kind,
        "--tokenizer": os.environ["TOKENIZER"],
        "--request-count": str(NUM_REQUESTS),
        "--concurrency": "4",
        "--synthetic-input-tokens-mean": "64",
        "--output-tokens-mean": "16",
        "--ui": "none",
        "--artifact-dir": str(folder),
    }
    words = [word for option in options.items() for word in option]
    program = Path(sys.executable).parent / "aiperf"
    flags = ["--streaming", "--reset-kv-cache"]
    if kind != "responses":  # where it reads the usage of complete ones alone, and these are cut by their limit
        flags.append("--use-server-token-count")
    # told to be offline, it would look for the tokenizer in a cache alone
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    subprocess.run(
        [str(program), "profile", *words, *flags], check=True, stdout=sys.stderr, stderr=sys.stderr, env=environment
    )
    (written,) = folder.rglob("profile_export_aiperf.json")
    report = json.loads(written.read_text())
    answered = report["request_count"]["avg"]
    is_whole = answered == NUM_REQUESTS and not report.get("error_summary")
    tokens = report["output_sequence_length"]["avg"]
    detail = f"{answered:g} of {NUM_REQUESTS} answered, {tokens:g} tokens each"
    return {"check": kind, "outcome": "passed" if is_whole else "failed", "detail": detail}


for kind in ("chat", "completions", "responses"):
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(profile(kind, Path(name))), flush=True)
