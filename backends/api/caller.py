"""Who asks: what the gateway's keys say about the request that is being answered."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass


def _ignore(tokens: int) -> None:
    """For callers whose tokens nobody counts."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The rights of one request's key, as far as they change how the request is carried out.

    `cache_salt` keeps the cached prefixes of this caller's prompts apart from those of others. `best_priority` is the
    lowest number (the most urgent) it may ask for, None for any. `spend` is told how many tokens a request took.
    """

    name: str = ""
    cache_salt: str = ""
    best_priority: int | None = None
    spend: Callable[[int], None] = _ignore

    def salted(self, wanted: str) -> str:
        """The salt to use for a request that asks for `wanted`, which has no '/' in it."""
        return f"{self.cache_salt}/{wanted}" if self.cache_salt else wanted

    def priority(self, wanted: int) -> int:
        return wanted if self.best_priority is None else max(wanted, self.best_priority)


ANYONE = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller", default=ANYONE)
"""Set for the task that answers a request, before the first endpoint sees it; threads do not inherit it."""
