import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Metrics of every kind: a counter and a histogram of VALUE, a gauge with the last one. TOTAL is read off the counter."""

    def initialize(self, args):
        labels = {"model": args["model_name"], "version": args["model_version"]}
        family = pb_utils.MetricFamily
        self.families = [
            family(name="measures_total", description="Sum of all values", kind=family.COUNTER),
            family(name="measures_last", description="The last value", kind=family.GAUGE),
            family(name="measures_spread", description="How large values are", kind=family.HISTOGRAM),
        ]
        total, last, spread = self.families
        self.total, self.last = total.Metric(labels=labels), last.Metric(labels=labels)
        self.spread = spread.Metric(labels=labels, buckets=[0.5, 1.0, 10.0])

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy().item()
        self.total.increment(value)
        self.last.set(value)
        self.spread.observe(value)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOTAL", np.array([self.total.value()]))])
