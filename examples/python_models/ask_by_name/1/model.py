import triton_python_backend_utils as pb_utils

NAMES = ["OUTPUT0", "OUTPUT1"]


class TritonPythonModel:
    """What the model that MODEL names answers to INPUT0 and INPUT1: a call that waits, as most business logic begins."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        (name,) = pb_utils.get_input_tensor_by_name(request, "MODEL").as_numpy()
        inputs = [pb_utils.get_input_tensor_by_name(request, each) for each in ("INPUT0", "INPUT1")]
        call = pb_utils.InferenceRequest(
            model_name=name.decode(),
            inputs=inputs,
            requested_output_names=NAMES,
            request_id=request.request_id(),
        )
        response = call.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(response, each) for each in NAMES])
