"""Merge and split: every caller gets the rows of its own inputs back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.api.model_config import BatchInput, BatchOutput, ModelConfig, TensorSpec
from backends.api.request import InferenceRequest, RequestedOutput
from backends.api.tensor import Tensor
from scheduler.merge import BatchLayout


def layout(*, max_batch_size: int = 8, inputs=(), outputs=(), **fields) -> BatchLayout:
    return BatchLayout(
        ModelConfig("m", max_batch_size=max_batch_size, inputs=tuple(inputs), outputs=tuple(outputs), **fields)
    )


def request(*tensors: Tensor, outputs=()) -> InferenceRequest:
    return InferenceRequest("m", "", list(tensors), [RequestedOutput(name) for name in outputs])


def floats(name: str, *shape: int, start: float = 0.0) -> Tensor:
    array = np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return Tensor(name, "FP32", shape, array)


def strings(name: str, shape: tuple[int, ...], items: list[bytes]) -> Tensor:
    return Tensor(name, "BYTES", shape, items)


def echo(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.replace("I", "O"): Tensor(name.replace("I", "O"), item.datatype, item.shape, item.data)
        for name, item in inputs.items()
    }


PLAIN = layout(
    inputs=(TensorSpec("I0", "FP32", (-1,)), TensorSpec("I1", "BYTES", (2,))),
    outputs=(TensorSpec("O0", "FP32", (-1,)), TensorSpec("O1", "BYTES", (2,))),
)


@given(rows=st.lists(st.integers(0, 5), min_size=1, max_size=6), width=st.integers(0, 3), data=st.data())
def test_each_request_gets_its_own_rows_whatever_shares_the_batch(rows, width, data):
    requests = []
    for index, count in enumerate(rows):
        items = data.draw(st.lists(st.binary(max_size=3), min_size=2 * count, max_size=2 * count))
        tensors = [floats("I0", count, width, start=100.0 * index), strings("I1", (count, 2), items)]
        requests.append(request(*(tensors if index % 2 else reversed(tensors))))
    answers = PLAIN.split(echo(PLAIN.merge(requests)), PLAIN.parts_of(requests))
    for sent, (numbers, texts) in zip(requests, answers, strict=True):
        given_inputs = {tensor.name: tensor for tensor in sent.inputs}
        assert (numbers.name, texts.name) == ("O0", "O1")
        assert numbers.shape == given_inputs["I0"].shape == numbers.as_numpy().shape
        assert np.array_equal(numbers.as_numpy(), given_inputs["I0"].as_numpy())
        assert (texts.shape, texts.data) == (given_inputs["I1"].shape, given_inputs["I1"].data)


def test_a_lone_request_is_not_copied():
    tensor = floats("I0", 3, 2)
    merged = PLAIN.merge([request(tensor)])
    assert merged["I0"] is tensor
    (answer,) = PLAIN.split(echo(merged), PLAIN.parts_of([request(tensor)]))
    assert answer[0].data is tensor.data


@pytest.mark.parametrize("shape", [(1, 2), (4, 2), (), (3,)])
def test_a_wrong_row_count_is_an_error_and_never_a_shifted_split(shape):
    requests = [request(floats("I0", 1, 2)), request(floats("I0", 1, 2))]
    with pytest.raises(ServingError) as caught:
        PLAIN.split({"O0": floats("O0", *shape)}, PLAIN.parts_of(requests))
    assert caught.value.code is Code.INTERNAL
    assert "expected 2 rows" in caught.value.message


def test_only_the_outputs_asked_for_come_in_the_order_asked():
    requests = [request(floats("I0", 1, 1), strings("I1", (1, 2), [b"a", b"b"]), outputs=["O1"]), request()]
    requests[1].inputs = requests[0].inputs
    answers = PLAIN.split(echo(PLAIN.merge(requests)), PLAIN.parts_of(requests))
    assert [[tensor.name for tensor in answer] for answer in answers] == [["O1"], ["O0", "O1"]]


def test_an_output_asked_for_and_not_given_is_the_models_fault():
    asked = request(floats("I0", 1, 1), outputs=["O1"])
    with pytest.raises(ServingError, match="gave no output 'O1'"):
        PLAIN.split({"O0": floats("O0", 1, 1)}, PLAIN.parts_of([asked]))


def test_unequal_shapes_and_other_optional_inputs_have_other_keys():
    keyed = layout(inputs=(TensorSpec("I0", "FP32", (-1,)), TensorSpec("I1", "FP32", (1,), optional=True)))
    two, three = floats("I0", 1, 2), floats("I0", 1, 3)
    assert keyed.key_of(request(two)) == keyed.key_of(request(floats("I0", 4, 2)))
    assert keyed.key_of(request(two)) != keyed.key_of(request(three))
    assert keyed.key_of(request(two)) != keyed.key_of(request(two, floats("I1", 1, 1)))


def test_fixed_shapes_need_no_key():
    fixed = layout(inputs=(TensorSpec("I0", "FP32", (2,)),))
    assert fixed.key_of(request(floats("I0", 1, 2))) is None


def test_reshape_gives_the_model_its_shape_and_the_client_its_own():
    seen = layout(
        inputs=(TensorSpec("I0", "FP32", (-1, 3), reshape=(3, -1, 1)),),
        outputs=(TensorSpec("O0", "FP32", (-1, 3), reshape=(3, -1, 1)),),
    )
    requests = [request(floats("I0", 2, 5, 3)), request(floats("I0", 1, 5, 3, start=50))]
    merged = seen.merge(requests)
    assert merged["I0"].shape == (3, 3, 5, 1) == merged["I0"].as_numpy().shape
    answers = seen.split(echo(merged), seen.parts_of(requests))
    assert [answer[0].shape for answer in answers] == [(2, 5, 3), (1, 5, 3)]
    assert np.array_equal(answers[1][0].as_numpy(), requests[1].inputs[0].as_numpy())


def test_reshape_works_without_a_batch_dimension_and_to_a_scalar():
    scalar = layout(
        max_batch_size=0,
        inputs=(TensorSpec("I0", "FP32", (1,), reshape=()),),
        outputs=(TensorSpec("O0", "FP32", (1,), reshape=()),),
    )
    sent = request(floats("I0", 1))
    merged = scalar.merge([sent])
    assert merged["I0"].shape == ()
    ((out,),) = scalar.split(echo(merged), scalar.parts_of([sent]))
    assert out.shape == (1,)


RULES = {
    "BATCH_ELEMENT_COUNT": ("INT32", [3, 4]),
    "BATCH_ACCUMULATED_ELEMENT_COUNT": ("FP32", [3, 7]),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": ("INT32", [0, 3, 7]),
    "BATCH_ITEM_SHAPE": ("INT32", [[3], [4]]),
    "BATCH_ITEM_SHAPE_FLATTEN": ("INT32", [3, 4]),
}


@pytest.mark.parametrize("kind", RULES)
def test_ragged_inputs_are_laid_one_behind_the_other_with_their_shapes_beside(kind):
    datatype, expected = RULES[kind]
    ragged = layout(
        inputs=(TensorSpec("I0", "FP32", (-1,), allow_ragged_batch=True),),
        batch_inputs=(BatchInput(kind, ("INDEX",), datatype, ("I0",)),),
    )
    requests = [request(floats("I0", 1, 3)), request(floats("I0", 1, 4, start=3))]
    assert ragged.key_of(requests[0]) == ragged.key_of(requests[1])
    merged = ragged.merge(requests)
    assert merged["I0"].as_numpy().tolist() == list(range(7))
    assert merged["INDEX"].as_numpy().tolist() == expected
    assert merged["INDEX"].as_numpy().dtype == {"INT32": np.int32, "FP32": np.float32}[datatype]


def test_the_largest_element_count_is_told_by_a_shape():
    ragged = layout(
        inputs=(TensorSpec("I0", "FP32", (-1,), allow_ragged_batch=True),),
        batch_inputs=(BatchInput("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", ("MAX",), "FP32", ("I0",)),),
    )
    assert ragged.merge([request(floats("I0", 1, 3)), request(floats("I0", 1, 4))])["MAX"].shape == (4,)


def test_scattered_outputs_take_the_shapes_of_the_source_input():
    ragged = layout(
        inputs=(TensorSpec("I0", "FP32", (-1,), allow_ragged_batch=True),),
        outputs=(TensorSpec("O0", "FP32", (-1,)),),
        batch_outputs=(BatchOutput("BATCH_SCATTER_WITH_INPUT_SHAPE", ("O0",), ("I0",)),),
    )
    requests = [request(floats("I0", 1, 3)), request(floats("I0", 2, 2, start=3))]
    answers = ragged.split(echo(ragged.merge(requests)), ragged.parts_of(requests))
    assert [answer[0].as_numpy().tolist() for answer in answers] == [[[0, 1, 2]], [[3, 4], [5, 6]]]
    with pytest.raises(ServingError, match="expected 7"):
        ragged.split({"O0": floats("O0", 6)}, ragged.parts_of(requests))
