import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The sums so far of what `square_stream` gives for COUNT, passed on one by one: a stream made of a stream."""

    def execute(self, requests):
        for request in requests:
            sender, total = request.get_response_sender(), 0
            for square in self.squares(request):
                total += square
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([total], np.int64))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def squares(self, request):
        call = pb_utils.InferenceRequest(
            model_name="square_stream",
            inputs=[pb_utils.get_input_tensor_by_name(request, "COUNT")],
            requested_output_names=["SQUARE"],
        )
        for response in call.exec(decoupled=True):
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            if response.output_tensors():  # Triton ends with an empty response
                yield pb_utils.get_output_tensor_by_name(response, "SQUARE").as_numpy().item()
