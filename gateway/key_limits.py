"""How much each key may use at a time and in a minute."""

import threading
import time
from collections.abc import Callable

from backends.api.errors import Code, ServingError
from gateway.keys import Key

_MINUTE = 60.0
_BUSY_WAIT = 1.0  # seconds to come back in when all of a key's slots are taken: nobody knows when one ends


class Bucket:
    """An allowance that fills up evenly, `amount` a minute and never more than that. `now` in seconds, any origin.

    What is charged afterwards may take it below zero; it must then fill up first.
    """

    def __init__(self, amount: int, now: float) -> None:
        self._amount = amount
        self._level = float(amount)
        self._updated = now

    def wait(self, now: float) -> float:
        """Seconds until a whole unit is there; 0.0 when it is there now."""
        self._fill(now)
        return 0.0 if self._level >= 1 else (1 - self._level) * _MINUTE / self._amount

    def charge(self, units: int, now: float) -> None:
        self._fill(now)
        self._level -= units

    def _fill(self, now: float) -> None:
        grown = self._level + max(0.0, now - self._updated) * self._amount / _MINUTE
        self._level, self._updated = min(grown, float(self._amount)), now


class _Account:
    def __init__(self, key: Key, now: float) -> None:
        self.num_open = 0
        self.requests = Bucket(key.requests_per_minute, now) if key.requests_per_minute else None
        self.tokens = Bucket(key.tokens_per_minute, now) if key.tokens_per_minute else None


class KeyLimits:
    """Owns what each key has used. Used by the event loop and by gRPC's threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # two threads may enter with the last slot of one key
        self._accounts: dict[str, _Account] = {}

    def enter(self, key: Key) -> None:
        """Count a request as open until `leave`. Raises ServingError(OVERLOADED) past one of the key's limits."""
        now = self._clock()
        with self._lock:
            account = self._account(key, now)
            if key.max_concurrent_requests is not None and account.num_open >= key.max_concurrent_requests:
                raise _exceeded(f"{key.max_concurrent_requests} requests at a time", _BUSY_WAIT)
            _check(account.tokens, now, f"{key.tokens_per_minute} tokens a minute")
            _check(account.requests, now, f"{key.requests_per_minute} requests a minute")
            account.num_open += 1
            if account.requests is not None:
                account.requests.charge(1, now)

    def leave(self, key: Key) -> None:
        with self._lock:
            self._accounts[key.name].num_open -= 1

    def spend(self, key: Key, tokens: int) -> None:
        """Charge the tokens of a request that has ended."""
        now = self._clock()
        with self._lock:
            account = self._account(key, now)
            if account.tokens is not None:
                account.tokens.charge(tokens, now)

    def num_open(self, key: Key) -> int:
        with self._lock:
            return self._account(key, self._clock()).num_open

    def _account(self, key: Key, now: float) -> _Account:
        account = self._accounts.get(key.name)
        if account is None:
            account = self._accounts[key.name] = _Account(key, now)
        return account


def _check(bucket: Bucket | None, now: float, limit: str) -> None:
    wait = bucket.wait(now) if bucket is not None else 0.0
    if wait > 0:
        raise _exceeded(limit, wait)


def _exceeded(limit: str, wait: float) -> ServingError:
    message = f"this API key may make {limit}" if "request" in limit else f"this API key may use {limit}"
    return ServingError(Code.OVERLOADED, message, reason="rate_limit_exceeded", retry_after=wait)
