"""What a custom model asks of the server: other models, control of the repository, its metrics."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest, InferenceResponse, RequestedOutput
from backends.python.custom_metrics import CustomMetrics
from backends.python.frames import (
    Call,
    CallResponse,
    CancelCall,
    Control,
    ErrorFrame,
    Grant,
    Measure,
    Register,
    Reply,
    ResponseFrame,
    number_of,
)
from backends.python.open_calls import OpenCalls
from backends.python.packing import Unpacker
from backends.python.responses import pack_response, parameters_of, tensor_of

if TYPE_CHECKING:
    from backends.python.instance import PythonInstance

WINDOW = 32  # responses of a decoupled call on their way to the caller: CALL_WINDOW of the other side

Outcome = InferenceResponse | ServingError | None


@dataclass(slots=True, eq=False)
class NestedCall:
    """A request that a model makes. `parents` are those it is executing meanwhile, [] for one made on its own account.

    `deliver` takes each response and, with True, the end; it may be called on any thread. `credits` counts the
    responses that may still be delivered, `on_credit` is called when there are more. While it is open it `blocks` the run
    that made it, and with `blocks_all` every run of the caller.
    """

    request: InferenceRequest
    parents: list[InferenceRequest]
    caller: "PythonInstance"
    run: int
    blocks: bool
    blocks_all: bool
    decoupled: bool
    deliver: Callable[[Outcome, bool], None]
    credits: int = WINDOW
    on_credit: Callable[[], object] | None = field(default=None)


class Services(Protocol):
    """What stands above the backend. Both may be called on any thread and return at once."""

    def call(self, call: NestedCall) -> None:
        """Ask the model; every call is delivered exactly one end."""
        ...

    def control(
        self,
        operation: str,
        model: str,
        argument: str,
        files: Mapping[str, bytes],
        done: Callable[[float, ServingError | None], None],
    ) -> None:
        """Load, unload or is_ready."""
        ...


class NoServices:
    """For a backend that stands alone."""

    def call(self, call: NestedCall) -> None:
        call.deliver(_unsupported(), True)

    def control(
        self,
        operation: str,
        model: str,
        argument: str,
        files: Mapping[str, bytes],
        done: Callable[[float, ServingError | None], None],
    ) -> None:
        done(0.0, _unsupported())


class Calls:
    """Handles the requests of one instance's process, on the instance's thread."""

    def __init__(self, services: Services, metrics: CustomMetrics) -> None:
        self._services = services
        self._metrics = metrics
        self._open = OpenCalls()
        self._life = 0  # answers to a process that has ended must not reach the next one

    def handle(self, instance: "PythonInstance", frame: object, unpacker: Unpacker) -> None:
        match frame:
            case Call():
                self._call(instance, frame, unpacker)
            case CancelCall(number):
                call = self._open.get(number)
                if call is not None:
                    call.request.stream.cancel("the caller cancelled its call")
            case Grant(number, num_more):
                self._grant(number, num_more)
            case Control():
                self._control(instance, frame)
            case Register():
                self._register(instance, frame)
            case Measure():
                self._measure(instance, frame)

    def request_ended(self, request: InferenceRequest) -> None:
        """Nobody waits for what was asked for this request alone."""
        for call in self._open.orphans(request):
            call.request.stream.cancel("the requests it was made for have ended")

    def process_ended(self, instance: "PythonInstance") -> None:
        """Nobody waits for the answers any more."""
        self._life += 1
        for call in self._open.clear():
            call.request.stream.cancel("the calling model's process has ended")

    def close(self, instance: "PythonInstance") -> None:
        self.process_ended(instance)

    def _call(self, instance: "PythonInstance", frame: Call, unpacker: Unpacker) -> None:
        parents = instance.requests_of(frame.batch)
        deadlines = [parent.deadline for parent in parents]
        asked = frame.request
        request = InferenceRequest(
            frame.model,
            frame.version,
            [tensor_of(tensor, unpacker) for tensor in asked.inputs],
            id=asked.id,
            parameters=parameters_of(asked.parameters),
            sequence_id=asked.correlation_id,
            sequence_start=bool(asked.flags & 1),
            sequence_end=bool(asked.flags & 2),
            timeout_us=asked.timeout_us,
            deadline=max(filter(None, deadlines)) if deadlines and None not in deadlines else None,
            cache_salt="+".join(sorted({parent.cache_salt for parent in parents})),  # of a mixed batch: only its own
        )
        request.outputs = _requested(asked.outputs)
        deliver = partial(self._deliver_later, instance, self._life, frame.call)
        waits = (frame.blocks, frame.blocks_all)
        call = NestedCall(request, parents, instance, frame.batch, *waits, frame.decoupled, deliver)
        self._open.add(frame.call, call)
        self._services.call(call)

    def _deliver_later(self, instance: "PythonInstance", life: int, number: int, outcome: Outcome, final: bool) -> None:
        instance.mailbox.post(partial(self._deliver, instance, life, number, outcome, final))

    def _deliver(self, instance: "PythonInstance", life: int, number: int, outcome: Outcome, final: bool) -> None:
        if life != self._life:
            return
        if final:
            self._open.remove(number)
        packer = instance.packer()
        response = None
        if isinstance(outcome, ServingError):
            response = ResponseFrame([], {}, ErrorFrame(outcome.code.name, outcome.message))
        elif outcome is not None:
            response = pack_response(outcome, packer)
        instance.send(CallResponse(number, response, final), packer)

    def _grant(self, number: int, num_more: int) -> None:
        call = self._open.get(number)
        if call is not None:
            call.credits += num_more
            if call.on_credit is not None:
                call.on_credit()

    def _control(self, instance: "PythonInstance", frame: Control) -> None:
        def done(value: float, error: ServingError | None) -> None:
            instance.mailbox.post(partial(self._reply, instance, life, frame.call, value, error))

        life = self._life
        files = {name: base64.b64decode(content) for name, content in frame.files.items()}
        self._services.control(frame.operation, frame.model, frame.argument, files, done)

    def _register(self, instance: "PythonInstance", frame: Register) -> None:
        number, error = 0, None
        try:
            if frame.kind.startswith("family:"):
                self._metrics.add_family(frame.family, frame.description, frame.kind.removeprefix("family:"))
            else:
                number = self._metrics.add(frame.family, frame.labels, frame.buckets)
        except ServingError as failure:
            error = failure
        self._reply(instance, self._life, frame.call, number, error)

    def _measure(self, instance: "PythonInstance", frame: Measure) -> None:
        value = self._metrics.measure(frame.metric, frame.operation, float(frame.value))
        if frame.operation == "value":
            self._reply(instance, self._life, frame.call, value, None)

    def _reply(
        self, instance: "PythonInstance", life: int, number: int, value: float, error: ServingError | None
    ) -> None:
        if life == self._life:
            reason = None if error is None else ErrorFrame(error.code.name, error.message)
            instance.send(Reply(number, number_of(value), reason))


def _requested(names: list[str]) -> list[RequestedOutput]:
    return [RequestedOutput(name) for name in names]


def _unsupported() -> ServingError:
    return ServingError(Code.UNSUPPORTED, "this server offers custom models no other models")
