"""What all requests of an ensemble share, and all of its answers carry."""

from dataclasses import dataclass
from typing import Protocol

from backends.api.base import LiveModel
from backends.api.model_config import ModelConfig
from backends.api.request import InferenceRequest, Parameter
from scheduler.ensemble_graph import EnsembleGraph, Step
from scheduler.merge import BatchLayout


def sequence_parameters(request: InferenceRequest) -> dict[str, Parameter]:
    """What every answer of an ensemble carries in Triton, sequence or not."""
    return {
        "sequence_id": request.sequence_id,
        "sequence_start": request.sequence_start,
        "sequence_end": request.sequence_end,
    }


class Find(Protocol):
    """The live model of a step's name, version ("" the newest) and namespace ("" where it names none).

    Also while the server stops. Raises ServingError.
    """

    def __call__(self, name: str, version: str, *, namespace: str) -> LiveModel: ...


@dataclass(frozen=True, slots=True)
class EnsembleParts:
    """One loaded ensemble. `find` looks its steps' models up anew for each request."""

    graph: EnsembleGraph
    config: ModelConfig
    version: str
    find: Find
    layout: BatchLayout

    def live_model(self, step: Step) -> LiveModel:
        """Raises ServingError."""
        return self.find(step.model, step.version, namespace=step.namespace)

    @property
    def has_reshaped_outputs(self) -> bool:
        return any(spec.reshape is not None for spec in self.config.outputs)
