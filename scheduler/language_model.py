"""A loaded version of a language model: its engine, and the text side that the fronts use."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from backends.api.base import TokenEngine
from backends.api.model_config import ModelConfig
from backends.api.request import GenerateRequest
from scheduler.engine_model import EngineModel
from scheduler.language_face import LanguageFace
from scheduler.language_tensors import INPUTS, OUTPUTS

if TYPE_CHECKING:
    from backends.text.template import ChatTemplate
    from backends.text.tokenizer import Tokenizer


class LanguageModel(EngineModel):
    """A `LiveModel` that generates. `max_model_len` bounds prompt and answer together, in tokens.

    `template` is None where the model cannot chat. `infer` takes text and answers with text (triton spec 8.2).
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
        config = replace(config, inputs=INPUTS, outputs=OUTPUTS, decoupled=True)
        super().__init__(config, version, engine, LanguageFace(self).answer)
        self.tokenizer = tokenizer
        self.template = template
        self.max_model_len = max_model_len

    def check_together(self, requests: Sequence[GenerateRequest]) -> None:
        """Raises ServingError(INVALID) for requests of which the engine can never have all at once."""
        self.engine.check_together(requests)

    def generate(self, request: GenerateRequest) -> None:
        """Take a request; its tokens come on its stream. Raises ServingError if refused at once."""
        self._submit(request)

    def clear_cache(self) -> None:
        """No later request finds a prefix computed before now."""
        self.engine.clear_cache()
