"""Ready-made request bodies for a model of any v2 server, out of its metadata."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import orjson
from tritonclient.grpc import service_pb2 as pb

from backends.api.tensor import NUMPY_DTYPES, Tensor
from gateway.kserve_tensors import tensor_to_bytes

PROTOCOLS = ("http-json", "http-binary", "grpc", "grpc-stream")


@dataclass(frozen=True, slots=True)
class Target:
    """A model on a server: `http` and `grpc` are host:port, `grpc` empty where there is none."""

    name: str
    model: str
    http: str
    grpc: str = ""


@dataclass(frozen=True, slots=True)
class Body:
    """A request as bytes: a body with its headers for HTTP, a serialized ModelInferRequest for gRPC."""

    content: bytes
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def make_body(target: Target, protocol: str, shapes: Mapping[str, Sequence[int]]) -> Body:
    """A request of random data for `target`; `shapes` says what the model leaves open (else 1).

    Raises ConnectionError when the server does not answer for the model.
    """
    tensors = [_tensor(given, shapes.get(given["name"])) for given in _metadata(target)["inputs"]]
    if protocol.startswith("grpc"):
        return Body(_message(target.model, tensors).SerializeToString())
    path = f"/v2/models/{target.model}/infer"
    if protocol == "http-json":
        inputs = [{**_header(tensor), "data": _values(tensor)} for tensor in tensors]
        content = orjson.dumps({"inputs": inputs}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Body(content, path, {"Content-Type": "application/json"})
    blobs = [tensor_to_bytes(tensor) for tensor in tensors]
    inputs = [
        {**_header(tensor), "parameters": {"binary_data_size": len(blob)}}
        for tensor, blob in zip(tensors, blobs, strict=True)
    ]
    head = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return Body(head + b"".join(blobs), path, headers)


def _metadata(target: Target) -> dict[str, Any]:
    url = f"http://{target.http}/v2/models/{target.model}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
    except (urllib.error.URLError, ValueError) as error:
        raise ConnectionError(f"{url}: {error}") from error
    return document


def _tensor(given: Mapping[str, Any], shape: Sequence[int] | None) -> Tensor:
    name, datatype = given["name"], given["datatype"]
    dims = tuple(shape or (max(1, int(size)) for size in given["shape"]))
    random = np.random.default_rng(1)
    if datatype == "BYTES":
        return Tensor(name, datatype, dims, [b"text"] * prod(dims))
    # eighths: exact in every float type and of the same few digits in everybody's JSON
    numbers = random.integers(0, 8, dims) / (8 if datatype in ("FP16", "FP32", "FP64") else 4)
    return Tensor(name, datatype, dims, numbers.astype(NUMPY_DTYPES[datatype]))


def _header(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _values(tensor: Tensor) -> Any:
    return [item.decode() for item in tensor.data] if isinstance(tensor.data, list) else tensor.data.reshape(-1)


def _message(model: str, tensors: Sequence[Tensor]) -> Any:
    message = pb.ModelInferRequest(model_name=model)
    for tensor in tensors:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(tensor_to_bytes(tensor))
    return message
