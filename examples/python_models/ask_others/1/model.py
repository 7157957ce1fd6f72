import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """SUM of the answers of `square_stream` for COUNT, and COUNT rows ADDED by `add_sub`, asked for at the same time."""

    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        count = pb_utils.get_input_tensor_by_name(request, "COUNT")
        rows, total = await asyncio.gather(self.added(int(count.as_numpy()[0])), self.sum_of_squares(count))
        added = np.concatenate(rows) if rows else np.empty((0, 4), np.float32)
        outputs = [pb_utils.Tensor("SUM", np.array([total], np.int64)), pb_utils.Tensor("ADDED", added)]
        return pb_utils.InferenceResponse(outputs)

    async def added(self, count):
        calls = []
        for number in range(count):
            row = np.full((1, 4), number, np.float32)
            inputs = [pb_utils.Tensor("INPUT0", row), pb_utils.Tensor("INPUT1", row)]
            call = pb_utils.InferenceRequest(model_name="add_sub", inputs=inputs, requested_output_names=["OUTPUT0"])
            calls.append(call.async_exec())
        return [self.output(response, "OUTPUT0") for response in await asyncio.gather(*calls)]

    async def sum_of_squares(self, count):
        call = pb_utils.InferenceRequest(model_name="square_stream", inputs=[count], requested_output_names=["SQUARE"])
        total = 0
        for response in await call.async_exec(decoupled=True):
            if response.has_error() or response.output_tensors():  # Triton ends with an empty response
                total += int(self.output(response, "SQUARE")[0])
        return total

    def output(self, response, name):
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.get_output_tensor_by_name(response, name).as_numpy()
