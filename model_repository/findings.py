"""What is wrong with a configuration, and where: one finding, its text, and the error made of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from backends.api.errors import Code, ServingError


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault in `file`. `line` and `column` count from 1; 0 is unknown. `suggestion` is what was likely meant.

    `is_warning`: a model with it is served all the same.
    """

    file: str
    message: str
    line: int = 0
    column: int = 0
    suggestion: str = ""
    is_warning: bool = False

    def __str__(self) -> str:
        place = ":".join([self.file, *(str(number) for number in (self.line, self.column) if number)])
        hint = f" Did you mean '{self.suggestion}'?" if self.suggestion else ""
        return f"{place}: {'warning: ' if self.is_warning else ''}{self.message}{hint}"


class ConfigError(ServingError):
    """A configuration that cannot be used: INVALID, or UNSUPPORTED for what is understood and not offered."""

    def __init__(self, finding: Finding, *, code: Code = Code.INVALID) -> None:
        super().__init__(code, str(finding))
        self.finding = finding


def likely(word: str, known: Iterable[str]) -> str:
    """The known name that `word` most resembles, or "" when none is near."""
    candidates = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), candidates, n=1, cutoff=0.55)
    if near:
        return candidates[near[0]]
    # a name that lost or gained a prefix, as FP32 for TYPE_FP32
    parts = [name for lower, name in candidates.items() if lower.endswith("_" + word.lower())]
    return parts[0] if len(parts) == 1 else ""
