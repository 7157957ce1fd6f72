import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A binary PPM image as floats of 0 to 1, channels first."""

    def execute(self, requests):
        responses = []
        for request in requests:
            (data,) = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            try:
                pixels = read_ppm(data)
            except ValueError as error:
                reason = pb_utils.TritonError(f"IMAGE: {error}", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=reason))
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", pixels)]))
        return responses


def read_ppm(data):
    kind, width, height, most = (data.split(None, 4) + [b""] * 4)[:4]
    if kind != b"P6" or most != b"255":
        raise ValueError("expected a binary PPM (P6) with values up to 255")
    shape = (int(height), int(width), 3)
    values = np.frombuffer(data[-np.prod(shape) :], np.uint8)
    return values.reshape(shape).transpose(2, 0, 1).astype(np.float32) / 255
