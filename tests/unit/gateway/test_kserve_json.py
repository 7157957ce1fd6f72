import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, TensorSpec
from backends.api.request import InferenceResponse, RequestedOutput
from backends.api.tensor import NUMPY_DTYPES, Tensor
from gateway.kserve_json import Decoded, decode
from gateway.kserve_json_answer import Answer, AnswerForm, encode
from gateway.shared_memory import SharedMemory


def model(datatype: str = "FP32", dims: tuple[int, ...] = (4,), batch: int = 8, name: str = "ident") -> ModelConfig:
    return ModelConfig(
        name=name,
        max_batch_size=batch,
        inputs=(TensorSpec("IN", datatype, dims),),
        outputs=(TensorSpec("OUT", datatype, dims),),
    )


no_region = SharedMemory(allowed=True).window


def tensor(**changes: Any) -> dict[str, Any]:
    entry = {"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4], **changes}
    return {name: value for name, value in entry.items() if value is not ...}


def decoded(document: Any, config: ModelConfig | None = None, blob: bytes = b"", length: int | None = None) -> Decoded:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    if blob and length is None:
        length = len(text)
    return decode(text + blob, length, config or model(), "", no_region)


def refusal(document: Any, config: ModelConfig | None = None, blob: bytes = b"", length: int | None = None) -> str:
    with pytest.raises(ServingError) as caught:
        decoded(document, config, blob, length)
    assert caught.value.code is Code.INVALID
    return caught.value.message


def answer(*tensors: Tensor, wanted: tuple[RequestedOutput, ...] = (), binary: bool = False, **labels: Any) -> Answer:
    form = AnswerForm({output.name: output for output in wanted}, binary, labels, True, {})
    return encode(InferenceResponse("ident", "1", list(tensors)), form)


def output_of(answer: Answer) -> Any:
    return json.loads(answer.body)["outputs"][0]


NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
UNKNOWN = "[request id: <id_unknown>]"
ONE_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)


def non(kind: str, field: str = "data") -> str:
    return f"Unable to parse '{field}': attempt to access JSON non-{kind}"


UNSIGNED = "unsigned-integer as unsigned-integer"
REFUSALS = {
    "no inputs member": ({}, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    "not an object": ([1], "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    "inputs not a list": ({"inputs": 3}, non("array as array", "inputs")),
    "outputs not a list": ({"inputs": [tensor()], "outputs": {}}, non("array as array", "outputs")),
    "id not a string": ({"id": 3, "inputs": [tensor()]}, non("string as string", "id")),
    "parameters not an object": (
        {"inputs": [tensor()], "parameters": [1]},
        "failed to get request params.: attempt to get members for non-object",
    ),
    "name not a string": ({"inputs": [tensor(name=3)]}, non("string as string", "name")),
    "missing name": (
        {"inputs": [tensor(name=...)]},
        "Unable to parse 'name': attempt to access non-existing object member 'name'",
    ),
    "missing shape": (
        {"inputs": [tensor(shape=...)]},
        "Unable to parse 'shape': attempt to access non-existing object member 'shape'",
    ),
    "missing datatype": (
        {"inputs": [tensor(datatype=...)]},
        "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'",
    ),
    "missing data": ({"inputs": [tensor(data=...)]}, ONE_SOURCE + "no field is set"),
    "two sources": (
        {"inputs": [tensor(parameters={"binary_data_size": 16})]},
        ONE_SOURCE + "set 'data' 'binary_data_size'",
    ),
    "negative dimension": ({"inputs": [tensor(shape=[-1, 4])]}, non(UNSIGNED, "shape")),
    "fractional dimension": ({"inputs": [tensor(shape=[1.0, 4])]}, non(UNSIGNED, "shape")),
    "dimension beyond int64": ({"inputs": [tensor(shape=[2**64, 4])]}, non(UNSIGNED, "shape")),
    "too little data": (
        {"inputs": [tensor(data=[1, 2, 3])]},
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    "too much data": (
        {"inputs": [tensor(data=[1, 2, 3, 4, 5])]},
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    "text among numbers": ({"inputs": [tensor(data=["a", 2, 3, 4])]}, non("number as double")),
    "boolean among numbers": ({"inputs": [tensor(data=[True, 2, 3, 4])]}, non("number as double")),
    "null among numbers": ({"inputs": [tensor(data=[None, 2, 3, 4])]}, non("number as double")),
    "data not a list": ({"inputs": [tensor(data=3)]}, non("array as array")),
    "unknown datatype": ({"inputs": [tensor(datatype="XX")]}, "invalid datatype for input IN"),
    "other datatype": (
        {"inputs": [tensor(datatype="INT32")]},
        f"{UNKNOWN} inference input 'IN' data-type is 'INT32', but model 'ident' expects 'FP32'",
    ),
    "other shape": (
        {"id": "q6", "inputs": [tensor(shape=[1, 3], data=[1, 2, 3])]},
        f"[request id: q6] unexpected shape for input 'IN' for model 'ident'. Expected [-1,4], got [1,3].{NOTE}",
    ),
    "no batch dimension": (
        {"inputs": [tensor(shape=[4])]},
        f"{UNKNOWN} unexpected shape for input 'IN' for model 'ident'. Expected [-1,4], got [4].{NOTE}",
    ),
    "scalar": (
        {"inputs": [tensor(shape=[], data=[1])]},
        f"{UNKNOWN} input 'IN' has no shape but model requires batch dimension for 'ident'",
    ),
    "batch too big": (
        {"inputs": [tensor(shape=[9, 4], data=[0] * 36)]},
        f"{UNKNOWN} inference request batch-size must be <= 8 for 'ident'",
    ),
    "no inputs": (
        {"inputs": []},
        (
            f"{UNKNOWN} expected 1 inputs but got 0 inputs for model 'ident'. Got input(s) [], but missing required "
            "input(s) ['IN']. Please provide all required input(s)."
        ),
    ),
    "one input too many": (
        {"inputs": [tensor(), tensor(name="NO")]},
        (
            f"{UNKNOWN} expected 1 inputs but got 2 inputs for model 'ident'. Got input(s) ['IN','NO'], but missing "
            "required input(s) []. Please provide all required input(s)."
        ),
    ),
    "another name": ({"inputs": [tensor(name="NO")]}, "unexpected inference input 'NO' for model 'ident'"),
    "input twice": ({"inputs": [tensor(), tensor()]}, f"{UNKNOWN} input 'IN' already exists in request"),
    "unknown output": (
        {"inputs": [tensor()], "outputs": [{"name": "ZZ"}]},
        "unexpected inference output 'ZZ' for model 'ident'",
    ),
    "reserved parameter": (
        {"inputs": [tensor()], "parameters": {"triton_x": 1}},
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    "list as parameter": (
        {"inputs": [tensor()], "parameters": {"x": [1]}},
        "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    "negative priority": ({"inputs": [tensor()], "parameters": {"priority": -1}}, non(UNSIGNED, "priority")),
    "timeout as text": ({"inputs": [tensor()], "parameters": {"timeout": "a"}}, non(UNSIGNED, "timeout")),
    "fractional sequence id": (
        {"inputs": [tensor()], "parameters": {"sequence_id": 1.5}},
        non("string as string", "sequence_id"),
    ),
    "flag as number": (
        {"inputs": [tensor()], "parameters": {"sequence_start": 1}},
        non("boolean as boolean", "sequence_start"),
    ),
    "classification as text": (
        {"inputs": [tensor()], "outputs": [{"name": "OUT", "parameters": {"classification": "a"}}]},
        non(UNSIGNED, "classification").replace("parse", "set"),
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_wrong_body_is_refused_in_tritons_words(case: str) -> None:
    document, text = REFUSALS[case]
    assert refusal(document) == text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"inputs":[}',
        b'{"inputs":[]}x',
        b"\xff\xfe",
        b'{"inputs":[{"name":"\xff"}]}',
        b'{"inputs":[1e400]}',
    ],
)
def test_malformed_json_is_refused_as_such(body: bytes) -> None:
    assert refusal(body).startswith(("failed to parse the request JSON buffer: ", "failed to parse the request: "))


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    nest = b"[" * depth + b"]" * depth
    for body in (b'{"inputs":' + nest + b"}", b'{"inputs":[],"x":' + nest + b"}"):
        assert "nested too deeply" in refusal(body)
    assert "nested too deeply" in refusal(json.dumps({"inputs": [tensor(data="@")]}).encode().replace(b'"@"', nest))


def test_data_counts_in_row_major_order_however_it_is_nested() -> None:
    for data in ([1, 2, 3, 4], [[1, 2, 3, 4]], [[[1], [2]], [3, 4]], [[], [1, 2], [3, 4]]):
        (given_tensor,) = decoded({"inputs": [tensor(data=data)]}).request.inputs
        assert given_tensor.as_numpy().tolist() == [[1, 2, 3, 4]]


def test_nan_and_infinity_pass_both_ways() -> None:
    body = b'{"inputs":[{"name":"IN","shape":[1,4],"datatype":"FP32","data":[[NaN,Infinity],[-Infinity,1]]}]}'
    (values,) = decoded(body).request.inputs
    assert np.array_equal(values.as_numpy(), [[np.nan, np.inf, -np.inf, 1]], equal_nan=True)
    assert answer(values).body.endswith(b'"data":[NaN,Infinity,-Infinity,1.0]}]}')


@pytest.mark.parametrize(("datatype", "value"), [("UINT8", 300), ("INT8", 128), ("INT32", 2**40), ("INT64", 2**63)])
def test_an_integer_that_does_not_fit_is_refused_and_never_cut(datatype: str, value: int) -> None:
    body = {"inputs": [tensor(datatype=datatype, shape=[1, 1], data=[value])]}
    assert "has a value outside" in refusal(body, model(datatype, (-1,)))


def test_a_negative_value_for_an_unsigned_type_is_refused() -> None:
    body = {"inputs": [tensor(datatype="UINT8", shape=[1, 1], data=[-1])]}
    assert refusal(body, model("UINT8", (-1,))) == non("unsigned-integer as unsigned-integer")


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_two_byte_floats_are_refused_as_json_both_ways(datatype: str) -> None:
    body = {"inputs": [tensor(datatype=datatype, shape=[1, 1], data=[1])]}
    expected = f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input IN"
    assert refusal(body, model(datatype, (-1,))) == expected
    values = Tensor("OUT", datatype, (1, 1), np.zeros((1, 1), NUMPY_DTYPES[datatype]))
    with pytest.raises(ServingError, match=f"sending {datatype} data via JSON is not supported"):
        answer(values)
    assert answer(values, binary=True).body.endswith(b"\x00\x00")


def binary(size: Any, shape: list[int] | None = None, datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    given_tensor = {"name": "IN", "shape": shape or [1, 4], "datatype": datatype}
    return {"inputs": [{**given_tensor, "parameters": {"binary_data_size": size}}], **more}


FOUR = struct.pack("<4f", 1, 2, 3, 4)


def test_binary_data_are_views_of_the_body() -> None:
    text = json.dumps(binary(16)).encode()
    body = text + FOUR
    (values,) = decode(body, len(text), model(), "", no_region).request.inputs
    assert values.as_numpy().tolist() == [[1, 2, 3, 4]]
    assert np.shares_memory(values.as_numpy(), np.frombuffer(body, np.uint8))


@pytest.mark.parametrize(
    ("size", "blob", "text"),
    [
        (8, FOUR[:8], f"{UNKNOWN} input byte size mismatch for input 'IN' for model 'ident'. Expected 16, got 8"),
        (16, FOUR[:8], "unexpected size for input 'IN', expecting 8 additional bytes for model 'ident'"),
        (16, FOUR + b"xx", "unexpected additional input data for model 'ident'"),
        (2**40, FOUR, f"unexpected size for input 'IN', expecting {2**40 - 16} additional bytes for model 'ident'"),
        (-16, FOUR, non(UNSIGNED, "binary_data_size")),
        ("16", FOUR, non(UNSIGNED, "binary_data_size")),
    ],
)
def test_binary_sizes_that_disagree_are_refused(size: Any, blob: bytes, text: str) -> None:
    assert refusal(binary(size), blob=blob) == text


def test_a_header_length_outside_the_body_is_refused() -> None:
    body = json.dumps(binary(16)).encode()
    for length in (9999, -1, 10**12):
        assert refusal(body, length=length) == (
            f"inference header size should be in range (0, {len(body)}), got: {length}"
        )
    assert refusal(body, length=5).startswith("failed to parse the request JSON buffer: ")


def test_a_raw_request_is_the_one_inputs_contents() -> None:
    request = decoded(b"", model(dims=(-1,), batch=0), FOUR, 0)
    assert request.binary
    assert request.request.inputs[0].as_numpy().tolist() == [1, 2, 3, 4]
    (text,) = decoded(b"", model("BYTES", (1,)), b"hello", 0).request.inputs
    assert (text.shape, text.data) == ((1, 1), [b"hello"])


def test_a_raw_request_whose_input_cannot_be_deduced_is_refused() -> None:
    assert refusal(FOUR[:6], model(dims=(-1,), batch=0), length=0) == (
        f"{UNKNOWN} input byte size mismatch for input 'raw_input' for model 'ident'. Expected 4, got 6"
    )
    assert "more than one variable-sized dimension" in refusal(FOUR, model(dims=(-1, -1)), length=0)
    assert refusal(b"x", model("BYTES", (-1,)), length=0) == (
        f"{UNKNOWN} For BYTE datatype raw input 'IN', the model must have input shape [1]"
    )


ELEMENTS = [b"", b"\x00", b"x" * 300, b"\xff\xfe", "é\u2028".encode()]


def packed(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def test_byte_elements_pass_byte_for_byte_in_binary() -> None:
    blob = packed(*ELEMENTS)
    config = model("BYTES", (-1,))
    (values,) = decoded(binary(len(blob), [1, 5], "BYTES"), config, blob).request.inputs
    assert values.data == ELEMENTS
    assert answer(values, binary=True).body.endswith(blob)


def test_an_output_element_that_is_not_text_is_refused_as_json() -> None:
    with pytest.raises(ServingError, match="ask for it as binary data") as caught:
        answer(Tensor("OUT", "BYTES", (1,), [b"\xff"]))
    assert caught.value.code is Code.INVALID


@pytest.mark.parametrize(
    ("blob", "count", "part"),
    [
        (struct.pack("<I", 300) + b"ab", 1, "expecting string of length 300 but only 2 bytes available"),
        (b"ab", 1, "incomplete string length indicator for inference input 'IN'"),
        (packed(b"ab"), 2, "expected 2 string elements for inference input 'IN' for model 'ident', got 1"),
        (packed(b"ab", b"cd"), 1, "unexpected number of string elements 2 for inference input 'IN'"),
    ],
)
def test_broken_byte_elements_are_refused_with_the_tensors_name(blob: bytes, count: int, part: str) -> None:
    assert part in refusal(binary(len(blob), [1, count], "BYTES"), model("BYTES", (-1,)), blob)


def test_a_number_among_texts_is_refused() -> None:
    body = {"inputs": [tensor(datatype="BYTES", shape=[1, 1], data=[1])]}
    expected = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
    assert refusal(body, model("BYTES", (-1,))) == expected


def test_the_request_wide_binary_flag_holds_for_outputs_that_say_nothing() -> None:
    one, two = (Tensor(name, "FP32", (1,), np.ones(1, np.float32)) for name in ("A", "B"))
    wanted = (RequestedOutput("A"), RequestedOutput("B", parameters={"binary_data": False}))
    result = answer(one, two, wanted=wanted, binary=True)
    head = json.loads(result.body[: result.json_length])
    assert [sorted(output) for output in head["outputs"]] == [
        ["datatype", "name", "parameters", "shape"],
        ["data", "datatype", "name", "shape"],
    ]
    assert result.body[result.json_length :] == np.ones(1, np.float32).tobytes()


def test_only_outputs_asked_for_are_answered() -> None:
    tensors = [Tensor(name, "FP32", (1,), np.ones(1, np.float32)) for name in "ABC"]
    names = [output["name"] for output in json.loads(answer(*tensors, wanted=(RequestedOutput("B"),)).body)["outputs"]]
    assert names == ["B"]


def test_parameters_reach_the_model_and_reserved_ones_their_fields() -> None:
    parameters = {"a": 1, "b": "x", "c": 1.5, "d": True, "sequence_id": 7, "sequence_end": True, "priority": 2}
    request = decoded({"id": "a", "inputs": [tensor()], "parameters": {**parameters, "timeout": 5}}).request
    assert request.parameters == {"a": 1, "b": "x", "c": 1.5, "d": True}
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (7, False, True)
    assert (request.priority, request.timeout_us, request.id) == (2, 5, "a")


def test_classification_gives_the_largest_values_with_their_labels() -> None:
    values = Tensor("OUT", "FP32", (2, 4), np.array([[1, 3, 2, 3], [5, 6, 7, 8]], np.float32))
    output = output_of(answer(values, wanted=(RequestedOutput("OUT", 2),), OUT=["cat", "dog", "fox"]))
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 2])
    assert output["data"] == ["3.000000:1:dog", "3.000000:3", "8.000000:3", "7.000000:2:fox"]
    integers = Tensor("OUT", "INT32", (1, 3), np.array([[3, 1, 2]], np.int32))
    assert output_of(answer(integers, wanted=(RequestedOutput("OUT", 9),)))["data"] == ["3:0", "2:2", "1:1"]


def test_classification_of_text_is_refused() -> None:
    with pytest.raises(ServingError, match="unsupported type 'BYTES'"):
        answer(Tensor("OUT", "BYTES", (1,), [b"a"]), wanted=(RequestedOutput("OUT", 1),))


NUMERIC = sorted(set(NUMPY_DTYPES) - {"FP16", "BF16"})


@given(st.data())
def test_what_goes_in_comes_out_as_json_and_as_binary(data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(NUMERIC))
    array = data.draw(hnp.arrays(NUMPY_DTYPES[datatype], st.tuples(st.integers(1, 3), st.integers(0, 5))))
    config = model(datatype, (-1,))
    header = {"name": "IN", "datatype": datatype, "shape": list(array.shape)}
    as_json = decoded({"inputs": [{**header, "data": array.tolist()}]}, config).request.inputs[0]
    as_bytes = decoded(binary(array.nbytes, list(array.shape), datatype), config, array.tobytes(), None)
    sent = Tensor("OUT", datatype, array.shape, array)
    back = np.array(output_of(answer(sent))["data"], array.dtype).reshape(array.shape)
    for values in (as_json.as_numpy(), as_bytes.request.inputs[0].as_numpy(), back):
        assert np.array_equal(values, array, equal_nan=array.dtype.kind == "f")


def outcome(act: Callable[[], object]) -> str | Code:
    try:
        act()
    except ServingError as error:
        return error.code
    return "answered"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(st.data())
def test_any_mangled_document_is_answered_or_refused_as_invalid(data: st.DataObject) -> None:
    document: dict[str, Any] = {"id": "a", "inputs": [tensor()], "outputs": [{"name": "OUT"}], "parameters": {}}
    place = data.draw(
        st.sampled_from([document, document["inputs"][0], document["outputs"][0], document["parameters"]])
    )
    name = data.draw(st.sampled_from([*place, "parameters", "binary_data_size", "priority", "shared_memory_region"]))
    place[name] = data.draw(JUNK)
    assert outcome(lambda: decoded(document)) in ("answered", Code.INVALID, Code.NOT_FOUND)


@given(st.binary(max_size=80), st.none() | st.integers(-5, 100))
def test_any_bytes_are_answered_or_refused_as_invalid(body: bytes, length: int | None) -> None:
    assert outcome(lambda: decode(body, length, model(), "", no_region)) in ("answered", Code.INVALID)


def test_a_long_list_is_parsed_in_pieces_to_the_same_values() -> None:
    values = np.arange(200_000)
    body = {"inputs": [tensor(datatype="INT64", shape=[2, 100_000], data=values.reshape(2, -1).tolist())]}
    (given_tensor,) = decoded(body, model("INT64", (-1,))).request.inputs
    assert np.array_equal(given_tensor.as_numpy().ravel(), values)
