"""Image classification with the plain Triton client over gRPC: `python examples/clients/classify.py`.

Without an image library at hand it sends a synthetic picture; put your own preprocessed array in its place.
"""

import numpy as np
import tritonclient.grpc as grpcclient

picture = np.linspace(-1, 1, 3 * 224 * 224, dtype=np.float32).reshape(1, 3, 224, 224)

client = grpcclient.InferenceServerClient(url="localhost:8001")
inputs = grpcclient.InferInput("data_0", list(picture.shape), "FP32")
inputs.set_data_from_numpy(picture)
outputs = grpcclient.InferRequestedOutput("fc6_1", class_count=5)
result = client.infer(model_name="densenet_onnx", inputs=[inputs], outputs=[outputs])
print(result.as_numpy("fc6_1"))
