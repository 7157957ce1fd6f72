"""One request of an ensemble on its way: acts on what its `Walk` decides. Lives on the event loop."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from backends.api.checks import check_inputs, check_outputs
from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest, InferenceResponse, ModelRun, RequestedOutput, Times
from scheduler.ensemble_graph import Step
from scheduler.ensemble_parts import EnsembleParts, sequence_parameters
from scheduler.ensemble_walk import Act, Answer, Call, Walk
from scheduler.merge import Part

_LOG = logging.getLogger(__name__)
_SLOW_READER = 256  # answers that wait for the caller, past which no more are made
_READS_AT_ONCE = 64  # then others get the event loop
_LOOK_AGAIN = 0.01  # seconds until a slow reader is looked at again

OnEnd = Callable[["EnsembleRun", ServingError | InferenceResponse | None], None]
"""What ended the request: an error, its one answer, or None where several answers went before."""


class _Running:
    """A call under way. `answers` were taken from its stream and wait for their turn."""

    __slots__ = ("answers", "call", "is_noted", "request")

    def __init__(self, call: Call, request: InferenceRequest) -> None:
        self.call = call
        self.request = request
        self.answers: deque[InferenceResponse] = deque()
        self.is_noted = False  # it is in the run's list of those to look at


class EnsembleRun:
    """Ends its request exactly once; `on_end` is called just before. Whatever is still running then is cancelled."""

    def __init__(self, ensemble: EnsembleParts, request: InferenceRequest, on_end: OnEnd) -> None:
        assert ensemble.config.ensemble is not None
        self.request = request
        self._ensemble = ensemble
        self._on_end = on_end
        self._limit = ensemble.config.ensemble.max_inflight_requests
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._walk: Walk | None = None  # from `start` on
        self._running: dict[_Running, None] = {}
        self._held: dict[_Running, None] = {}  # not read for now: too many of its answers are under way
        self._noted: deque[_Running] = deque()
        self._is_working = False
        self._has_ended = False

    @property
    def num_rows(self) -> int:
        return self._ensemble.layout.rows_of(self.request)

    def start(self) -> None:
        """Take the first steps. A refusal comes on the request's stream, like any end."""
        self.request.stream.on_cancel(self._cancelled)
        self._work(self._begin)

    def times(self) -> Times:
        """What the statistics are told: queueing and computing are sums over the steps, as in Triton; where steps ran
        side by side they are cut down to the time that passed."""
        own, now = self.request.times, time.monotonic()
        steps = [run.times for run in self.request.steps if run.times.compute_end]
        queue = sum(times.compute_start - times.queued for times in steps)
        merge = sum(times.compute_input_end - times.compute_start for times in steps)
        infer = sum(times.compute_output_start - times.compute_input_end for times in steps)
        total = queue + merge + infer
        scale = min(1.0, (now - own.queued) / total) if total > 0 else 0.0
        own.compute_start = own.queued + scale * queue
        own.compute_input_end = own.compute_start + scale * merge
        own.compute_output_start = own.compute_input_end + scale * infer
        own.compute_end = now
        return own

    # From any thread

    def _cancelled(self) -> None:
        self._on_loop(self._end, ServingError(Code.CANCELLED, "the caller left"))

    def _note(self, running: _Running) -> None:
        """There is something to read."""
        self._on_loop(self._look_at, running)

    def _on_loop(self, act: Callable[..., None], argument: object) -> None:
        if threading.get_ident() == self._thread:
            act(argument)
            return
        try:
            self._loop.call_soon_threadsafe(act, argument)
        except RuntimeError:
            return  # the loop has closed, and everything with it

    # On the loop

    def _begin(self) -> None:
        ensemble, request = self._ensemble, self.request
        wanted = tuple(output.name for output in request.outputs)
        check_outputs(wanted, ensemble.config)
        given = ensemble.layout.merge([request]).values()
        self._walk = Walk(ensemble.graph, given, (spec.name for spec in ensemble.config.inputs), wanted)
        self._do(self._walk.begin())

    def _look_at(self, running: _Running) -> None:
        if self._has_ended or running.is_noted:
            return
        running.is_noted = True
        self._noted.append(running)
        self._work(None)

    def _work(self, first: Callable[[], None] | None) -> None:
        """Do what can be done now. Not recursive: a step that answers at once only adds to the list."""
        if self._is_working:
            return
        self._is_working = True
        try:
            if first is not None:
                first()
            for _ in range(_READS_AT_ONCE):
                if not self._noted or self._has_ended:
                    break
                self._read(self._noted.popleft())
            else:
                self._loop.call_soon(self._work, None)
            if self._walk is not None and self._walk.is_over:
                self._end(None)
        except ServingError as error:
            self._end(error)
        except Exception as error:
            _LOG.exception("ensemble '%s' failed", self._ensemble.config.name)
            self._end(ServingError(Code.INTERNAL, f"{type(error).__name__}: {error}"))
        finally:
            self._is_working = False

    def _do(self, acts: list[Act]) -> None:
        for act in acts:
            if isinstance(act, Answer):
                self._answer(act)
            else:
                self._call(act)

    def _answer(self, answer: Answer) -> None:
        request = self.request
        ensemble, outputs = self._ensemble, answer.outputs
        if ensemble.has_reshaped_outputs:
            part = Part(request, 0, self.num_rows)
            (outputs,) = ensemble.layout.split({tensor.name: tensor for tensor in outputs}, [part])
        response = InferenceResponse(
            ensemble.config.name, ensemble.version, outputs, request.id, sequence_parameters(request)
        )
        if ensemble.config.decoupled:
            response.final = False
            request.stream.put(response)
        else:
            self._end(response)

    def _call(self, call: Call) -> None:
        if self._has_ended:
            return
        asked = self.request
        request = InferenceRequest(
            call.step.model,
            call.step.version,
            call.inputs,
            [RequestedOutput(name) for name in call.outputs],
            id=asked.id,
            parameters=dict(asked.parameters),
            sequence_id=asked.sequence_id,
            sequence_start=asked.sequence_start,
            sequence_end=asked.sequence_end,
            priority=asked.priority,
            deadline=asked.deadline,
            cache_salt=asked.cache_salt,
        )
        request.times.received = time.monotonic()
        running = _Running(call, request)
        self._running[running] = None
        self._submit(call.step, request)
        request.stream.notify(partial(self._note, running))

    def _submit(self, step: Step, request: InferenceRequest) -> None:
        """Hand it to the live model; to its successor, should it have been replaced just now."""
        model = self._ensemble.live_model(step)
        check_inputs(request.inputs, model.config, request.label)
        run = ModelRun(step.model, model.version, request.times, request.steps)
        self.request.steps.append(run)
        try:
            model.infer(request)
        except ServingError as error:
            successor = self._ensemble.live_model(step)
            if error.reason != "closing" or successor is model:
                raise
            check_inputs(request.inputs, successor.config, request.label)
            run.version = successor.version
            successor.infer(request)

    def _read(self, running: _Running) -> None:
        """Take one answer from a step; the next only after what this one sets going at once."""
        running.is_noted = False
        if self._walk is None or running not in self._running:
            return
        call, stream = running.call, running.request.stream
        if not running.answers:
            had_ended = stream.ended
            running.answers.extend(stream.poll())
            if not running.answers:
                if had_ended:
                    self._finished(running, self._walk)
                else:
                    stream.notify(partial(self._note, running))
                return
        if self._is_full(running):
            self._held[running] = None
            return
        response = running.answers.popleft()
        if response.outputs or not call.step.is_decoupled:  # else it only says that nothing more comes
            self._do(self._walk.answered(call, response.outputs))
        self._look_at(running)

    def _finished(self, running: _Running, walk: Walk) -> None:
        """A step said its last; those held back may have room again."""
        del self._running[running]
        walk.ended(running.call)
        held, self._held = self._held, {}
        for other in held:
            self._look_at(other)

    def _is_full(self, running: _Running) -> bool:
        """Whether as many of a decoupled step's answers are under way as there may be, or as the caller leaves unread."""
        call = running.call
        if not call.step.is_decoupled:
            return False
        unread = self.request.stream.num_waiting
        if unread and unread + call.num_inflight >= _SLOW_READER:
            self._loop.call_later(_LOOK_AGAIN, self._note, running)
            return True
        return 0 < self._limit <= call.num_inflight

    def _end(self, end: ServingError | InferenceResponse | None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if not isinstance(end, ServingError) and self.request.stream.ended:
            end = ServingError(Code.CANCELLED, "the caller left")
        self._on_end(self, end)
        if isinstance(end, ServingError):
            self.request.stream.fail(self._named(end))
        else:
            self.request.stream.finish(end)
        for running in self._running:
            running.request.stream.cancel("the ensemble's request has ended")
        self._running.clear()

    def _named(self, error: ServingError) -> ServingError:
        """`error` as the ensemble's; it is no reason to ask another instance of the ensemble."""
        reason = None if error.reason == "closing" else error.reason
        text = f"in ensemble '{self._ensemble.config.name}', {error.message}"
        return ServingError(error.code, text, param=error.param, reason=reason, retry_after=error.retry_after)
