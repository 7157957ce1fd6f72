import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """KIND, DEVICE and INSTANCE as `initialize` is told them. With KIND_MODEL the model itself chooses its device."""

    def initialize(self, args):
        facts = {
            "KIND": args["model_instance_kind"],
            "DEVICE": args["model_instance_device_id"],
            "INSTANCE": args["model_instance_name"],
        }
        self.outputs = [pb_utils.Tensor(name, np.array([fact.encode()], dtype=object)) for name, fact in facts.items()]

    def execute(self, requests):
        return [pb_utils.InferenceResponse(self.outputs) for _ in requests]
