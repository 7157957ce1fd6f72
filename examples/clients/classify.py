"""Image classification with the plain Triton client over gRPC: `python examples/clients/classify.py`; --help tells more.

Without an image library at hand it sends a synthetic picture; put your own preprocessed array in its place.
"""

import argparse
import sys

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException


def main(grpc_address: str) -> None:
    picture = np.linspace(-1, 1, 3 * 224 * 224, dtype=np.float32).reshape(1, 3, 224, 224)
    client = grpcclient.InferenceServerClient(url=grpc_address)
    inputs = grpcclient.InferInput("data_0", list(picture.shape), "FP32")
    inputs.set_data_from_numpy(picture)
    outputs = grpcclient.InferRequestedOutput("fc6_1", class_count=5)
    result = client.infer(model_name="densenet_onnx", inputs=[inputs], outputs=[outputs])
    print(result.as_numpy("fc6_1"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Name the five best classes of a picture.")
    parser.add_argument("--grpc", default="localhost:8001", metavar="HOST:PORT", help="default: %(default)s")
    given = parser.parse_args()
    try:
        main(given.grpc)
    except InferenceServerException as error:
        sys.exit(f"{given.grpc}: {error.message()}")
