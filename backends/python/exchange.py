"""What an instance and its process say to each other about requests: batches out, answers in."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from backends.api.base import RequestBatch
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import InferenceRequest
from backends.python.frames import Answers, Batch, Cancel, Executed, Grant, RequestFrame, Response, TensorFrame, Work
from backends.python.options import PythonOptions
from backends.python.packing import Packer, Unpacker
from backends.python.responses import error_of, outcome_of
from backends.python.runs import Run, Runs
from backends.python.windows import Windows

_FLAG_START, _FLAG_END = 1, 2
_AHEAD = 0.002  # seconds of work that may wait in the process
_MOST_AHEAD = 15
_SHORTEST = 1e-6

_LOG = logging.getLogger("tidegate.model")


class Exchange:
    """The owner of the batches in the process. On the instance's thread, but for `executing`.

    `send` takes a frame and its tensors, `post` leaves a note for the instance's thread, `ended` is told of each request
    that has ended while the process lives.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: str,
        options: PythonOptions,
        packer: Callable[[], Packer],
        send: Callable[..., None],
        post: Callable[[Callable[[], None]], None],
        ended: Callable[[InferenceRequest], None],
    ) -> None:
        self._model = config.name
        self._outputs = [spec.name for spec in config.outputs]
        self._outcome_of = partial(outcome_of, (config.name, version), self._outputs)
        self._packer = packer
        self._send = send
        self._post = post
        self._ended = ended
        self._decoupled = config.decoupled
        self._iterative = config.sequence_batching is not None and config.sequence_batching.iterative_sequence
        self._runs = Runs(options)
        self._kept: list[RequestBatch] = []
        self._longest = 0.0  # seconds that an execution takes; 0: not known
        self._windows = Windows(options.response_window)

    @property
    def num_open(self) -> int:
        return self._runs.num_open

    @property
    def num_executing(self) -> int:
        return self._runs.num_executing

    @property
    def runs(self) -> list[Run]:
        """Batches that have not returned from `execute`, as of this moment, for any thread to look at."""
        return self._runs.all

    @property
    def executing(self) -> list[Run]:
        """Those of them that are in `execute`."""
        return self._runs.executing

    @property
    def num_ahead(self) -> int:
        """How many batches may wait in the process, for want of anything to do between two of them: 2 ms of work.

        A next one is at hand then, and those that wait together travel together.
        """
        return min(_MOST_AHEAD, int(_AHEAD / self._longest)) if self._longest else 0

    @property
    def next_look(self) -> float:
        return min(self._runs.next_look, self._windows.next_look)

    def requests_of(self, run: int) -> list[InferenceRequest]:
        found = self._runs.get(run)
        return [] if found is None else list(found.batch.requests)

    def start(self, *, is_concurrent: bool) -> None:
        """There is a process. What only waited in the last one is begun again."""
        self._runs.is_concurrent = is_concurrent
        self._longest = 0.0
        kept, self._kept = self._kept, []
        if kept:
            self.begin(kept)

    def begin(self, batches: Sequence[RequestBatch]) -> None:
        """Send them in one frame. One whose tensors cannot be packed fails by itself."""
        whole, frames = self._packer(), list[Batch]()
        begun = list[tuple[int, InferenceRequest]]()
        for batch in batches:
            packer = self._packer() if frames else whole
            try:
                tensors = [
                    [packer.pack(t.name, t.datatype, t.shape, t.data) for t in batch.inputs(index)]
                    for index in range(len(batch.requests))
                ]
            except Exception as error:
                _LOG.exception("model '%s': a request cannot be packed", self._model)
                batch.fail_all(ServingError(Code.INTERNAL, f"cannot pass the request on: {error}"))
                continue
            run = self._runs.begin(batch)
            requests = list(enumerate(batch.requests, run.first))
            frames.append(
                Batch(run.number, [self._frame(*each, inputs) for each, inputs in zip(requests, tensors, strict=True)])
            )
            begun += requests
            if packer is not whole:
                whole.add(packer)
        if frames:
            self._send(Work(frames), whole)
        for number, request in begun:
            request.stream.on_cancel(partial(self._post, partial(self._cancel, number)))

    def look(self) -> bool:
        """Grant what slow readers have made room for, give up what is too late; whether an execution has hung."""
        for number, count in self._windows.look():
            self._send(Grant(number, count))
        now = time.monotonic()
        for number in self._runs.overdue(now):
            known = self._runs.find(number)
            assert known is not None
            run, index = known
            run.batch.fail(index, _too_late(run.batch.requests[index]))
            self._cancel(number)
        return self._runs.is_hung(now)

    def fail_all(self, error: ServingError) -> None:
        """The process is gone: what it was executing fails; what waited in it is kept for the next one."""
        self._windows.clear()
        for run in self._runs.clear():
            if run.start == inf:
                self._kept.append(run.batch)
            else:
                run.batch.fail_all(error)

    def give_up(self, error: ServingError) -> None:
        """There is no next process, or not soon."""
        kept, self._kept = self._kept, []
        for batch in kept:
            batch.fail_all(error)

    # What comes from the process

    def on_answers(self, frame: Answers, unpacker: Unpacker) -> None:
        """Raises ServingError for a frame that makes no sense."""
        run = self._runs.get(frame.batch)
        if run is None or len(frame.responses) != len(run.batch.requests):
            raise ServingError(Code.INTERNAL, f"answers to unknown batch {frame.batch}")
        outcomes = [self._outcome_of(response, unpacker) for response in frame.responses]
        run.batch.executed(frame.start, frame.end)
        # a maximum that fades: one slow execution is enough to send nothing ahead
        self._longest = max(frame.end - frame.start, 0.9 * self._longest, _SHORTEST)
        self._runs.end(run)
        run.batch.answer(outcomes)
        for index in range(len(outcomes)):
            self._end(run.first + index)

    def on_executed(self, frame: Executed, _: Unpacker) -> None:
        run = self._runs.get(frame.batch)
        if run is None:
            return
        run.batch.executed(frame.start, frame.end)
        if frame.error is not None:
            run.batch.fail_all(error_of(frame.error))
            for index in range(len(run.batch.requests)):
                self._end(run.first + index)
        for number in frame.again:
            self._reschedule(number)
        self._longest = 0.0  # answers come by themselves: how long one takes is not known
        self._runs.end(run)

    def on_response(self, frame: Response, unpacker: Unpacker) -> None:
        response = None if frame.response is None else self._outcome_of(frame.response, unpacker)
        known = self._runs.find(frame.request)
        if known is None:
            return  # it has ended: the reader left, or its time was over
        run, index = known
        if isinstance(response, ServingError):
            run.batch.fail(index, response)
        elif not self._decoupled:
            if response is not None:
                run.batch.answer_one(index, response)
            elif frame.final:
                run.batch.fail(index, _no_answer())
        elif frame.final:
            run.batch.finish(index, response)
        elif response is not None:
            response.final = False
            run.batch.put(index, response)
            count = self._windows.spend(frame.request)
            if count:
                self._send(Grant(frame.request, count))
        if frame.final or not run.batch.is_open(index):
            self._end(frame.request)

    def _reschedule(self, number: int) -> None:
        if not self._iterative:
            raise ServingError(Code.INTERNAL, f"asks for request {number} again without iterative sequence batching")
        known = self._runs.find(number)
        if known is not None:
            run, index = known
            run.batch.reschedule(index)
            self._forget(number)

    # A request's life here

    def _frame(self, number: int, request: InferenceRequest, inputs: list[TensorFrame]) -> RequestFrame:
        flags = (_FLAG_START if request.sequence_start else 0) | (_FLAG_END if request.sequence_end else 0)
        return RequestFrame(
            number,
            request.id,
            request.sequence_id,
            flags,
            request.timeout_us,
            request.parameters,  # type: ignore[arg-type]  # the values are a subset
            [output.name for output in request.outputs] or self._outputs,
            inputs,
            self._windows.open(number, request.stream) if self._decoupled else 1,
        )

    def _cancel(self, number: int) -> None:
        """The reader left, or its time is over."""
        known = self._runs.find(number)
        if known is None:
            return
        run, index = known
        run.batch.cancelled(index)
        self._send(Cancel([number]))
        self._end(number)

    def _end(self, number: int) -> None:
        known = self._runs.find(number)
        self._forget(number)
        if known is not None:
            run, index = known
            self._ended(run.batch.requests[index])

    def _forget(self, number: int) -> None:
        self._windows.close(number)
        self._runs.forget(number)


def _no_answer() -> ServingError:
    return ServingError(Code.INTERNAL, "the model closed a request without a response")


def _too_late(request: InferenceRequest) -> ServingError:
    return ServingError(
        Code.DEADLINE,
        f"{request.label} the deadline passed while model '{request.model}' was executing",
        reason="deadline",
    )
