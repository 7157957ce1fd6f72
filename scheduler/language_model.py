"""A loaded version of a language model: its engine, and the text side that the fronts use."""

from typing import TYPE_CHECKING

from backends.api.base import TokenEngine
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import GenerateRequest, InferenceRequest

if TYPE_CHECKING:
    from backends.text.template import ChatTemplate
    from backends.text.tokenizer import Tokenizer


class LanguageModel:
    """A `LiveModel` that generates. `max_model_len` bounds prompt and answer together, in tokens.

    `template` is None where the model cannot chat.
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
        self.config = config
        self.version = version
        self.engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self.max_model_len = max_model_len
        self._closing = False

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken now: False while its engine restarts."""
        return self.engine.is_ready and not self._closing

    def generate(self, request: GenerateRequest) -> None:
        """Take a request; its tokens come on its stream. Raises ServingError if refused at once."""
        if self._closing:
            raise ServingError(Code.UNAVAILABLE, f"model '{self.config.name}' is being unloaded")
        self.engine.generate(request)

    def infer(self, request: InferenceRequest) -> None:
        raise ServingError(
            Code.UNSUPPORTED,
            f"model '{self.config.name}' generates text from tokens and takes no tensors: "
            "ask it through /v1/chat/completions or /v1/completions",
        )

    async def close(self) -> None:
        """Answer every request taken so far, then give all memory back."""
        self._closing = True
        await self.engine.drain()
        await self.engine.close()
