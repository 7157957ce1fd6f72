"""A loaded version of a language model: its engine, and the text side that the fronts use."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from backends.api.base import TokenEngine
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import GenerateRequest, InferenceRequest
from backends.api.statistics import Failure
from scheduler.language_face import LanguageFace
from scheduler.language_tensors import INPUTS, OUTPUTS

if TYPE_CHECKING:
    from backends.text.template import ChatTemplate
    from backends.text.tokenizer import Tokenizer


class LanguageModel:
    """A `LiveModel` that generates. `max_model_len` bounds prompt and answer together, in tokens.

    `template` is None where the model cannot chat. `statistics` count what came through `infer`: KServe and ensembles.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: str,
        engine: TokenEngine,
        *,
        tokenizer: "Tokenizer",
        template: "ChatTemplate | None",
        max_model_len: int,
    ) -> None:
        self.config = replace(config, inputs=INPUTS, outputs=OUTPUTS, decoupled=True)
        self.version = version
        self.namespace = ""
        self.load_seconds: float | None = None
        self.engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self.max_model_len = max_model_len
        self._closing = False
        self._face = LanguageFace(self)
        self.statistics = self._face.statistics

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken now: False while its engine restarts."""
        return self.engine.is_ready and not self._closing

    def check_together(self, requests: Sequence[GenerateRequest]) -> None:
        """Raises ServingError(INVALID) for requests of which the engine can never have all at once."""
        self.engine.check_together(requests)

    def generate(self, request: GenerateRequest) -> None:
        """Take a request; its tokens come on its stream. Raises ServingError if refused at once."""
        if self._closing:
            raise ServingError(Code.UNAVAILABLE, f"model '{self.config.name}' is being unloaded")
        self.engine.generate(request)

    def clear_cache(self) -> None:
        """No later request finds a prefix computed before now."""
        self.engine.clear_cache()

    def infer(self, request: InferenceRequest) -> None:
        """Take text and answer with text (triton spec 8.2). Raises ServingError if refused at once."""
        if self._closing:
            self.statistics.failed(Failure.REJECTED)
            raise ServingError(Code.UNAVAILABLE, f"model '{self.config.name}' is being unloaded", reason="closing")
        self._face.infer(request)

    async def close(self) -> None:
        """Answer every request taken so far, then give all memory back."""
        self._closing = True
        await self._face.drain()
        await self.engine.drain()
        await self.engine.close()
