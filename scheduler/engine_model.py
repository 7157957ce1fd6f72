"""What serving models of a token engine share, whatever they make of its answers."""

from backends.api.base import TokenEngine
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import GenerateRequest, InferenceRequest
from backends.api.statistics import Failure
from scheduler.answering import Answer, Answering


class EngineModel:
    """A `LiveModel` that owns a token engine. `answer` does what comes through `infer` (KServe and ensembles), which
    `statistics` count; other requests go to the engine as they are.
    """

    def __init__(self, config: ModelConfig, version: str, engine: TokenEngine, answer: Answer) -> None:
        self.config = config
        self.version = version
        self.namespace = ""
        self.load_seconds: float | None = None
        self.engine = engine
        self._closing = False
        self._answering = Answering(config.name, answer, config.first_response_bounds)
        self.statistics = self._answering.statistics

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken now: False while its engine restarts."""
        return self.engine.is_ready and not self._closing

    def infer(self, request: InferenceRequest) -> None:
        """Take a request in tensors; the answers come on its stream. Raises ServingError if refused at once."""
        if self._closing:
            self.statistics.failed(Failure.REJECTED)
            raise self._refusal("closing")
        self._answering.infer(request)

    async def close(self) -> None:
        """Answer every request taken so far, then give all memory back."""
        self._closing = True
        await self._answering.drain()
        await self.engine.drain()
        await self.engine.close()

    def _submit(self, request: GenerateRequest) -> None:
        """Hand a request to the engine as it is. Raises ServingError if refused at once."""
        if self._closing:
            raise self._refusal()
        self.engine.generate(request)

    def _refusal(self, reason: str | None = None) -> ServingError:
        return ServingError(Code.UNAVAILABLE, f"model '{self.config.name}' is being unloaded", reason=reason)
