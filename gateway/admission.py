"""Lets requests in by their key: who it is, what it may do, how much of it, and what that changes further in."""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from backends.api.base import LiveModel
from backends.api.caller import CALLER, Caller
from backends.api.errors import Code, ServingError
from gateway.errors import http_status
from gateway.http_body import JSON, App, Receive, Scope, Send, error_body, respond
from gateway.key_limits import KeyLimits
from gateway.key_targets import Target, http_target
from gateway.keys import Key, KeyRing
from openai_api.errors import error_headers
from openai_api.http import header, send_error

log = logging.getLogger(__name__)
Release = Callable[[], None]
Find = Callable[[str, str], LiveModel]


def nothing_to_release() -> None:
    """What is called at the end of a request that holds nothing."""


class Gate:
    """The keys and what they have used, for every face of one server.

    With `share_prefixes`, prompts of different keys may meet in the prefix cache.
    """

    def __init__(self, ring: KeyRing, limits: KeyLimits, *, share_prefixes: bool = False) -> None:
        self._ring = ring
        self._limits = limits
        self._callers = {key.name: self._caller(key, share_prefixes) for key in ring}
        self._keys = {key.name: key for key in ring}

    def authenticate(self, authorization: str) -> Key:
        """Raises ServingError(UNAUTHENTICATED)."""
        return self._ring.find(authorization)

    def enter(self, key: Key, target: Target) -> Release:
        """Take `target` on for `key`; call what is returned at its end, once.

        Raises ServingError: FORBIDDEN, or OVERLOADED past one of the key's limits.
        """
        check_rights(key, target)
        if not target.is_work:
            return nothing_to_release
        self._limits.enter(key)
        return partial(self._limits.leave, key)

    def caller(self, key: Key) -> Caller:
        return self._callers[key.name]

    def find_permitted(self, find: Find, name: str, version: str) -> LiveModel:
        """`find`, for the key of the current task alone. Without a key in sight, nothing is found."""
        model = find(name, version)
        if not self._current_may_use(model):
            raise _model_not_allowed(name)
        return model

    def only_permitted(self, list_models: Callable[[], list[LiveModel]]) -> list[LiveModel]:
        return [model for model in list_models() if self._current_may_use(model)]

    def _current_may_use(self, model: LiveModel) -> bool:
        key = self._keys.get(CALLER.get().name)
        return key is not None and key.may_use(model.config.name)

    def _caller(self, key: Key, share_prefixes: bool) -> Caller:
        salt = "" if share_prefixes else key.cache_salt
        return Caller(key.name, salt, key.priority, partial(self._limits.spend, key))


def check_rights(key: Key, target: Target) -> None:
    """Raise ServingError(FORBIDDEN) for what `key` may not do."""
    if key.faces.isdisjoint(target.faces):
        wanted = " or ".join(sorted(face.value for face in target.faces))
        raise ServingError(Code.FORBIDDEN, f"this API key may not do that: it has no right to '{wanted}'")
    if target.model and not key.may_use(target.model):
        raise _model_not_allowed(target.model)
    if target.is_overview and not key.may_use_all:
        raise ServingError(Code.FORBIDDEN, "this API key is for some models only: ask for one of them by its name")


def _model_not_allowed(name: str) -> ServingError:
    message = f"this API key may not use the model '{name[:200]}'"
    return ServingError(Code.FORBIDDEN, message, param="model", reason="model_not_allowed")


class Admission:
    """Lets only requests with a sufficient key through to `app`. Installed only where there are keys."""

    def __init__(self, app: App, gate: Gate, *, guard_metrics: bool = False) -> None:
        self._app = app
        self._gate = gate
        self._guard_metrics = guard_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        target = http_target(scope["method"], scope["path"], guard_metrics=self._guard_metrics)
        if target is None:
            await self._app(scope, receive, send)
            return
        try:
            key = self._gate.authenticate(header(scope, b"authorization"))
            release = self._gate.enter(key, target)
        except ServingError as error:
            await refuse(scope, send, error)
            return
        CALLER.set(self._gate.caller(key))  # for this request's task and those it starts
        try:
            await self._app(scope, receive, send)
        finally:
            release()


async def refuse(scope: Scope, send: Send, error: ServingError) -> None:
    """Answer `error` in the words of the face that was asked, before anything else has looked at the request."""
    path: str = scope["path"]
    log.info("refused path=%s code=%s", path[:200], error.reason or error.code.value)
    with suppress(ConnectionError):
        if path == "/v2" or path.startswith("/v2/"):
            status = 429 if error.reason == "rate_limit_exceeded" else http_status(error.code)
            await respond(send, status, error_body(error), JSON, error_headers(error))
        else:
            await send_error(send, error)
