import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """SUM of the NUMBERs of a SEQUENCE since its START."""

    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        number, start, end, sequence = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
            for name in ("NUMBER", "START", "END", "SEQUENCE")
        )
        if start:
            self.sums[sequence] = 0
        total = self.sums[sequence] = self.sums[sequence] + number
        if end:
            del self.sums[sequence]
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([[total]], np.int32))])
