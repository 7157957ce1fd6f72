import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Each of VALUES as an answer of its own, DELAY_MS apart, from a thread: `execute` returns at once and takes the next."""

    def initialize(self, args):
        self.threads = set()

    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
            delay = pb_utils.get_input_tensor_by_name(request, "DELAY_MS")
            seconds = 0.0 if delay is None else delay.as_numpy().item() / 1000
            thread = threading.Thread(target=self.send, args=(request.get_response_sender(), values, seconds))
            self.threads = {each for each in self.threads if each.is_alive()} | {thread}
            thread.start()

    def send(self, sender, values, seconds):
        for place, value in enumerate(values):
            time.sleep(seconds)
            outputs = [
                pb_utils.Tensor("VALUE", np.array([value], np.int32)),
                pb_utils.Tensor("PLACE", np.array([place], np.uint32)),
            ]
            sender.send(pb_utils.InferenceResponse(outputs))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
