import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Works for MS; INTERVAL is when, in seconds of the machine's clock."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        start = time.monotonic()
        time.sleep(pb_utils.get_input_tensor_by_name(request, "MS").as_numpy().item() / 1000)
        interval = np.array([start, time.monotonic()])
        return pb_utils.InferenceResponse([pb_utils.Tensor("INTERVAL", interval)])
