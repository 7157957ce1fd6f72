import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The squares of 0 to COUNT - 1, one answer each."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            for number in range(count):
                if sender.is_cancelled():
                    break
                square = pb_utils.Tensor("SQUARE", np.array([number**2], np.int64))
                sender.send(pb_utils.InferenceResponse([square]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
