"""Requests that are sent to a real Triton and to us: every row of triton spec 1.3 that its Python models can show."""

import gzip
import json
import struct
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass(frozen=True)
class Case:
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"


def send(http: httpx.Client, case: Case) -> dict[str, Any]:
    """The answer in a form that can be stored: status, JSON (or text) and the binary data after it."""
    response = http.request(case.method, case.path, content=case.body, headers=case.headers)
    length = response.headers.get("inference-header-content-length")
    head = response.content if length is None else response.content[: int(length)]
    try:
        document = json.loads(head) if head else ""
    except ValueError:
        document = head.decode("latin-1")
    return {
        "status": response.status_code,
        "json": document,
        "binary": None if length is None else response.content[int(length) :].hex(),
    }


def infer(document: Any, model: str = "ident", blob: bytes = b"", length: Any = None, **headers: str) -> Case:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    extra = {name.replace("_", "-"): value for name, value in headers.items()}
    if blob or length is not None:
        extra["Inference-Header-Content-Length"] = str(len(body) if length is None else length)
    return Case(f"/v2/models/{model}/infer", body + blob, extra)


def tensor(**changes: Any) -> dict[str, Any]:
    entry = {"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4], **changes}
    return {name: value for name, value in entry.items() if value is not ...}


def one(**changes: Any) -> dict[str, Any]:
    return {"inputs": [tensor(**changes)]}


def typed(datatype: str, *data: Any) -> dict[str, Any]:
    return one(datatype=datatype, shape=[1, len(data)], data=list(data))


def parameters(**given: Any) -> dict[str, Any]:
    return {**one(), "parameters": given}


def binary(datatype: str, shape: list[int], size: Any, **more: Any) -> dict[str, Any]:
    return {
        "inputs": [{"name": "IN", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}],
        **more,
    }


def shared(**given: Any) -> dict[str, Any]:
    return one(data=..., parameters={"shared_memory_region": "zz", **given})


def pair(*names: str, rows: int = 1) -> dict[str, Any]:
    return {
        "inputs": [{"name": name, "shape": [rows, 2], "datatype": "INT32", "data": [1, 2] * rows} for name in names]
    }


def output(**given: Any) -> dict[str, Any]:
    return {**one(data=[1, 3, 2, 3]), "outputs": [{"name": "OUT", "parameters": given}]}


def strings(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


FOUR = struct.pack("<4f", 1, 2, 3, 4)
WANT_BINARY = {"parameters": {"binary_data_output": True}}

CASES: dict[str, Case] = {
    "plain": infer(one()),
    "id and custom parameters": infer({"id": "a", **parameters(foo=1, bar="x", baz=1.5, q=True)}),
    "version in path": Case("/v2/models/ident/versions/1/infer", json.dumps(one()).encode()),
    "unknown model": infer(one(), "nope"),
    "unknown version": Case("/v2/models/ident/versions/7/infer", json.dumps(one()).encode()),
    "version not a number": Case("/v2/models/ident/versions/x/infer", json.dumps(one()).encode()),
    "empty inputs": infer({"inputs": []}),
    "no inputs": infer({}),
    "not an object": infer([1]),
    "malformed": infer(b'{"inputs":[}'),
    "trailing text": infer(json.dumps(one()).encode() + b"xx"),
    "inputs not a list": infer({"inputs": 3}),
    "outputs not a list": infer({**one(), "outputs": {}}),
    "extra input": infer({"inputs": [tensor(), tensor(name="NO")]}),
    "wrong name": infer(one(name="NO")),
    "empty name": infer(one(name="")),
    "input twice": infer({"inputs": [tensor(), tensor()]}),
    "optional left out": infer(pair("A"), "two"),
    "required left out": infer(pair("B"), "two"),
    "nothing of several": infer({"inputs": []}, "two"),
    "unknown output": infer({**one(), "outputs": [{"name": "ZZ"}]}),
    "output twice": infer({**one(), "outputs": [{"name": "OUT"}, {"name": "OUT"}]}),
    "output without name": infer({**one(), "outputs": [{}]}),
    "empty outputs": infer({**one(), "outputs": []}),
    "wrong datatype": infer(one(datatype="INT32")),
    "unknown datatype": infer(one(datatype="XX")),
    "wrong shape": infer(one(shape=[1, 3], data=[1, 2, 3])),
    "wrong shape with id": infer({"id": "q6", **one(shape=[1, 3], data=[1, 2, 3])}),
    "no batch dimension": infer(one(shape=[4])),
    "no dimension": infer(one(shape=[], data=[1])),
    "batch too big": infer(one(shape=[9, 4], data=[0] * 36)),
    "batch of none": infer(one(shape=[0, 4], data=[])),
    "data too short": infer(one(data=[1, 2, 3])),
    "data too long": infer(one(data=[1, 2, 3, 4, 5])),
    "text in data": infer(one(data=["a", 2, 3, 4])),
    "boolean in data": infer(one(data=[True, 2, 3, 4])),
    "null in data": infer(one(data=[None, 2, 3, 4])),
    "data a number": infer(one(data=3)),
    "data nested": infer(one(data=[[1, 2, 3, 4]])),
    "data ragged": infer(one(data=[[1, 2], [3], [4]])),
    "negative dimension": infer(one(shape=[-1, 4])),
    "fractional dimension": infer(one(shape=[1.0, 4])),
    "text dimension": infer(one(shape=["1", 4])),
    "shape a number": infer(one(shape=4)),
    **{f"missing {name}": infer(one(**{name: ...})) for name in ("name", "shape", "datatype", "data")},
    "name a number": infer(one(name=3)),
    "datatype a number": infer(one(datatype=3)),
    "id a number": infer({"id": 3, **one()}),
    "id null": infer({"id": None, **one()}),
    "parameters a list": infer({**one(), "parameters": [1]}),
    "parameter a list": infer(parameters(x=[1])),
    "parameter null": infer(parameters(x=None)),
    "reserved parameter": infer(parameters(triton_x=1)),
    "negative priority": infer(parameters(priority=-1)),
    "timeout a text": infer(parameters(timeout="a")),
    "sequence id a fraction": infer(parameters(sequence_id=1.5)),
    "sequence start a number": infer(parameters(sequence_start=1)),
    "binary output a number": infer(parameters(binary_data_output=1)),
    "headers parameter": infer(parameters(headers="x")),
    "unknown member": infer({**one(), "zzz": 1}),
    "uint8 too large": infer(typed("UINT8", 300, 1), "ident_uint8"),
    "uint8 negative": infer(typed("UINT8", -1, 1), "ident_uint8"),
    "int32 too large": infer(typed("INT32", 2**40, 1), "ident_var"),
    "int32 a fraction": infer(typed("INT32", 1.5, 1), "ident_var"),
    "int32 a whole float": infer(typed("INT32", 1.0, 1), "ident_var"),
    "fp64 beyond range": infer(
        b'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP64","data":[1e400]}]}', "ident_fp64"
    ),
    "fp64 nan": infer(
        b'{"inputs":[{"name":"IN","shape":[1,3],"datatype":"FP64","data":[NaN,Infinity,-Infinity]}]}', "ident_fp64"
    ),
    "fp16 as json": infer(typed("FP16", 1), "ident_fp16"),
    "booleans": infer(typed("BOOL", True, False), "ident_bool"),
    "boolean a number": infer(typed("BOOL", 1, 0), "ident_bool"),
    "texts": infer(typed("BYTES", "a", "é", "\u2028x\ty"), "ident_bytes"),
    "text a number": infer(typed("BYTES", 1), "ident_bytes"),
    "texts too few": infer(one(datatype="BYTES", shape=[1, 2], data=["a"]), "ident_bytes"),
    "binary in": infer(binary("FP32", [1, 4], 16), blob=FOUR),
    "binary out": infer(binary("FP32", [1, 4], 16, **WANT_BINARY), blob=FOUR),
    "binary out of one": infer({**one(), "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}),
    "binary out but for one": infer(
        {**parameters(binary_data_output=True), "outputs": [{"name": "OUT", "parameters": {"binary_data": False}}]}
    ),
    "binary too small": infer(binary("FP32", [1, 4], 8), blob=FOUR[:8]),
    "binary past the body": infer(binary("FP32", [1, 4], 16), blob=FOUR[:8]),
    "binary left over": infer(binary("FP32", [1, 4], 16), blob=FOUR + b"xx"),
    "binary size negative": infer(binary("FP32", [1, 4], -16), blob=FOUR),
    "binary size a text": infer(binary("FP32", [1, 4], "16"), blob=FOUR),
    "binary and data": infer(one(parameters={"binary_data_size": 16}), blob=FOUR),
    "header length too large": infer(binary("FP32", [1, 4], 16), blob=FOUR, length=9999),
    "header length negative": infer(binary("FP32", [1, 4], 16), blob=FOUR, length=-1),
    "header length not a number": infer(binary("FP32", [1, 4], 16), blob=FOUR, length="abc"),
    "header length zero": infer(binary("FP32", [1, 4], 16), blob=FOUR, length=0),
    "header length too small": infer(binary("FP32", [1, 4], 16), blob=FOUR, length=5),
    "raw": infer(b"", "ident_raw", FOUR, 0),
    "raw with batch": infer(b"", "ident", FOUR, 0),
    "raw of odd size": infer(b"", "ident_raw", FOUR[:6], 0),
    "raw of two inputs": infer(b"", "two", FOUR, 0),
    "raw of variable bytes": infer(b"", "ident_bytes", b"hello", 0),
    "empty body": infer(b""),
    "bytes binary": infer(binary("BYTES", [1, 2], 12, **WANT_BINARY), "ident_bytes", strings(b"ab", b"cd")),
    "bytes not text": infer(binary("BYTES", [1, 1], 6), "ident_bytes", strings(b"\xff\xfe")),
    "bytes past the end": infer(binary("BYTES", [1, 1], 6), "ident_bytes", struct.pack("<I", 300) + b"ab"),
    "bytes length cut": infer(binary("BYTES", [1, 1], 2), "ident_bytes", b"ab"),
    "bytes too few": infer(binary("BYTES", [1, 2], 6), "ident_bytes", strings(b"ab")),
    "bytes too many": infer(binary("BYTES", [1, 1], 12), "ident_bytes", strings(b"ab", b"cd")),
    "fp16 binary to json": infer(binary("FP16", [1, 2], 4), "ident_fp16", b"\0<\0@"),
    "fp16 binary": infer(binary("FP16", [1, 2], 4, **WANT_BINARY), "ident_fp16", b"\0<\0@"),
    "classes": infer(output(classification=2)),
    "classes more than there are": infer(output(classification=9)),
    "classes none": infer(output(classification=0)),
    "classes negative": infer(output(classification=-1)),
    "classes a text": infer(output(classification="a")),
    "classes binary": infer(output(classification=2, binary_data=True)),
    "decoupled": infer({"inputs": [{"name": "IN", "shape": [2], "datatype": "INT32", "data": [1, 2]}]}, "repeat"),
    "model error": infer(one(), "failing"),
    "shared memory unknown": infer(shared(shared_memory_byte_size=16)),
    "shared memory without size": infer(shared()),
    "shared memory and data": infer(one(parameters={"shared_memory_region": "zz", "shared_memory_byte_size": 16})),
    "shared memory and binary": infer(output(shared_memory_region="zz", shared_memory_byte_size=16, binary_data=True)),
    "gzip": infer(gzip.compress(json.dumps(one()).encode(), mtime=0), Content_Encoding="gzip"),
    "not gzip": infer(b"xx", Content_Encoding="gzip"),
    "brotli": infer(b"xx", Content_Encoding="br"),
    "metadata": Case("/v2/models/text", method="GET"),
    "metadata of unknown": Case("/v2/models/nope", method="GET"),
    "ready of unknown": Case("/v2/models/nope/ready", method="GET"),
    "statistics of unknown": Case("/v2/models/nope/stats", method="GET"),
    "statistics of unknown version": Case("/v2/models/ident/versions/7/stats", method="GET"),
    "no such path": Case("/v2/foo", method="GET"),
    "no such method": Case("/v2/models/ident/infer", method="GET"),
    "load of unknown": Case("/v2/repository/models/nope/load"),
    "unload of unknown": Case("/v2/repository/models/nope/unload"),
    "load in a named repository": Case("/v2/repository/foo/models/ident/load"),
    "region unknown": Case("/v2/systemsharedmemory/region/zz/status", method="GET"),
    "region not there": Case("/v2/systemsharedmemory/region/x/register", b'{"key":"/nope","byte_size":64}'),
    "region without key": Case("/v2/systemsharedmemory/region/x/register", b'{"byte_size":64}'),
    "region without size": Case("/v2/systemsharedmemory/region/x/register", b'{"key":"/nope"}'),
    "region key a number": Case("/v2/systemsharedmemory/region/x/register", b'{"key":3,"byte_size":3}'),
    "region forgotten twice": Case("/v2/systemsharedmemory/region/zz/unregister"),
    "cuda region unknown": Case("/v2/cudasharedmemory/region/x/status", method="GET"),
    "cuda region without handle": Case("/v2/cudasharedmemory/region/x/register", b"{}"),
    "cuda handle too short": Case(
        "/v2/cudasharedmemory/region/x/register", b'{"raw_handle":{"b64":"AAAA"},"device_id":0,"byte_size":16}'
    ),
    "trace": Case("/v2/trace/setting", method="GET"),
    "trace of unknown": Case("/v2/models/nope/trace/setting", method="GET"),
    "trace with a version": Case("/v2/models/ident/versions/1/trace/setting", method="GET"),
    "trace level unknown": Case("/v2/trace/setting", b'{"trace_level":["XX"]}'),
    "trace level a text": Case("/v2/trace/setting", b'{"trace_level":"OFF"}'),
    "trace rate not a number": Case("/v2/trace/setting", b'{"trace_rate":"a"}'),
    "trace file": Case("/v2/trace/setting", b'{"trace_file":"x"}'),
    "trace unknown setting": Case("/v2/trace/setting", b'{"foo":1}'),
    "log": Case("/v2/logging", method="GET"),
    "log flag a text": Case("/v2/logging", b'{"log_info":"x"}'),
    "log format unknown": Case("/v2/logging", b'{"log_format":"xx"}'),
    "log file": Case("/v2/logging", b'{"log_file":"x"}'),
    "log unknown setting": Case("/v2/logging", b'{"foo":1}'),
    "generate": Case("/v2/models/text/generate", b'{"PROMPT":"a","id":"7","other":1}'),
    "generate text a number": Case("/v2/models/text/generate", b'{"PROMPT":1}'),
    "generate without input": Case("/v2/models/text/generate", b'{"LIMIT":1}'),
    "generate unknown model": Case("/v2/models/nope/generate", b"{}"),
    "generate two answers": Case("/v2/models/repeat/generate", b'{"IN":[1,2]}'),
    "generate one answer": Case("/v2/models/repeat/generate", b'{"IN":[5]}'),
    "generate stream": Case("/v2/models/repeat/generate_stream", b'{"IN":[1,2]}'),
    "generate stream error first": Case("/v2/models/repeat/generate_stream", b'{"IN":[-1]}'),
    "generate stream ordinary": Case("/v2/models/text/generate_stream", b'{"PROMPT":"a"}'),
}
