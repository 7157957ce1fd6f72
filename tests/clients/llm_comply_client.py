"""llm-comply: the answers' shapes against OpenAI's and Open Responses' own schemas."""

import json
import subprocess
import sys
from pathlib import Path

from checks import URL

IMAGES = {"image-input", "chat-image-input"}  # which a text model refuses
# a small model sometimes talks to the end of its context
IGNORED = "got 'incomplete'"


def run(form: str) -> dict[str, str]:
    program = Path(sys.executable).parent / "llm-comply"
    asked = ["-u", f"{URL}/v1", "-k", "-", "-m", "chat", "--format", form, "--timeout", "300", "--ignore", IGNORED]
    ended = subprocess.run([str(program), *asked, "--json"], capture_output=True, text=True)
    print(ended.stdout, ended.stderr, file=sys.stderr)
    results = json.loads(ended.stdout)["results"]
    by_status: dict[str, list[str]] = {}
    for result in results:
        by_status.setdefault(result["status"], []).append(result["id"])
    told = ", ".join(
        f"{len(names)} {status} ({', '.join(names)})" if status != "passed" else f"{len(names)} passed"
        for status, names in by_status.items()
    )
    failed = set(by_status.get("failed", [])) - IMAGES
    return {"check": form, "outcome": "failed" if failed else "passed", "detail": told}


for form in ("openai-chat", "open-responses"):
    print(json.dumps(run(form)), flush=True)
