import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Says three words and fails."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for word in ("one ", "two ", "three "):
                sender.send(
                    pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([word.encode()], object))])
                )
            sender.send(
                pb_utils.InferenceResponse(error=pb_utils.TritonError("it broke")),
                flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            )
