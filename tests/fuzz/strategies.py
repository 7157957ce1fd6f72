"""Requests that are nearly right: documents, frames and messages of the protocol with something done to them."""

import json
from typing import Any

from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from tests.oracle import grpc_cases, http_cases

MODELS = ("ident", "ident_var", "ident_raw", "ident_bytes", "ident_bool", "ident_fp16", "two", "text", "repeat", "nope")
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["IN", "OUT", "FP32", "BYTES", "INT32", "\x00", "é" * 300]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


def _documents() -> list[Any]:
    """The JSON bodies of the oracle's cases that are JSON, those with binary data after them included."""
    found = []
    for case in http_cases.CASES.values():
        length = case.headers.get("Inference-Header-Content-Length")
        try:
            found.append(json.loads(case.body[: int(length)] if length else case.body))
        except ValueError:
            continue
    return found


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in _places(child, (*path, key)))]


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """A good or known-bad document with up to three of its parts replaced, removed or doubled."""
    document = json.loads(json.dumps(draw(st.sampled_from(_documents()))))
    for _ in range(draw(st.integers(0, 3))):
        *parents, key = draw(st.sampled_from(_places(document))) or (None,)
        if key is None:
            document = draw(values)
            continue
        target = document
        for parent in parents:
            target = target[parent]
        act = draw(st.sampled_from(["replace", "replace", "remove", "double"]))
        if act == "replace":
            target[key] = draw(values)
        elif act == "remove":
            del target[key]
        elif isinstance(target, list):
            target.append(target[key])
        else:
            target[draw(st.text(max_size=6))] = target[key]
    return document


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, dict[str, str]]:
    """A body and the headers that frame it, right or not."""
    text = json.dumps(draw(documents())).encode() if draw(st.integers(0, 9)) else draw(st.binary(max_size=200))
    blob = draw(st.binary(max_size=64))
    headers: dict[str, str] = {}
    if draw(st.booleans()):
        wrong = st.one_of(st.integers(-5, 1 << 70).map(str), st.text("0123456789abc -+.", max_size=12))
        headers["Inference-Header-Content-Length"] = draw(st.one_of(st.just(str(len(text))), wrong))
    if draw(st.integers(0, 4)) == 0:
        headers["Content-Encoding"] = draw(st.sampled_from(["gzip", "deflate", "br", "identity", "", "gzip, gzip"]))
    if draw(st.integers(0, 4)) == 0:
        headers["Accept-Encoding"] = draw(st.text("gzipdeflatebr;q=0.1, *", max_size=30))
    if draw(st.integers(0, 4)) == 0:
        headers["Accept"] = draw(st.sampled_from(["text/event-stream", "application/x-ndjson", "*/*", "x"]))
    return text + blob, {name: value.strip() for name, value in headers.items()}


@st.composite
def messages(draw: st.DrawFn) -> tuple[str, bytes]:
    """An rpc's name and the bytes of a message for it: a known one, cut, changed or made up."""
    known = [item for item in grpc_cases.CASES.values() if not isinstance(item, list)]
    message = draw(st.sampled_from(known))
    data = bytearray(message.SerializeToString())
    for _ in range(draw(st.integers(0, 4))):
        if not data:
            break
        place = draw(st.integers(0, len(data) - 1))
        if draw(st.booleans()):
            data[place] = draw(st.integers(0, 255))
        else:
            del data[place : place + draw(st.integers(1, 4))]
    if draw(st.integers(0, 5)) == 0:
        data = bytearray(draw(st.binary(max_size=100)))
    return type(message).__name__.removesuffix("Request"), bytes(data)


@st.composite
def streams(draw: st.DrawFn) -> list[Any]:
    """Up to five infer messages for one stream."""
    known = [item for item in grpc_cases.CASES.values() if isinstance(item, pb.ModelInferRequest)]
    return draw(st.lists(st.sampled_from(known), max_size=5))
