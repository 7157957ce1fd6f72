"""Ask the models of examples/python_models.

python examples/clients/python_models.py [HTTP_ADDRESS] [GRPC_ADDRESS]
"""

import queue
import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http


def main(http_address: str = "127.0.0.1:8000", grpc_address: str = "127.0.0.1:8001") -> None:
    client = http.InferenceServerClient(http_address)
    print("add_sub:", add(client, 2.0, 3.0))
    print("square_stream:", squares(grpc_address, 5))
    print("ask_others:", sum_of_squares(client, 4))
    print("self_describing:", upper(client, "hello"))
    print("image_to_tensor:", pixels(client, b"P6 2 1 255\n" + bytes([255, 0, 0, 0, 0, 255])))


def add(client: http.InferenceServerClient, first: float, second: float) -> list[float]:
    inputs = [
        tensor("INPUT0", np.full((1, 4), first, np.float32)),
        tensor("INPUT1", np.full((1, 4), second, np.float32)),
    ]
    return client.infer("add_sub", inputs).as_numpy("OUTPUT0")[0].tolist()


def squares(grpc_address: str, count: int) -> list[int]:
    """All answers of a decoupled model, over a gRPC stream."""
    answers: queue.Queue = queue.Queue()
    client = grpc.InferenceServerClient(grpc_address)
    client.start_stream(lambda result, error: answers.put(error or result))
    given = grpc.InferInput("COUNT", [1], "INT32")
    given.set_data_from_numpy(np.array([count], np.int32))
    client.async_stream_infer("square_stream", [given], enable_empty_final_response=True)
    found = []
    while True:
        answer = answers.get(timeout=30)
        if isinstance(answer, Exception):
            raise answer
        response = answer.get_response()
        if response.outputs:
            found.append(int(answer.as_numpy("SQUARE")[0]))
        if response.parameters["triton_final_response"].bool_param:
            client.stop_stream()
            return found


def sum_of_squares(client: http.InferenceServerClient, count: int) -> int:
    answer = client.infer("ask_others", [tensor("COUNT", np.array([count], np.int32))])
    assert answer.as_numpy("ADDED").shape == (count, 4)
    return int(answer.as_numpy("SUM")[0])


def upper(client: http.InferenceServerClient, text: str) -> str:
    answer = client.infer("self_describing", [tensor("TEXT", np.array([[text.encode()]], dtype=object))])
    return answer.as_numpy("UPPER")[0, 0].decode()


def pixels(client: http.InferenceServerClient, image: bytes) -> list[list[list[float]]]:
    answer = client.infer("image_to_tensor", [tensor("IMAGE", np.array([image], dtype=object))])
    return answer.as_numpy("PIXELS").tolist()


def tensor(name: str, array: np.ndarray) -> http.InferInput:
    datatype = {"float32": "FP32", "int32": "INT32", "object": "BYTES"}[array.dtype.name]
    given = http.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


if __name__ == "__main__":
    main(*sys.argv[1:])
