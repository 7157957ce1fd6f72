"""A loaded version of a pooling model: its engine, its tokenizer, and its face towards KServe and ensembles."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from backends.api.base import TokenEngine
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import GenerateRequest, InferenceRequest, InferenceResponse
from backends.pooling.description import Description
from backends.pooling.request import check_lengths, pooling_request, read_vectors
from backends.pooling.runner import Row
from scheduler.engine_model import EngineModel
from scheduler.pooling_tensors import TEXTS, answer_tensors, input_specs, output_specs, read_texts

if TYPE_CHECKING:
    from backends.pooling.tokenizer import PoolingTokenizer
    from backends.text.template import ChatTemplate

_LONG = 4096  # characters, above which texts are tokenized off the event loop: about 2 ms


class PoolingModel(EngineModel):
    """A `LiveModel` that makes vectors or scores of texts, as its `description` says.

    `template` is None where chats cannot be made into texts. `infer` takes texts and answers with tensors.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: str,
        engine: TokenEngine,
        *,
        tokenizer: "PoolingTokenizer",
        template: "ChatTemplate | None",
        description: Description,
    ) -> None:
        self._batched = config.max_batch_size > 0
        config = replace(
            config,
            inputs=input_specs(description, batched=self._batched),
            outputs=output_specs(description, batched=self._batched),
        )
        super().__init__(config, version, engine, self._answer)
        self.tokenizer = tokenizer
        self.template = template
        self.description = description

    @property
    def max_model_len(self) -> int:
        """Of a text, or of a pair together, in tokens."""
        return self.description.max_model_len

    def pool(self, request: GenerateRequest) -> None:
        """Take a request of `pooling_request`; its vectors come on its stream. Raises ServingError if refused at once."""
        self._submit(request)

    async def _answer(self, request: InferenceRequest) -> tuple[InferenceResponse, int]:
        names = TEXTS[self.description.task]
        columns = [read_texts(request, name) for name in names]
        rows = await self._rows(columns)
        check_lengths(rows, self.max_model_len, [names[-1]] * len(rows))
        pooled = pooling_request(f"kserve-{uuid4().hex}", rows, deadline=request.deadline)
        times = request.times
        times.compute_start = times.compute_input_end = time.monotonic()
        self.engine.generate(pooled)
        request.stream.on_cancel(pooled.stream.cancel)
        vectors = await read_vectors(pooled)
        times.compute_start = times.compute_input_end = pooled.times.scheduled
        counts = [len(row.tokens) for row in rows]
        tensors = answer_tensors(self.description, vectors, counts, batched=self._batched)
        wanted = {output.name for output in request.outputs}
        outputs = [tensor for tensor in tensors if not wanted or tensor.name in wanted]
        return InferenceResponse(self.config.name, self.version, outputs, request.id), len(rows)

    async def _rows(self, columns: Sequence[list[str]]) -> list[Row]:
        if sum(len(text) for texts in columns for text in texts) > _LONG:
            return await asyncio.to_thread(self._encode, columns)
        return self._encode(columns)

    def _encode(self, columns: Sequence[list[str]]) -> list[Row]:
        if len(columns) == 1:
            return self.tokenizer.encode([self.description.prompt + text for text in columns[0]])
        firsts, seconds = columns
        if len(firsts) != len(seconds):
            raise ServingError(
                Code.INVALID, f"input 'text_2': expected {len(firsts)} texts as in 'text_1', got {len(seconds)}"
            )
        return self.tokenizer.encode_pairs(list(zip(firsts, seconds, strict=True)))
