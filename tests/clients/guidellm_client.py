"""guidellm against each endpoint that generates."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import URL

NUM_REQUESTS = 8


def measure(endpoint: str, folder: Path) -> dict[str, str]:
    written = folder / "report.json"
    options = {
        "--backend": f"kind=openai_http,target={URL},model=chat,request_format={endpoint}",
        "--profile": "kind=concurrent,streams=[4]",
        "--constraint": f"kind=max_requests,count={NUM_REQUESTS}",
        "--tokenizer": f"kind=huggingface_auto,model={os.environ['TOKENIZER']}",
        "--data": "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
        "--output": f"kind=json,path={written}",
    }
    words = [word for option in options.items() for word in option]
    program = Path(sys.executable).parent / "guidellm"
    subprocess.run(
        [str(program), "run", *words, "--disable-console-interactive"], check=True, stdout=sys.stderr, stderr=sys.stderr
    )
    (benchmark,) = json.loads(written.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    tokens = benchmark["metrics"]["output_token_count"]["successful"]["mean"]
    is_whole = totals["successful"] >= NUM_REQUESTS and not totals["errored"]
    detail = f"{totals['successful']} answered, {totals['errored']} errors, {tokens:g} tokens each"
    return {"check": endpoint, "outcome": "passed" if is_whole else "failed", "detail": detail}


for endpoint in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(measure(endpoint, Path(name))), flush=True)
