import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            number = request.correlation_id()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.sums[number] = 0 * value
            self.sums[number] = self.sums[number] + value
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.sums[number])]))
        return responses
