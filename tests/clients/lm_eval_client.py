"""lm-eval's `local-completions` on a task of our own: token ids, echo and log-probabilities, with the server's tokenizer."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import URL

CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Germany": "Berlin",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Russia": "Moscow",
    "Greece": "Athens",
    "Austria": "Vienna",
}
CHOICES = list(CAPITALS.values())
TASK = """
task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "The capital of {{{{country}}}} is"
doc_to_choice: {choices}
doc_to_target: "{{{{place}}}}"
metric_list: [{{metric: acc}}]
"""
SPOKEN = """
task: capitals_spoken
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: generate_until
doc_to_text: "The capital of {{{{country}}}} is the city of"
doc_to_target: "{{{{capital}}}}"
generation_kwargs: {{until: [".", ",", "\\n"], max_gen_toks: 4, temperature: 0}}
filter_list: [{{name: first, filter: [{{function: regex, regex_pattern: "([A-Z][a-z]+)"}}, {{function: take_first}}]}}]
metric_list: [{{metric: exact_match, ignore_case: true}}]
"""


def write_tasks(folder: Path) -> None:
    documents = [
        {"country": country, "capital": capital, "place": place}
        for place, (country, capital) in enumerate(CAPITALS.items())
    ]
    data = folder / "capitals.json"
    data.write_text("\n".join(json.dumps(document) for document in documents))
    (folder / "capitals.yaml").write_text(TASK.format(data=data, choices=json.dumps(CHOICES)))
    (folder / "capitals_spoken.yaml").write_text(SPOKEN.format(data=data))


def evaluate(folder: Path) -> dict[str, dict[str, float]]:
    """Each task's metrics."""
    arguments = f"model=chat,base_url={URL}/v1/completions,num_concurrent=4,max_retries=1,max_length=2048"
    command = ["--model", "local-completions", "--model_args", arguments, "--tasks", "capitals,capitals_spoken"]
    command += ["--include_path", str(folder), "--output_path", str(folder / "results")]
    subprocess.run([str(Path(sys.executable).parent / "lm_eval"), *command], check=True, stdout=sys.stderr)
    (written,) = (folder / "results").rglob("results_*.json")
    found: dict[str, dict[str, float]] = json.loads(written.read_text())["results"]
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        write_tasks(Path(name))
        results = evaluate(Path(name))
    for task, metric in (("capitals", "acc,none"), ("capitals_spoken", "exact_match,first")):
        score = results[task][metric]
        outcome = "passed" if score >= 0.6 else "failed"  # the model knows these capitals
        detail = f"{metric.partition(',')[0]} {score:.3f} of {len(CAPITALS)}"
        print(json.dumps({"check": task, "outcome": outcome, "detail": detail}), flush=True)


main()
