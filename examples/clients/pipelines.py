"""Ask the models of examples/pipelines.

python examples/clients/pipelines.py [--http HOST:PORT] [--grpc HOST:PORT]
"""

import argparse
import io
import queue
import sys

import numpy as np
import openai
import tritonclient.grpc as grpc
import tritonclient.http as http
from PIL import Image
from tritonclient.utils import InferenceServerException

QUESTION = "When does the harbour gate open?"


def main(http_address: str, grpc_address: str) -> None:
    client = http.InferenceServerClient(http_address, network_timeout=60)
    for label, probability in classify(client, picture()):
        print(f"classify_image: {label}, {probability:.3f}")
    print("classify_images:", classify_many(client, [picture(), b"no picture"]))
    near, far = similarities(client, "A boat in the harbour", ["Ships lie at the pier", "A recipe for bread"])
    print(f"embed_text: a harbour is like a pier ({near:.2f}), not like bread ({far:.2f})")
    for model in ("running_sum", "running_sum_onnx"):
        print(f"{model}:", running_sums(grpc_address, model, {1: [1, 2, 3], 2: [10, 20, 30]}))
    passages, answer = ask_documents(grpc_address, QUESTION)
    print("ask_documents, from:", *passages, sep="\n  ")
    print(" ", answer)
    print("the same as a chat:", chat(http_address, QUESTION))


def picture() -> bytes:
    """A PNG of a colour gradient; put your own file's bytes in its place."""
    ramp = np.linspace(0, 255, 320, dtype=np.uint8)
    colours = np.stack(
        [np.tile(ramp, (240, 1)), np.full((240, 320), 90, np.uint8), np.tile(ramp[::-1], (240, 1))], axis=2
    )
    file = io.BytesIO()
    Image.fromarray(colours).save(file, "PNG")
    return file.getvalue()


def classify(client: http.InferenceServerClient, image: bytes) -> list[tuple[str, float]]:
    """The five best labels and their probabilities."""
    answer = client.infer("classify_image", [strings("IMAGE", [image])])
    labels = (label.decode() for label in answer.as_numpy("LABELS"))
    return list(zip(labels, answer.as_numpy("PROBABILITIES").tolist(), strict=True))


def classify_many(client: http.InferenceServerClient, images: list[bytes]) -> list[str]:
    answer = client.infer("classify_images", [strings("IMAGES", images)])
    return [label.decode() for label in answer.as_numpy("LABELS")]


def similarities(client: http.InferenceServerClient, text: str, others: list[str]) -> list[float]:
    """The cosine of the angle between the text's meaning and that of each other one."""
    texts = [[each.encode()] for each in (text, *others)]
    vectors = client.infer("embed_text", [strings("TEXT", texts)]).as_numpy("EMBEDDING")
    return [float(vector @ vectors[0]) for vector in vectors[1:]]


def running_sums(grpc_address: str, model: str, sequences: dict[int, list[int]]) -> dict[int, list[int]]:
    """The sums of several sequences of numbers at once, over one stream."""
    answers: queue.Queue = queue.Queue()
    client = grpc.InferenceServerClient(grpc_address)
    client.start_stream(lambda result, error: answers.put(error or result))
    for place in range(max(map(len, sequences.values()))):
        for number, values in sequences.items():
            if place < len(values):
                given = grpc.InferInput("NUMBER", [1, 1], "INT32")
                given.set_data_from_numpy(np.array([[values[place]]], np.int32))
                flags = {"sequence_start": place == 0, "sequence_end": place + 1 == len(values)}
                client.async_stream_infer(model, [given], request_id=str(number), sequence_id=number, **flags)
    sums: dict[int, list[int]] = {number: [] for number in sequences}
    for _ in range(sum(map(len, sequences.values()))):
        answer = taken(answers)
        sums[int(answer.get_response().id)].append(answer.as_numpy("SUM").item())
    client.stop_stream()
    return sums


def ask_documents(grpc_address: str, question: str) -> tuple[list[str], str]:
    """The passages that were found, and the answer."""
    answers: queue.Queue = queue.Queue()
    client = grpc.InferenceServerClient(grpc_address)
    client.start_stream(lambda result, error: answers.put(error or result))
    given = grpc.InferInput("text_input", [1], "BYTES")
    given.set_data_from_numpy(np.array([question.encode()], dtype=object))
    client.async_stream_infer("ask_documents", [given], enable_empty_final_response=True)
    passages, pieces = [], []
    while True:
        answer = taken(answers)
        response = answer.get_response()
        for output in response.outputs:
            texts = [text.decode() for text in answer.as_numpy(output.name)] if output.datatype == "BYTES" else []
            passages += texts if output.name == "passages" else []
            pieces += texts if output.name == "text_output" else []
        if response.parameters["triton_final_response"].bool_param:
            client.stop_stream()
            return passages, "".join(pieces)


def chat(http_address: str, question: str) -> str:
    """The same with the plain OpenAI client."""
    client = openai.OpenAI(base_url=f"http://{http_address}/v1", api_key="unused")
    messages = [{"role": "user", "content": question}]
    stream = client.chat.completions.create(
        model="ask_documents", messages=messages, temperature=0, max_tokens=100, stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def strings(name: str, values: list) -> http.InferInput:
    array = np.array(values, dtype=object)
    given = http.InferInput(name, list(array.shape), "BYTES")
    given.set_data_from_numpy(array)
    return given


def taken(answers: queue.Queue) -> grpc.InferResult:
    answer = answers.get(timeout=60)
    if isinstance(answer, Exception):
        raise answer
    return answer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ask the models of examples/pipelines.")
    parser.add_argument("--http", default="127.0.0.1:8000", metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument("--grpc", default="127.0.0.1:8001", metavar="HOST:PORT", help="default: %(default)s")
    given = parser.parse_args()
    try:
        main(given.http, given.grpc)
    except (OSError, InferenceServerException) as error:
        sys.exit(f"asked {given.http} and {given.grpc}: {error}")
