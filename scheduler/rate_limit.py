"""Limits on how many instances run at once across models: Triton's rate limiter (`--rate-limit=execution_count`).

An instance needs its group's resources while it executes. There are as many of each as the hungriest
instance needs, unless the operator says otherwise. Of the instances that wait for the same resource, the
one with the fewest executions, times its priority, goes first.
"""

import threading
from collections.abc import Mapping
from types import TracebackType

from backends.api.base import Placement
from backends.api.errors import Code, ServingError
from backends.api.model_config import InstanceGroup

Resource = tuple[str, int]  # name, device; device -1 is shared by all


class Claim:
    """One instance's right to execute: `with claim:` waits for its resources and gives them back."""

    def __init__(self, limiter: "RateLimiter", needs: Mapping[Resource, int], priority: int) -> None:
        self.needs = needs
        self.priority = max(1, priority)
        self.num_executions = 0
        self._limiter = limiter

    def drop(self) -> None:
        """The instance is gone."""
        self._limiter.forget(self)

    @property
    def score(self) -> int:
        return self.num_executions * self.priority

    def __enter__(self) -> None:
        self._limiter.acquire(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limiter.release(self)


class RateLimiter:
    """Owns the resources. `limits` are the operator's counts: by name and device, device -1 for every one."""

    def __init__(self, limits: Mapping[Resource, int] | None = None) -> None:
        self._limits = dict(limits or {})
        self._changed = threading.Condition()
        self._claims: list[Claim] = []
        self._waiting: list[Claim] = []
        self._used: dict[Resource, int] = {}

    def claim(self, group: InstanceGroup, placement: Placement) -> Claim:
        """A claim for an instance of `group`. Raises ServingError(INVALID) for more than there can ever be."""
        needs: dict[Resource, int] = {}
        for resource in group.resources:
            key = (resource.name, -1 if resource.is_global else placement.device)
            needs[key] = resource.count
        for key, count in needs.items():
            limit = self._limit(key)
            if limit is not None and count > limit:
                raise ServingError(
                    Code.INVALID,
                    f'Resource count for "{key[0]}" is limited to {limit} which will prevent scheduling of one or '
                    f"more model instances, the minimum required count is {count}",
                )
        claim = Claim(self, needs, group.resource_priority)
        with self._changed:
            self._claims.append(claim)
        return claim

    def forget(self, claim: Claim) -> None:
        with self._changed:
            self._claims.remove(claim)
            self._changed.notify_all()

    def acquire(self, claim: Claim) -> None:
        with self._changed:
            self._waiting.append(claim)
            self._changed.wait_for(lambda: self._may_go(claim))
            self._waiting.remove(claim)
            for key, count in claim.needs.items():
                self._used[key] = self._used.get(key, 0) + count
            self._changed.notify_all()

    def release(self, claim: Claim) -> None:
        with self._changed:
            claim.num_executions += 1
            for key, count in claim.needs.items():
                self._used[key] -= count
            self._changed.notify_all()

    def _may_go(self, claim: Claim) -> bool:
        if any(self._used.get(key, 0) + count > self._total(key) for key, count in claim.needs.items()):
            return False
        # one that needs much would starve if those that need little could always pass it
        return not any(other.score < claim.score and other.needs.keys() & claim.needs.keys() for other in self._waiting)

    def _limit(self, key: Resource) -> int | None:
        return self._limits.get(key, self._limits.get((key[0], -1)))

    def _total(self, key: Resource) -> int:
        limit = self._limit(key)
        if limit is not None:
            return limit
        return max((claim.needs.get(key, 0) for claim in self._claims), default=0)
