"""ONNX models: what is read from the file, what is checked, and that every datatype comes through."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto

from backends.api.base import Placement
from backends.api.errors import Code, ServingError
from backends.api.model_config import (
    Accelerator,
    DynamicBatching,
    InstanceGroup,
    ModelConfig,
    Optimization,
    TensorSpec,
)
from backends.api.registry import open_backend
from backends.api.request import InferenceRequest
from backends.api.tensor import NUMPY_DTYPES, Tensor
from scheduler.alarm import Alarm
from scheduler.load import load_tensor_model
from tests.unit.backends.onnx_files import add_sub, identity, pick, write

BARE = ModelConfig("m", backend="onnxruntime", parameters={"intra_op_thread_count": "1"})


def complete(folder, **fields) -> ModelConfig:
    settings = replace(BARE, **fields)
    return open_backend(settings, folder).complete(settings)


def run(folder, inputs: list[Tensor], outputs=(), **fields) -> dict[str, Tensor]:
    settings = replace(BARE, **fields)
    backend = open_backend(settings, folder)
    backend.complete(settings)
    instance = backend.instance(Placement("m_0"))
    try:
        return instance.execute({tensor.name: tensor for tensor in inputs}, outputs)
    finally:
        instance.close()
        backend.close()


def floats(name: str, *shape: int) -> Tensor:
    return Tensor.from_numpy(name, np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def test_a_free_first_dimension_makes_a_batching_model_of_four(tmp_path):
    config = complete(write(tmp_path, add_sub()))
    assert (config.max_batch_size, config.dynamic_batching) == (4, DynamicBatching())
    assert config.inputs == (TensorSpec("INPUT0", "INT32", (16,)), TensorSpec("INPUT1", "INT32", (16,)))
    assert config.outputs == (TensorSpec("OUTPUT0", "INT32", (16,)), TensorSpec("OUTPUT1", "INT32", (16,)))


def test_a_fixed_first_dimension_does_not(tmp_path):
    config = complete(write(tmp_path, identity((1, "w", 3))))
    assert (config.max_batch_size, config.dynamic_batching) == (0, None)
    assert config.inputs[0].dims == (1, -1, 3)


def test_dims_listed_in_full_say_that_the_model_is_not_to_batch(tmp_path):
    folder = write(tmp_path, identity())
    listed = complete(folder, inputs=(TensorSpec("x", "FP32", (-1, 4)),), outputs=(TensorSpec("y", "FP32", (-1, 4)),))
    assert listed.max_batch_size == 0
    assert complete(folder, inputs=(TensorSpec("x", "FP32", (4,)),)).max_batch_size == 4


def test_what_the_config_says_stays(tmp_path):
    batching = DynamicBatching(max_queue_delay_microseconds=5)
    config = complete(write(tmp_path, identity()), max_batch_size=32, dynamic_batching=batching)
    assert (config.max_batch_size, config.dynamic_batching) == (32, batching)
    assert complete(tmp_path, max_batch_size=32).dynamic_batching is None


def test_a_scalar_becomes_one_element_reshaped(tmp_path):
    config = complete(write(tmp_path, identity(())))
    assert config.inputs == (TensorSpec("x", "FP32", (1,), reshape=()),)
    assert complete(write(tmp_path, identity(("N",)))).inputs == (TensorSpec("x", "FP32", (1,), reshape=()),)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"inputs": (TensorSpec("x", "INT32", (4,)),)}, "expects datatype INT32 for input 'x', model provides FP32"),
        ({"inputs": (TensorSpec("z", "FP32", (4,)),)}, "unexpected inference input 'z', allowed inputs are: x"),
        (
            {"inputs": (TensorSpec("x", "FP32", (4,)), TensorSpec("z", "FP32", (4,)))},
            "unexpected inference input 'z', allowed inputs are: x",
        ),
        ({"outputs": (TensorSpec("z", "FP32", (4,)),)}, "unexpected inference output 'z', allowed outputs are: y"),
        (
            {"max_batch_size": 8, "inputs": (TensorSpec("x", "FP32", (4, 1)),)},
            "the model expects 1 dimensions .* specifies 2 dimensions",
        ),
        ({"inputs": (TensorSpec("x", "FP32", (5,)),)}, r"expects shape \[4\] but .* specifies shape \[5\]"),
        ({"parameters": {"intra_op_thread_count": "many"}}, "'intra_op_thread_count' must be a non-negative integer"),
        ({"parameters": {"enable_mem_arena": "maybe"}}, "'enable_mem_arena' must be 0 or 1"),
        ({"optimization": Optimization(graph_level=7)}, "must be one of -1, 0, 1, 2, got 7"),
        (
            {"optimization": Optimization(cpu_accelerators=(Accelerator("warp"),))},
            "unknown cpu_execution_accelerator 'warp', expected one of: openvino",
        ),
    ],
)
def test_a_config_that_contradicts_the_file_is_refused_in_words(tmp_path, fields, text):
    with pytest.raises(ServingError, match=text) as caught:
        complete(write(tmp_path, identity()), **fields)
    assert caught.value.code is Code.INVALID


def test_a_model_that_cannot_batch_is_not_made_to(tmp_path):
    with pytest.raises(ServingError, match="for the model to support batching"):
        complete(write(tmp_path, identity((1, 4))), max_batch_size=8)


def test_an_absent_or_broken_file_is_told_by_name(tmp_path):
    with pytest.raises(ServingError, match=r"unable to find 'model.onnx' in version folder"):
        complete(tmp_path)
    (tmp_path / "other.onnx").write_bytes(b"no model")
    with pytest.raises(ServingError, match=r"cannot load 'other.onnx'") as caught:
        complete(tmp_path, default_model_filename="other.onnx")
    assert "ONNXRuntimeError" not in caught.value.message


def test_a_model_may_be_a_folder_with_its_weights_beside_it(tmp_path):
    write(tmp_path / "model.onnx", identity())
    assert complete(tmp_path).max_batch_size == 4


def test_a_provider_this_library_lacks_is_named(tmp_path):
    settings = replace(BARE, optimization=Optimization(cpu_accelerators=(Accelerator("openvino"),)))
    with pytest.raises(ServingError, match="has no OpenVINOExecutionProvider") as caught:
        open_backend(settings, write(tmp_path, identity())).complete(settings)
    assert caught.value.code is Code.UNAVAILABLE


NUMBERS = [
    ("FLOAT", "FP32"),
    ("DOUBLE", "FP64"),
    ("FLOAT16", "FP16"),
    ("BFLOAT16", "BF16"),
    ("BOOL", "BOOL"),
    *((f"{sign}INT{bits}", f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)),
]


@pytest.mark.parametrize(("onnx_type", "datatype"), NUMBERS)
def test_every_datatype_comes_through_unchanged(tmp_path, onnx_type, datatype):
    folder = write(tmp_path, identity(datatype=getattr(TensorProto, onnx_type)))
    array = np.arange(8).reshape(2, 4).astype(NUMPY_DTYPES[datatype])
    array.flags.writeable = False  # as a view of received bytes is
    out = run(folder, [Tensor("x", datatype, (2, 4), array)])["y"]
    assert (out.datatype, out.shape, out.as_numpy().dtype) == (datatype, (2, 4), array.dtype)
    assert np.array_equal(out.as_numpy(), array)


def test_strings_come_through_unchanged_and_other_bytes_are_refused(tmp_path):
    folder = write(tmp_path, identity(("N", 2), TensorProto.STRING))
    items = [b"", "é€😀".encode(), b"a\0b", b"plain"]
    assert run(folder, [Tensor("x", "BYTES", (2, 2), items)])["y"] == Tensor("y", "BYTES", (2, 2), items)
    with pytest.raises(ServingError, match="input 'x': ONNX strings are UTF-8") as caught:
        run(folder, [Tensor("x", "BYTES", (1, 2), [b"\xff", b""])])
    assert caught.value.code is Code.INVALID


def test_only_the_outputs_asked_for_are_computed(tmp_path):
    inputs = [Tensor.from_numpy(f"INPUT{i}", np.full((1, 16), i + 1, np.int32)) for i in (0, 1)]
    outputs = run(write(tmp_path, add_sub()), inputs, ["OUTPUT1"])
    assert {name: int(tensor.as_numpy()[0, 0]) for name, tensor in outputs.items()} == {"OUTPUT1": -1}


def test_a_run_that_fails_says_why_without_the_librarys_frame(tmp_path):
    folder = write(tmp_path, pick())
    with pytest.raises(ServingError, match=r"^onnx runtime error 2: .*idx=9") as caught:
        run(folder, [Tensor.from_numpy("i", np.array([[9]]))])
    assert caught.value.code is Code.INVALID
    assert "\n" not in caught.value.message


def test_session_options_reach_the_session(tmp_path):
    parameters = {
        "intra_op_thread_count": "1",
        "inter_op_thread_count": "2",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "0",
        "session.intra_op.allow_spinning": "0",
    }
    folder = write(tmp_path, identity())
    optimization = Optimization(graph_level=-1)
    settings = replace(BARE, parameters=parameters, optimization=optimization)
    backend = open_backend(settings, folder)
    backend.complete(settings)
    options = backend._session(Placement("m")).get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 2)
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    assert options.execution_mode.name == "ORT_PARALLEL"
    assert options.graph_optimization_level.name == "ORT_ENABLE_BASIC"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_the_arena_can_be_shrunk_after_each_run(tmp_path):
    parameters = {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    assert run(write(tmp_path, identity()), [floats("x", 1, 4)], parameters=parameters)["y"].shape == (1, 4)


async def test_a_small_batch_between_large_ones_leaves_every_row_right(tmp_path):
    settings = replace(BARE, instance_groups=(InstanceGroup(kind="KIND_CPU", count=2),), max_batch_size=8)
    model = await load_tensor_model(settings, "1", write(tmp_path / "1", add_sub()), alarm=Alarm())
    random = np.random.default_rng(0)
    for rows in [8, 2, 8, 1, 3, 8] * 5:
        left = random.integers(-(9**6), 9**6, (rows, 16)).astype(np.int32)
        right = left[::-1].copy()
        request = InferenceRequest("m", "", [Tensor.from_numpy("INPUT0", left), Tensor.from_numpy("INPUT1", right)])
        model.infer(request)
        (response,) = await request.stream.take()
        total, difference = (tensor.as_numpy() for tensor in response.outputs)
        assert (total == left + right).all()
        assert (difference == left - right).all()
    await model.close()
