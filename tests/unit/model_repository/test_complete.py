"""What a configuration leaves out is filled in as Triton does it."""

from pathlib import Path

import pytest

from backends.api.errors import ServingError
from backends.api.model_config import Ensemble, InstanceGroup, ModelConfig
from model_repository.complete import complete

FILES = {
    "model.onnx": ("onnxruntime", "onnxruntime_onnx"),
    "model.pt": ("pytorch", "pytorch_libtorch"),
    "model.pt2": ("pytorch", "torch_aoti"),
    "model.plan": ("tensorrt", "tensorrt_plan"),
    "model.graphdef": ("tensorflow", "tensorflow_graphdef"),
    "model.savedmodel": ("tensorflow", "tensorflow_savedmodel"),
    "model.xml": ("openvino", ""),
    "model.py": ("python", ""),
}


@pytest.mark.parametrize(("file", "expected"), FILES.items())
def test_the_default_file_tells_the_backend(tmp_path: Path, file: str, expected: tuple[str, str]) -> None:
    (tmp_path / file).touch()
    config = complete(ModelConfig(""), "m", [tmp_path])
    assert (config.backend, config.platform) == expected
    assert config.default_model_filename == file
    assert config.name == "m"


@pytest.mark.parametrize(("file", "expected"), FILES.items())
def test_backend_and_platform_tell_each_other(tmp_path: Path, file: str, expected: tuple[str, str]) -> None:
    backend, platform = expected
    if platform:
        config = complete(ModelConfig("m", platform=platform), "m", [tmp_path])
        assert (config.backend, config.default_model_filename) == (backend, file)
    (tmp_path / file).touch()
    assert complete(ModelConfig("m", backend=backend), "m", [tmp_path]).default_model_filename == file


def test_a_python_file_is_a_custom_model_or_a_module_with_its_weights_beside_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    assert complete(ModelConfig("m"), "m", [tmp_path]).backend == "python"
    (tmp_path / "model.pt").touch()
    config = complete(ModelConfig("m", backend="pytorch"), "m", [tmp_path])
    assert (config.platform, config.default_model_filename) == ("", "model.py")
    config = complete(ModelConfig("m", platform="pytorch_libtorch"), "m", [tmp_path])
    assert config.default_model_filename == "model.pt"


def test_a_named_file_is_kept_and_tells_the_platform(tmp_path: Path) -> None:
    config = complete(ModelConfig("m", backend="pytorch", default_model_filename="net.pt2"), "m", [tmp_path])
    assert (config.platform, config.default_model_filename) == ("torch_aoti", "net.pt2")


@pytest.mark.parametrize("files", [("config.json", "model.safetensors"), ("weights.gguf",)])
def test_a_folder_of_weights_is_a_language_model_that_places_itself(tmp_path: Path, files: tuple[str, ...]) -> None:
    for file in files:
        (tmp_path / file).touch()
    config = complete(ModelConfig(""), "m", [tmp_path])
    assert config.backend == "llm"
    assert config.instance_groups == (InstanceGroup("m_0", "KIND_MODEL", 1),)


def test_a_folder_of_sentence_transformers_is_a_pooling_model_that_places_itself(tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors", "modules.json"):
        (tmp_path / file).touch()
    config = complete(ModelConfig(""), "m", [tmp_path])
    assert config.backend == "pooling"
    assert config.instance_groups == (InstanceGroup("m_0", "KIND_MODEL", 1),)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (ModelConfig(""), "Could not determine backend for model 'm' with no backend in model configuration"),
        (ModelConfig("other"), "unexpected directory name 'm' for model 'other', directory name must equal model name"),
        (ModelConfig("m", platform="magic"), "unexpected platform type 'magic' for m"),
        (
            ModelConfig("m", backend="pytorch", platform="tensorrt_plan"),
            "'tensorrt_plan' does not belong to backend 'pytorch'",
        ),
    ],
)
def test_what_cannot_be_told_is_an_error(tmp_path: Path, config: ModelConfig, text: str) -> None:
    with pytest.raises(ServingError, match=text):
        complete(config, "m", [tmp_path])


def test_a_backend_of_ones_own_is_left_alone(tmp_path: Path) -> None:
    config = complete(ModelConfig("m", backend="mine"), "m", [tmp_path])
    assert (config.backend, config.platform, config.default_model_filename) == ("mine", "", "")


@pytest.mark.parametrize(
    ("backend", "given", "num_gpus", "expected"),
    [
        ("mine", (), 0, [("m_0", "KIND_CPU", 1, ())]),
        ("onnxruntime", (), 0, [("m_0", "KIND_CPU", 2, ())]),
        ("onnxruntime", (InstanceGroup("g", "KIND_CPU", 3),), 0, [("g", "KIND_CPU", 3, ())]),
        ("onnxruntime", (), 2, [("m_0", "KIND_AUTO", 1, ())]),
        ("onnxruntime", (InstanceGroup(gpus=(1,), count=0),), 2, [("m_0", "KIND_GPU", 1, (1,))]),
        (
            "mine",
            (InstanceGroup(kind="KIND_GPU", count=0), InstanceGroup(count=4)),
            2,
            [("m_0", "KIND_GPU", 1, (0, 1)), ("m_1", "KIND_AUTO", 4, ())],
        ),
    ],
)
def test_instance_groups_get_names_kinds_and_counts(
    tmp_path: Path, backend: str, given: tuple[InstanceGroup, ...], num_gpus: int, expected: list[tuple[object, ...]]
) -> None:
    config = complete(ModelConfig("m", backend=backend, instance_groups=given), "m", [tmp_path], num_gpus)
    assert [(group.name, group.kind, group.count, group.gpus) for group in config.instance_groups] == expected


def test_an_ensemble_has_its_platform_and_no_instances(tmp_path: Path) -> None:
    config = complete(ModelConfig("m", ensemble=Ensemble(())), "m", [tmp_path])
    assert (config.platform, config.backend, config.instance_groups) == ("ensemble", "", ())


def test_a_completed_config_is_complete(tmp_path: Path) -> None:
    once = complete(ModelConfig("", backend="onnxruntime"), "m", [tmp_path])
    assert complete(once, "m", [tmp_path]) == once
