import asyncio
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

NUM_PASSAGES = 1  # a model as small as smollm2 mixes up several
DETAILS = ("finish_reason", "num_input_tokens", "num_output_tokens")
SAMPLING = b'{"temperature": 0, "max_tokens": 100}'
PROMPT = (
    "<|im_start|>user\nRead this text and answer the question with words from it.\n\n{text}\n\n{question}<|im_end|>\n"
    "<|im_start|>assistant\n"
)


class TritonPythonModel:
    """Streams smollm2's answer to the question in `text_input`; the first response has the passages that it was given."""

    def initialize(self, args):
        self.passages = (Path(__file__).parent / "passages.txt").read_text().splitlines()
        self.vectors = None  # (passages, 384), made when the first question comes
        self.lock = asyncio.Lock()

    async def execute(self, requests):
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        sender = request.get_response_sender()
        try:
            passages = await self.nearest(pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0])
            await send(
                sender, [pb_utils.Tensor("text_output", strings(b"")), pb_utils.Tensor("passages", strings(*passages))]
            )
            async for outputs in self.generate(request, passages):
                await send(sender, outputs)
        except pb_utils.TritonModelException as error:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    async def nearest(self, question):
        """The passages most like the question, best first."""
        async with self.lock:
            if self.vectors is None:
                self.vectors = await embed([passage.encode() for passage in self.passages])
        (vector,) = await embed([question])
        best = np.argsort(-(self.vectors @ vector), kind="stable")[:NUM_PASSAGES]
        return [self.passages[number].encode() for number in best]

    async def generate(self, request, passages):
        """What smollm2 says, piece by piece."""
        (question,) = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
        prompt = PROMPT.format(text=b"\n".join(passages).decode(), question=question.decode())
        given = pb_utils.get_input_tensor_by_name(request, "sampling_parameters")
        sampling = SAMPLING if given is None else given.as_numpy()[0]
        inputs = [
            pb_utils.Tensor("text_input", strings(prompt.encode())),
            pb_utils.Tensor("stream", np.array([True])),
            pb_utils.Tensor("sampling_parameters", strings(sampling)),
        ]
        async for response in await ask("smollm2", inputs, ["text_output", *DETAILS], decoupled=True):
            check(response)
            if response.output_tensors():
                yield response.output_tensors()


async def embed(texts):
    """FP32 [texts, 384], each of length 1."""
    text = pb_utils.Tensor("TEXT", np.array([[text] for text in texts], dtype=object))
    response = await ask("embed_text", [text], ["EMBEDDING"])
    check(response)
    return pb_utils.get_output_tensor_by_name(response, "EMBEDDING").as_numpy()


def ask(model, inputs, outputs, **options):
    call = pb_utils.InferenceRequest(model_name=model, inputs=inputs, requested_output_names=outputs)
    return call.async_exec(**options)


def check(response):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())


async def send(sender, outputs):
    # a slow reader makes `send` wait, which must not hold up everybody else on this loop
    await asyncio.to_thread(sender.send, pb_utils.InferenceResponse(outputs))


def strings(*values):
    return np.array(values, dtype=object)
