"""Our answers against those of a real Triton as they were recorded."""

import json
from pathlib import Path
from typing import Any

from tests.oracle.differences import Difference, as_we_say

FOLDER = Path(__file__).parent / "recorded"
DOCUMENT = Path(__file__).parents[2] / "docs" / "triton_differences.md"


def recorded(kind: str) -> dict[str, Any]:
    path = FOLDER / f"{kind}.json"
    answers: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return answers


def record(kind: str, answers: dict[str, Any]) -> None:
    (FOLDER / f"{kind}.json").write_text(json.dumps(answers, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def check(ours: Any, tritons: Any, difference: Difference | None) -> None:
    if difference is None:
        assert as_we_say(ours) == as_we_say(tritons)
        return
    assert ours != tritons, "this is no difference any more: take it out of the list"
    assert difference.ours in json.dumps(ours, ensure_ascii=False)
    assert difference.row in DOCUMENT.read_text(), "tell users: a row in docs/triton_differences.md"


def check_all(ours: dict[str, Any], tritons: dict[str, Any], differences: dict[str, Difference]) -> None:
    """Every case of `ours`, each fault told."""
    assert ours.keys() == tritons.keys()
    faults = []
    for case, answer in ours.items():
        try:
            check(answer, tritons[case], differences.get(case))
        except AssertionError as fault:
            faults.append(f"{case}: {fault}\n  ours     {answer}\n  Triton's {tritons[case]}")
    assert not faults, "\n".join(faults)
