"""Calls from custom models to other models: the same way in as for every request, on the server's event loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

from backends.api.base import LiveModel
from backends.api.checks import check_inputs, check_outputs
from backends.api.errors import Code, ServingError
from backends.api.request import InferenceResponse
from backends.python.calls import NestedCall
from scheduler.nested_waits import NestedWaits

_LOG = logging.getLogger(__name__)
CLOSING = "closing"  # the reason of a model that refuses because it is being unloaded or replaced


class Models(Protocol):
    """The part of the repository that custom models reach."""

    def find(self, name: str, version: str = "") -> LiveModel: ...
    async def check_ready(self, name: str, version: str = "") -> bool: ...
    async def load(
        self, name: str, config_override: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None: ...
    async def unload(self, name: str, unload_dependents: bool = False, *, waits: bool = True) -> None: ...


class ModelCalls:
    """The `Services` of every custom model of a server. A call for one answer of a model that takes requests on any thread
    never sees the event loop: it is asked on the caller's thread, and delivers on its own.

    A nested call has the deadline of the requests it serves and is cancelled when the last of them is, wherever
    that finds them; when they end well, the instance that made it does it. A call that blocks its caller's instance is
    refused when it could never be answered, because all instances that could answer it wait themselves, directly or
    not, for this caller.
    """

    def __init__(self, models: Models, loop: asyncio.AbstractEventLoop) -> None:
        self._models = models
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits = NestedWaits()

    def call(self, call: NestedCall) -> None:
        try:
            model = self._models.find(call.request.model, call.request.version)
            if getattr(model, "infers_on_any_thread", False) and not call.decoupled:
                self._ask(call, model)
                return
        except ServingError as error:
            if error.reason != CLOSING:
                call.deliver(error, True)
                return
            # replaced since it was found: on the loop nothing comes between
        except Exception as error:
            call.deliver(_unexpected(error), True)
            return
        self._on_loop(partial(self._run, call), lambda error: call.deliver(error, True))

    def control(
        self,
        operation: str,
        model: str,
        argument: str,
        files: Mapping[str, bytes],
        done: Callable[[float, ServingError | None], None],
    ) -> None:
        def act() -> Awaitable[None]:
            return self._control(operation, model, argument, files, done)

        self._on_loop(act, lambda error: done(0.0, error))

    def _on_loop(self, act: Callable[[], Awaitable[None]], failed: Callable[[ServingError], None]) -> None:
        def start() -> None:
            task = self._loop.create_task(_guarded(act, failed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        try:
            self._loop.call_soon_threadsafe(start)
        except RuntimeError:  # the loop is closed
            failed(ServingError(Code.UNAVAILABLE, "the server is stopping"))

    def _ask(self, call: NestedCall, model: LiveModel) -> None:
        """On the caller's thread. Raises ServingError, and has delivered nothing then."""
        stream = call.request.stream
        _check(call, model)
        self._waits.begin(call, model)
        try:
            _cancel_with_parents(call)
            model.infer(call.request)
        except BaseException:
            self._waits.end(call)
            raise

        def deliver() -> None:
            self._waits.end(call)
            outcome: InferenceResponse | ServingError | None
            try:
                outcome = next(iter(stream.poll()), None)
            except ServingError as error:
                outcome = error
            call.deliver(outcome, True)

        stream.notify(deliver)

    async def _run(self, call: NestedCall) -> None:
        request = call.request
        model = self._models.find(request.model, request.version)
        _check(call, model)
        self._waits.begin(call, model)
        try:
            _cancel_with_parents(call)
            model.infer(request)
            await self._relay(call)
        finally:
            request.stream.cancel("the caller has ended")
            self._waits.end(call)

    async def _relay(self, call: NestedCall) -> None:
        room = asyncio.Event()
        call.on_credit = lambda: self._loop.call_soon_threadsafe(room.set)
        stream = call.request.stream
        async for response in stream:
            if not call.decoupled:
                call.deliver(response, True)
                return
            while call.credits <= 0 and not stream.cancelled:
                room.clear()
                if call.credits <= 0:
                    stream.on_cancel(partial(self._loop.call_soon_threadsafe, room.set))
                    await room.wait()
            call.credits -= 1
            if response.outputs or not response.final:
                call.deliver(response, False)
        call.deliver(None, True)

    async def _control(
        self,
        operation: str,
        model: str,
        argument: str,
        files: Mapping[str, bytes],
        done: Callable[[float, ServingError | None], None],
    ) -> None:
        value = 1.0
        if operation == "load":
            await self._models.load(model, argument or None, files or None)
        elif operation == "unload":
            # the requests it would wait for may be those that the asking model is executing
            await self._models.unload(model, unload_dependents=bool(argument), waits=False)
        else:
            value = float(await self._models.check_ready(model, argument))
        done(value, None)


def _check(call: NestedCall, model: LiveModel) -> None:
    """Raises ServingError(INVALID) for a request that the model cannot take, or not in this way."""
    request = call.request
    if model.config.decoupled and not call.decoupled:
        raise ServingError(
            Code.INVALID,
            f"Model {request.model} is using the decoupled. The current BLS request call doesn't support models "
            "using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
            "'async_exec' calls for decoupled models.'",
        )
    check_inputs(request.inputs, model.config, request.label)
    check_outputs((output.name for output in request.outputs), model.config)


def _unexpected(error: Exception) -> ServingError:
    _LOG.exception("a custom model's call failed")
    return ServingError(Code.INTERNAL, f"the call failed: {error}")


async def _guarded(act: Callable[[], Awaitable[None]], failed: Callable[[ServingError], None]) -> None:
    try:
        await act()
    except ServingError as error:
        failed(error)
    except Exception as error:
        failed(_unexpected(error))
    except asyncio.CancelledError:
        failed(ServingError(Code.UNAVAILABLE, "the server is stopping"))
        raise


def _cancel_with_parents(call: NestedCall) -> None:
    stream = call.request.stream

    def one_left() -> None:
        if all(parent.stream.ended for parent in call.parents):
            stream.cancel("the requests it was made for were cancelled")

    for parent in call.parents:
        parent.stream.on_cancel(one_left)
