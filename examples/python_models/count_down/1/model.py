import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """LEFT counts down to 0, one step for every request of each batch: requests join and leave between two steps."""

    def initialize(self, args):
        self.left = {}  # by correlation id

    def execute(self, requests):
        for request in requests:
            number, sender = request.correlation_id(), request.get_response_sender()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.left[number] = pb_utils.get_input_tensor_by_name(request, "FROM").as_numpy().item()
            left = self.left.pop(number)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("LEFT", np.array([[left]], np.int32))]))
            if left > 0:
                self.left[number] = left - 1
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
