"""PyTorch models of each form, their naming rules and their errors."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends.api.base import Placement
from backends.api.errors import Code, ServingError
from backends.api.model_config import InstanceGroup, ModelConfig, TensorSpec
from backends.api.registry import open_backend
from backends.api.request import InferenceRequest
from backends.api.tensor import NUMPY_DTYPES, Tensor
from scheduler.alarm import Alarm
from scheduler.load import load_tensor_model

torch = pytest.importorskip("torch")

SOURCE = """
import torch

class AddSub(torch.nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(scale))

    def forward(self, left, right):
        return {"sum": self.scale * (left + right), "difference": self.scale * (left - right)}
"""


class AddSub(torch.nn.Module):
    def forward(self, left, right):
        return left + right, left - right


class Cast(torch.nn.Module):
    def forward(self, x):
        return x


def specs(*names: str, datatype: str = "FP32") -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, datatype, (-1,)) for name in names)


def config(inputs=("INPUT__0", "INPUT__1"), outputs=("OUTPUT__0", "OUTPUT__1"), **fields) -> ModelConfig:
    return ModelConfig(
        "m", backend="pytorch", max_batch_size=8, inputs=specs(*inputs), outputs=specs(*outputs), **fields
    )


def run(settings: ModelConfig, folder: Path, *arrays: np.ndarray, outputs=()) -> dict[str, Tensor]:
    backend = open_backend(settings, folder)
    instance = (backend.complete(settings), backend.instance(Placement("m_0")))[1]
    named = zip(settings.inputs, arrays, strict=True)
    try:
        return instance.execute(
            {spec.name: Tensor(spec.name, spec.datatype, array.shape, array) for spec, array in named}, outputs
        )
    finally:
        instance.close()
        backend.close()


def script(module, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module).save(str(folder / "model.pt"))
    return folder


LEFT, RIGHT = np.array([[3.0, 5.0]], np.float32), np.array([[1.0, 2.0]], np.float32)


def results(outputs: dict[str, Tensor]) -> list[list[float]]:
    return [tensor.as_numpy().tolist()[0] for tensor in outputs.values()]


@pytest.mark.parametrize(
    ("inputs", "arrays"),
    [
        (("INPUT__0", "INPUT__1"), (LEFT, RIGHT)),
        (("INPUT__1", "INPUT__0"), (RIGHT, LEFT)),
        (("right", "left"), (RIGHT, LEFT)),
        (("a", "b"), (LEFT, RIGHT)),
        (("ARGS[1]", "ARGS[0]"), (RIGHT, LEFT)),
    ],
)
def test_inputs_find_their_arguments_by_number_by_name_or_in_order(tmp_path, inputs, arrays):
    assert results(run(config(inputs), script(AddSub(), tmp_path), *arrays)) == [[4, 7], [2, 3]]


def test_outputs_find_their_results_by_number_or_in_order_and_only_those_asked_for_come(tmp_path):
    folder = script(AddSub(), tmp_path)
    assert results(run(config(outputs=("OUTPUT__1", "OUTPUT__0")), folder, LEFT, RIGHT)) == [[2, 3], [4, 7]]
    assert results(run(config(outputs=("s", "d")), folder, LEFT, RIGHT, outputs=["d"])) == [[2, 3]]


def test_an_exported_program_runs_at_every_batch_size(tmp_path):
    batch = torch.export.Dim("batch")
    example = (torch.zeros(2, 2), torch.zeros(2, 2))
    program = torch.export.export(AddSub(), example, dynamic_shapes=({0: batch}, {0: batch}))
    torch.export.save(program, tmp_path / "model.pt2")
    for names in (("left", "right"), ("INPUT__0", "INPUT__1")):
        outputs = run(config(names), tmp_path, np.repeat(LEFT, 5, 0), np.repeat(RIGHT, 5, 0))
        assert outputs["OUTPUT__0"].as_numpy().tolist() == [[4, 7]] * 5


@pytest.mark.slow
def test_an_aotinductor_package_runs(tmp_path):
    batch = torch.export.Dim("batch")
    example = (torch.zeros(2, 2), torch.zeros(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(AddSub(), example, dynamic_shapes=({0: batch}, {0: batch}))
        torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    settings = config(("ARGS[0]", "ARGS[1]"), ("RESULT[0]", "RESULT[1]"), platform="torch_aoti")
    outputs = run(settings, tmp_path, np.repeat(LEFT, 3, 0), np.repeat(RIGHT, 3, 0))
    assert outputs["RESULT[0]"].as_numpy().tolist() == [[4, 7]] * 3


@pytest.mark.parametrize("weights", ["none", "safetensors", "state dict"])
def test_a_module_file_runs_with_its_weights_and_names_its_outputs(tmp_path, weights):
    (tmp_path / "model.py").write_text(SOURCE)
    state = {"scale": torch.tensor(10.0)}
    if weights == "safetensors":
        from safetensors.torch import save_file

        save_file(state, tmp_path / "model.safetensors")
    elif weights == "state dict":
        torch.save(state, tmp_path / "model.pt")
    settings = config(("left", "right"), ("difference", "sum"), parameters={"MODULE_ARGUMENTS": '{"scale": 2.0}'})
    scale = 2 if weights == "none" else 10
    assert results(run(settings, tmp_path, LEFT, RIGHT)) == [[2 * scale, 3 * scale], [4 * scale, 7 * scale]]


def test_a_module_file_with_several_classes_wants_a_name(tmp_path):
    (tmp_path / "model.py").write_text(SOURCE + "\nclass Other(AddSub): pass\n")
    with pytest.raises(ServingError, match="'MODULE_CLASS' to name one of: AddSub, Other"):
        run(config(), tmp_path, LEFT, RIGHT)
    named = config(("left", "right"), ("sum",), parameters={"MODULE_CLASS": "Other"})
    assert results(run(named, tmp_path, LEFT, RIGHT)) == [[4, 7]]


@pytest.mark.parametrize(
    "datatype", ["FP16", "FP32", "FP64", "BF16", "BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64"]
)
def test_every_datatype_comes_through_unchanged_and_received_bytes_are_not_written_to(tmp_path, datatype):
    settings = replace(config(), inputs=specs("x", datatype=datatype), outputs=specs("y", datatype=datatype))
    dtype = NUMPY_DTYPES[datatype]
    array = np.frombuffer(np.arange(4).astype(dtype).tobytes(), dtype).reshape(2, 2)
    out = run(settings, script(Cast(), tmp_path), array)["y"]
    assert (out.datatype, out.shape, out.as_numpy().dtype) == (datatype, (2, 2), dtype)
    assert np.array_equal(out.as_numpy(), array)


class Affine(torch.nn.Module):
    def forward(self, x, scale: torch.Tensor | None = None, shift: torch.Tensor | None = None):
        if scale is not None:
            x = x * scale
        return x if shift is None else x + shift


def test_an_optional_input_may_be_left_out_anywhere(tmp_path):
    names = ("x", "scale", "shift")
    settings = replace(
        config(outputs=("y",)), inputs=tuple(replace(spec, optional=spec.name != "x") for spec in specs(*names))
    )
    backend = open_backend(settings, script(Affine(), tmp_path))
    backend.complete(settings)
    instance = backend.instance(Placement("m_0"))

    def ask(**arrays: np.ndarray) -> list[float]:
        tensors = {name: Tensor.from_numpy(name, array) for name, array in arrays.items()}
        return instance.execute(tensors, [])["y"].as_numpy().tolist()[0]

    assert ask(x=LEFT) == [3, 5]
    assert ask(x=LEFT, shift=RIGHT) == [4, 7]
    assert ask(x=LEFT, scale=RIGHT, shift=RIGHT) == [4, 12]


def test_a_failing_run_gives_its_reason_in_one_line(tmp_path):
    folder = script(AddSub(), tmp_path)
    with pytest.raises(ServingError, match=r"PyTorch execute failure: .*size of tensor") as caught:
        run(config(), folder, LEFT, np.zeros((1, 3), np.float32))
    assert caught.value.code is Code.INTERNAL
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (config(outputs=("OUTPUT__2",)), "gave 2 results, none for output 'OUTPUT__2'"),
        (replace(config(), outputs=specs("OUTPUT__0", datatype="INT32")), "expects datatype INT32 .* provides FP32"),
        (config(("INPUT__0", "OTHER__0")), "do not name the model's arguments 0 to 1 once each"),
        (config(("INPUT__0", "INPUT__2")), "do not name the model's arguments 0 to 1 once each"),
        (replace(config(), inputs=specs("s", datatype="BYTES")), "no string tensors"),
        (replace(config(), outputs=()), "list them in the configuration"),
        (config(parameters={"INTRA_OP_THREAD_COUNT": "0"}), "must be a positive integer"),
    ],
)
def test_a_config_that_does_not_fit_the_model_is_refused_in_words(tmp_path, settings, text):
    folder = script(AddSub(), tmp_path)
    with pytest.raises(ServingError, match=text):
        run(settings, folder, *[LEFT, RIGHT][: len(settings.inputs)])


def test_an_absent_or_broken_file_is_told_by_name(tmp_path):
    with pytest.raises(ServingError, match=r"unable to find model.pt or model.pt2 or model.py"):
        run(config(), tmp_path, LEFT, RIGHT)
    (tmp_path / "model.pt").write_bytes(b"no model")
    with pytest.raises(ServingError, match=r"cannot load 'model.pt'"):
        run(config(), tmp_path, LEFT, RIGHT)


async def test_a_served_model_answers(tmp_path):
    (tmp_path / "1").mkdir()
    settings = config(instance_groups=(InstanceGroup(kind="KIND_CPU", count=2),))
    model = await load_tensor_model(settings, "1", script(AddSub(), tmp_path / "1"), alarm=Alarm())
    request = InferenceRequest("m", "", [Tensor.from_numpy("INPUT__0", LEFT), Tensor.from_numpy("INPUT__1", RIGHT)])
    model.infer(request)
    (response,) = await request.stream.take()
    assert [tensor.as_numpy().tolist() for tensor in response.outputs] == [[[4, 7]], [[2, 3]]]
    await model.close()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("INFERENCE_MODE", "maybe", "'INFERENCE_MODE' must be true or false, got 'maybe'"),
        ("DISABLE_OPTIMIZED_EXECUTION", "1", "must be true or false, got '1'"),
        ("NUM_INTEROP_THREADS", "0", "must be a positive integer, got '0'"),
    ],
)
def test_a_parameter_that_means_nothing_is_refused(tmp_path, name, value, text):
    with pytest.raises(ServingError, match=text):
        run(config(parameters={name: value}), script(AddSub(), tmp_path), LEFT, RIGHT)


def test_parameters_of_triton_are_taken(tmp_path, caplog):
    caplog.set_level("INFO")
    given = {
        "DISABLE_OPTIMIZED_EXECUTION": "true",
        "INFERENCE_MODE": "false",
        "INTER_OP_THREAD_COUNT": str(torch.get_num_interop_threads()),
        "ENABLE_WEIGHT_SHARING": "true",
    }
    assert results(run(config(parameters=given), script(AddSub(), tmp_path), LEFT, RIGHT)) == [[4, 7], [2, 3]]
    assert "ENABLE_WEIGHT_SHARING has no effect: instances on one device always share" in caplog.text
