"""Calls a custom model's `execute`, one batch after the other or, where it is a coroutine, many at once."""

import asyncio
import inspect
import logging
import time
import traceback
from collections import deque
from collections.abc import Awaitable
from typing import Any, cast

from backends.python.frames import Answers, ErrorFrame, Executed, Log, Work
from backends.python.packing import Packer, Unpacker
from backends.python.pb_request import InferenceRequest
from backends.python.pb_response import InferenceResponse
from backends.python.runtime import RequestState, Runtime, current_batch, take_tensor


class Execution:
    """The model between `initialize` and `finalize`. A batch that fails says so to the server, and the next one comes."""

    def __init__(self, model: Any, runtime: Runtime, instance: str, decoupled: bool) -> None:
        self._model = model
        self._runtime = runtime
        self._instance = instance
        self._decoupled = decoupled
        self._batches: deque[tuple[int, list[InferenceRequest]]] = deque()
        self._news: asyncio.Event | None = None

    def serve(self, orders: deque[Any], is_async: bool) -> None:
        """Execute what comes until there is another order, and all that was begun has ended."""
        if is_async:
            asyncio.run(self._serve_concurrently(orders))
            return
        link = self._runtime.link
        while True:
            link.wait(lambda: bool(self._batches or orders))
            if not self._batches:
                return
            self._execute(*self._batches.popleft())

    def add(self, work: Work, unpacker: Unpacker) -> None:
        for batch in work.batches:
            requests = []
            for frame in batch.requests:
                state = RequestState(self._runtime, frame.number, frame.window)
                self._runtime.states[frame.number] = state
                inputs = [take_tensor(tensor, unpacker) for tensor in frame.inputs]
                requests.append(InferenceRequest.arrived(frame, inputs, state))
            self._batches.append((batch.number, requests))
        self.interrupt()

    def interrupt(self) -> None:
        """Something has come, on whatever thread."""
        loop = self._runtime.loop
        if loop is not None and self._news is not None:
            loop.call_soon_threadsafe(self._news.set)

    async def _serve_concurrently(self, orders: deque[Any]) -> None:
        self._runtime.loop = loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._runtime.watch(loop)
        tasks: set[asyncio.Task[None]] = set()
        try:
            while not orders:
                while self._batches:
                    task = loop.create_task(self._execute_async(*self._batches.popleft()))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                self._news.clear()
                if not self._batches and not orders:
                    await self._news.wait()
            if tasks:
                await asyncio.wait(tasks)
        finally:
            self._runtime.unwatch(loop)
            self._runtime.loop = None

    def _execute(self, number: int, requests: list[InferenceRequest]) -> None:
        token = current_batch.set(number)
        start = time.monotonic()
        try:
            returned = self._model.execute(requests)
            if inspect.isawaitable(returned):
                returned = asyncio.run(_await(returned))
            self._deliver(number, requests, returned, start)
        except BaseException as error:  # the model goes on, whatever one batch raised
            self._fail(number, requests, error, start)
        finally:
            current_batch.reset(token)

    async def _execute_async(self, number: int, requests: list[InferenceRequest]) -> None:
        current_batch.set(number)
        start = time.monotonic()
        try:
            self._deliver(number, requests, await self._model.execute(requests), start)
        except BaseException as error:
            self._fail(number, requests, error, start)

    def _deliver(self, number: int, requests: list[InferenceRequest], returned: Any, start: float) -> None:
        end = time.monotonic()
        link = self._runtime.link
        if returned is None or self._decoupled:
            if returned is not None:
                raise TypeError(
                    "a model with the decoupled transaction policy sends its responses through response senders, "
                    f"execute must return None, found {type(returned).__name__}"
                )
            link.send(Executed(number, start, end, None, _rescheduled(requests)))
            return
        responses = _checked(returned, requests)
        if any(response is None for response in responses):
            self._deliver_some(number, requests, responses, start, end)
            return
        link.send_packed(
            lambda packer: _answers(packer, number, start, end, cast("list[InferenceResponse]", responses))
        )
        for request in requests:
            if request._state is not None:
                request._state.close()

    def _deliver_some(
        self,
        number: int,
        requests: list[InferenceRequest],
        responses: list[InferenceResponse | None],
        start: float,
        end: float,
    ) -> None:
        """Some were returned, the others come through senders."""
        for request, response in zip(requests, responses, strict=True):
            if response is not None:
                request.get_response_sender().send(response, 1)
        self._runtime.link.send(Executed(number, start, end, None, _rescheduled(requests)))

    def _fail(self, number: int, requests: list[InferenceRequest], error: BaseException, start: float) -> None:
        link = self._runtime.link
        if not isinstance(error, _WrongReturnError):
            link.send(Log(logging.ERROR, "".join(traceback.format_exception(error)).rstrip()))
        for request in requests:
            if request._state is not None:
                request._state.close()
        code = "CANCELLED" if isinstance(error, asyncio.CancelledError) else "INTERNAL"
        text = f"Failed to process the request(s) for model '{self._instance}', message: {describe(error)}"
        link.send(Executed(number, start, time.monotonic(), ErrorFrame(code, text), []))


def describe(error: BaseException) -> str:
    """An exception in a line, as Triton words it."""
    if isinstance(error, _WrongReturnError):
        return str(error)
    try:
        text = str(error)
    except BaseException as fault:  # the model's own `__str__`
        text = f"its text cannot be had, __str__ raised {type(fault).__name__}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _WrongReturnError(Exception):
    pass


def _rescheduled(requests: list[InferenceRequest]) -> list[int]:
    """The numbers of those that are to be executed again; they are over here."""
    return [request.leave() for request in requests if request.is_rescheduled]


def _checked(returned: Any, requests: list[InferenceRequest]) -> list[InferenceResponse | None]:
    if not isinstance(returned, list | tuple):
        raise _WrongReturnError(f"Expected a list in the execute return, found type '{type(returned).__name__}'.")
    if len(returned) != len(requests):
        raise _WrongReturnError(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
        )
    for response in returned:
        if response is not None and not isinstance(response, InferenceResponse):
            raise _WrongReturnError(
                "Expected an 'InferenceResponse' object in the execute function return list, "
                f"found type '{type(response).__name__}'."
            )
    if any(
        response is not None and request.is_rescheduled for response, request in zip(returned, requests, strict=True)
    ):
        raise _WrongReturnError("Expected None in the execute return list for a request that is rescheduled.")
    return list(returned)


def _answers(packer: Packer, number: int, start: float, end: float, responses: list[InferenceResponse]) -> Answers:
    return Answers(number, start, end, [response.pack(packer) for response in responses])


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
