import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The best of LABELS for each of IMAGES; what is no image gets the error in its place, which an ensemble cannot do."""

    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        images = pb_utils.get_input_tensor_by_name(request, "IMAGES").as_numpy()
        labels = await asyncio.gather(*(self.label(image) for image in images))
        return pb_utils.InferenceResponse([pb_utils.Tensor("LABELS", np.array(labels, dtype=object))])

    async def label(self, image):
        try:
            pixels = await self.ask("decode_image", "PIXELS", pb_utils.Tensor("IMAGE", np.array([image], dtype=object)))
            scores = await self.ask("densenet_onnx", "fc6_1", pb_utils.Tensor("data_0", pixels))
            labels = await self.ask("name_classes", "LABELS", pb_utils.Tensor("SCORES", scores))
        except pb_utils.TritonModelException as error:
            return f"error: {error}".encode()
        return labels[0]

    async def ask(self, model, output, tensor):
        call = pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=[output])
        response = await call.async_exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return pb_utils.get_output_tensor_by_name(response, output).as_numpy()
