"""What the two KServe fronts are given: the repository, their limits, and where ends of requests are reported."""

import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from backends.api.base import LiveModel
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import InferenceRequest, InferenceResponse, Parameter
from backends.api.statistics import Failure, ModelStatistics
from gateway.admission import Gate
from gateway.errors import as_serving_error
from gateway.kserve_controls import LogControl, TraceControl
from gateway.kserve_json_answer import Labels
from gateway.kserve_json_faults import MALFORMED
from gateway.kserve_parameters import RESERVED
from gateway.shared_memory import CudaSharedMemory, SharedMemory
from model_repository.states import IndexEntry


class Repository(Protocol):
    """The part of the model repository that the wire can reach."""

    def find(self, name: str, version: str = "") -> LiveModel: ...
    def live_models(self) -> list[LiveModel]: ...
    def versions(self, name: str) -> list[str]: ...
    def index(self, ready_only: bool = False) -> Sequence[IndexEntry]: ...
    def is_ready(self, name: str, version: str = "") -> bool: ...
    async def check_ready(self, name: str, version: str = "") -> bool: ...
    def all_ready(self) -> bool: ...
    async def load(
        self, name: str, config_override: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None: ...
    async def unload(self, name: str, unload_dependents: bool = False) -> None: ...


CLOSING = "closing"
"""The `reason` of a model's refusal while it is being unloaded or replaced."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """Requests of a category must carry `header` (gRPC: `triton-grpc-protocol-<header>`) with this value."""

    header: str
    value: str


def ignore_end(request: InferenceRequest, error: ServingError | None) -> None:
    """For servers that keep no record of finished requests."""


@dataclass(slots=True)
class Service:
    """The KServe fronts' shared context. `on_end` is called once for each request that a model took or refused."""

    repository: Repository
    config_to_json: Callable[[ModelConfig], dict[str, Any]]
    config_to_proto: Callable[[ModelConfig], Any]
    server_name: str = "tidegate"
    server_version: str = "0.1.0"
    max_body_bytes: int = 64 << 20
    offload_bytes: int = 256 << 10  # bodies and answers above are parsed and written off the event loop
    system_memory: SharedMemory = field(default_factory=lambda: SharedMemory(allowed=False))
    cuda_memory: CudaSharedMemory = field(default_factory=lambda: CudaSharedMemory(allowed=False))
    trace: TraceControl = field(default_factory=TraceControl)
    logging: LogControl = field(default_factory=LogControl)
    restrictions: Mapping[str, Restriction] = field(default_factory=dict)
    forwarded_headers: "re.Pattern[str] | None" = None
    on_end: Callable[[InferenceRequest, ServingError | None], None] = ignore_end
    is_stopping: Callable[[], bool] = lambda: False
    gate: Gate | None = None  # None: everyone may do everything

    def is_server_ready(self) -> bool:
        return not self.is_stopping() and self.repository.all_ready()

    def forwarded(self, headers: Mapping[bytes, bytes]) -> dict[str, Parameter]:
        """The headers that become request parameters. Raises ServingError(INVALID) for a reserved name."""
        found: dict[str, Parameter] = {}
        for raw_name, value in headers.items() if self.forwarded_headers is not None else ():
            name = raw_name.decode("latin-1")
            if self.forwarded_headers is None or not self.forwarded_headers.search(name):
                continue
            if name in RESERVED:
                raise ServingError(
                    Code.INVALID, f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                )
            found[name] = value.decode("latin-1")
        return found


def check_restriction(service: Service, category: str, headers: Mapping[bytes, bytes]) -> None:
    """Raise ServingError(FORBIDDEN) for an HTTP request that lacks the header its category asks for."""
    restriction = service.restrictions.get(category) if service.restrictions else None
    if restriction is None:
        return
    given = headers.get(restriction.header.lower().encode(), b"")
    if not hmac.compare_digest(given, restriction.value.encode()):
        raise ServingError(Code.FORBIDDEN, f"This API is restricted, expecting header '{restriction.header}'")


def labels_of(model: LiveModel) -> Labels:
    """Class names by output, where the model was loaded with `label_filename`s."""
    labels: Labels = getattr(model, "labels", {})
    return labels


def submit(service: Service, model: LiveModel, request: InferenceRequest) -> None:
    """Hand `request` over; a refusal comes on its stream like any other end.

    A model that was reloaded since the request was checked refuses it; its successor takes it if it has the same inputs.
    """
    try:
        try:
            request.taken_by = model.version
            model.infer(request)
        except ServingError as error:
            if error.reason != CLOSING:
                raise
            successor = service.repository.find(request.model, request.version)
            if successor is model or not _take_the_same(successor.config, model.config):
                raise
            request.taken_by = successor.version
            successor.infer(request)
    except Exception as error:
        request.stream.fail(as_serving_error(error))


def _take_the_same(one: ModelConfig, other: ModelConfig) -> bool:
    return (one.inputs, one.outputs, one.max_batch_size) == (other.inputs, other.outputs, other.max_batch_size)


def count_refusal(model: LiveModel, error: ServingError) -> None:
    """Count a request that was found wrong for its model. One that is not even a request belongs to no model."""
    statistics: ModelStatistics | None = getattr(model, "statistics", None)
    if statistics is not None and error.reason != MALFORMED:
        statistics.failed(Failure.OTHER)


def is_mark(response: InferenceResponse) -> bool:
    """Whether this is a decoupled model's empty last answer, which only says that nothing more comes."""
    return response.final and not response.outputs


def no_answer(request: InferenceRequest) -> ServingError:
    """For a model that ended an ordinary request's stream without an answer."""
    return ServingError(Code.INTERNAL, f"{request.label} model '{request.model}' gave no answer")


def complete(response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
    """`response` with the caller's own id in it."""
    response.id = request.id
    return response
