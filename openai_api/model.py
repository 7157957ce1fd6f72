"""What this face needs of a model that speaks text: a `LiveModel` with a tokenizer, a template and an engine."""

from collections.abc import Sequence
from typing import Protocol, TypeGuard

from backends.api.base import LiveModel
from backends.api.request import GenerateRequest
from backends.pooling.description import Description
from backends.pooling.tokenizer import PoolingTokenizer
from backends.text.template import ChatTemplate
from backends.text.tokenizer import Tokenizer


class TextModel(LiveModel, Protocol):
    """`max_model_len` bounds prompt and answer together, in tokens. `template` None: the model cannot chat."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def template(self) -> ChatTemplate | None: ...

    @property
    def max_model_len(self) -> int: ...

    def check_together(self, requests: Sequence[GenerateRequest]) -> None:
        """Raises ServingError(INVALID) for requests of which the model can never have all at once."""
        ...

    def generate(self, request: GenerateRequest) -> None:
        """Take a request; its tokens come on its stream. Raises ServingError if refused at once."""
        ...

    def clear_cache(self) -> None:
        """No later request finds a prefix computed before now."""
        ...


def is_text_model(model: LiveModel) -> TypeGuard[TextModel]:
    # not isinstance: checking every member of a protocol takes 20 microseconds, on every request
    return hasattr(model, "generate") and hasattr(model, "tokenizer")


class PoolingTextModel(LiveModel, Protocol):
    """A model that makes vectors or scores of texts; `description.task` says which."""

    @property
    def tokenizer(self) -> PoolingTokenizer: ...

    @property
    def template(self) -> ChatTemplate | None: ...

    @property
    def description(self) -> Description: ...

    @property
    def max_model_len(self) -> int: ...

    def pool(self, request: GenerateRequest) -> None:
        """Take a pooling request; its vectors come on its stream. Raises ServingError if refused at once."""
        ...


def is_pooling_model(model: LiveModel) -> TypeGuard[PoolingTextModel]:
    return hasattr(model, "pool")


PARAMETER, CHAT = "openai", "chat"


def speaks_in_tensors(model: LiveModel) -> bool:
    """Whether it is a model of another kind whose config says that it chats, see `tensor_chat`."""
    return model.config.parameters.get(PARAMETER) == CHAT and not is_text_model(model)
