import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Texts in upper case; a metric counts their bytes."""

    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(16)
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "UPPER", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_dynamic_batching()
        return config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        pb_utils.Logger.log_info(f"{args['model_instance_name']} answers batches of {config['max_batch_size']}")
        self.family = pb_utils.MetricFamily(
            name="upper_bytes_total", description="Bytes of text put in upper case", kind=pb_utils.MetricFamily.COUNTER
        )
        self.num_bytes = self.family.Metric(labels={"model": args["model_name"], "version": args["model_version"]})

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            upper = texts.copy()
            for index, text in enumerate(texts.flat):
                upper.flat[index] = text.decode().upper().encode()
                self.num_bytes.increment(len(text))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("UPPER", upper)]))
        return responses
