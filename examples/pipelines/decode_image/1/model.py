import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, UnidentifiedImageError

SIZE = 224
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


class TritonPythonModel:
    """PIXELS of an IMAGE file in any format that Pillow reads."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        (data,) = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        try:
            pixels = pixels_of(data)
        except UnidentifiedImageError:
            return refusal(f"expected an image file, got {len(data)} bytes that are none")
        except (Image.DecompressionBombError, OSError) as error:  # too large, or cut off
            return refusal(str(error))
        return pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", pixels)])


def refusal(text):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"IMAGE: {text}", pb_utils.TritonError.INVALID_ARG))


def pixels_of(data):
    """The middle of the picture, FP32 [1, 3, 224, 224]."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    edge = min(image.size)
    left, top = ((length - edge) // 2 for length in image.size)
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=(left, top, left + edge, top + edge))
    values = (np.asarray(image, np.float32) / 255 - MEAN) / DEVIATION
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])
