"""Ask the models of examples/python_models.

python examples/clients/python_models.py [--http HOST:PORT] [--grpc HOST:PORT]
"""

import argparse
import queue
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

DATATYPES = {
    "bool": "BOOL",
    "float32": "FP32",
    "float64": "FP64",
    "int32": "INT32",
    "uint32": "UINT32",
    "object": "BYTES",
}


def main(http_address: str, grpc_address: str) -> None:
    client = http.InferenceServerClient(http_address)
    print("add_sub:", add(client, 2.0, 3.0))
    print("ask_by_name:", add_by_name(client, "add_sub", 2.0, 3.0))
    print("square_stream:", squares(grpc_address, 5))
    print("forward_stream:", sums_of_squares(grpc_address, 5))
    print("repeat_later:", repeated(grpc_address, [4, 2, 4]))
    print("count_down:", count_down(grpc_address, 3))
    print("ask_others:", sum_of_squares(client, 4))
    print("self_describing:", upper(client, "hello"))
    print("image_to_tensor:", pixels(client, b"P6 2 1 255\n" + bytes([255, 0, 0, 0, 0, 255])))
    print("measures:", measure(client, 0.75))
    print("where:", where(client))
    print("turn_of_one, turn_of_other:", *(f"{end - start:.3f} s" for start, end in turns(http_address, 3, 50)))


def add(client: http.InferenceServerClient, first: float, second: float) -> list[float]:
    return client.infer("add_sub", summands(first, second)).as_numpy("OUTPUT0")[0].tolist()


def add_by_name(client: http.InferenceServerClient, model: str, first: float, second: float) -> list[float]:
    name = tensor("MODEL", np.array([model.encode()], dtype=object))
    return client.infer("ask_by_name", [name, *summands(first, second)]).as_numpy("OUTPUT0")[0].tolist()


def summands(first: float, second: float) -> list[http.InferInput]:
    return [
        tensor("INPUT0", np.full((1, 4), first, np.float32)),
        tensor("INPUT1", np.full((1, 4), second, np.float32)),
    ]


def squares(grpc_address: str, count: int) -> list[int]:
    """All answers of a decoupled model."""
    return stream(grpc_address, "square_stream", "SQUARE", tensor("COUNT", np.array([count], np.int32), grpc))


def sums_of_squares(grpc_address: str, count: int) -> list[int]:
    return stream(grpc_address, "forward_stream", "SUM", tensor("COUNT", np.array([count], np.int32), grpc))


def repeated(grpc_address: str, values: list[int], delay_ms: int = 1) -> list[int]:
    delay = tensor("DELAY_MS", np.array([delay_ms], np.uint32), grpc)
    return stream(grpc_address, "repeat_later", "VALUE", tensor("VALUES", np.array(values, np.int32), grpc), delay)


def count_down(grpc_address: str, start: int) -> list[int]:
    return stream(grpc_address, "count_down", "LEFT", tensor("FROM", np.array([[start]], np.int32), grpc))


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


def measure(client: http.InferenceServerClient, value: float) -> float:
    """The sum of all values so far."""
    return client.infer("measures", [tensor("VALUE", np.array([value]))]).as_numpy("TOTAL").item()


def where(client: http.InferenceServerClient) -> list[str]:
    answer = client.infer("where", [tensor("ANY", np.array([True]))])
    return [answer.as_numpy(name)[0].decode() for name in ("KIND", "DEVICE", "INSTANCE")]


def turns(http_address: str, count: int, milliseconds: int) -> list[tuple[float, float]]:
    """When the two models worked, `count` times each and all asked at once; by their start."""

    def ask(model: str) -> tuple[float, float]:
        client = http.InferenceServerClient(http_address)
        answer = client.infer(model, [tensor("MS", np.array([milliseconds], np.uint32))])
        return tuple(answer.as_numpy("INTERVAL").tolist())

    with ThreadPoolExecutor(2 * count) as pool:
        return sorted(pool.map(ask, ["turn_of_one", "turn_of_other"] * count))


def stream(grpc_address: str, model: str, output: str, *inputs: grpc.InferInput) -> list[int]:
    """The values of `output` in all answers to one request, over a gRPC stream."""
    answers: queue.Queue = queue.Queue()
    client = grpc.InferenceServerClient(grpc_address)
    client.start_stream(lambda result, error: answers.put(error or result))
    client.async_stream_infer(model, list(inputs), enable_empty_final_response=True)
    found = []
    while True:
        answer = answers.get(timeout=30)
        if isinstance(answer, Exception):
            raise answer
        response = answer.get_response()
        if response.outputs:
            found.append(int(answer.as_numpy(output).item()))
        if response.parameters["triton_final_response"].bool_param:
            client.stop_stream()
            return found


def tensor(name: str, array: np.ndarray, kind=http):
    given = kind.InferInput(name, list(array.shape), DATATYPES[array.dtype.name])
    given.set_data_from_numpy(array)
    return given


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ask the models of examples/python_models.")
    parser.add_argument("--http", default="127.0.0.1:8000", metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument("--grpc", default="127.0.0.1:8001", metavar="HOST:PORT", help="default: %(default)s")
    given = parser.parse_args()
    try:
        main(given.http, given.grpc)
    except (OSError, InferenceServerException) as error:
        sys.exit(f"asked {given.http} and {given.grpc}: {error}")
