"""Fills in what a configuration leaves out, before its backend adds what the model file knows.

Defaults and the forms that names take are Triton's, so that a config printed by either server reads the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backends.api.errors import Code, ServingError
from backends.api.model_config import InstanceGroup, ModelConfig


@dataclass(frozen=True, slots=True)
class Framework:
    """A kind of model file: who runs it, its older platform name ("" if it never had one), its default name."""

    backend: str
    platform: str
    filename: str


FRAMEWORKS = (
    Framework("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    Framework("pytorch", "pytorch_libtorch", "model.pt"),
    Framework("pytorch", "torch_aoti", "model.pt2"),
    Framework("tensorrt", "tensorrt_plan", "model.plan"),
    Framework("tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
    Framework("tensorflow", "tensorflow_graphdef", "model.graphdef"),
    Framework("openvino", "", "model.xml"),
    Framework("python", "", "model.py"),
    Framework("pytorch", "", "model.py"),  # last: without a backend in the config it is a custom model
)
ENSEMBLE = "ensemble"
LLM, POOLING = "llm", "pooling"
OWN_ENGINES = (LLM, POOLING)
"""Backends that run a model as an engine of ours, not as instances."""
_TWO_CPU_INSTANCES = frozenset({"onnxruntime", "tensorflow"})


def complete(config: ModelConfig, name: str, versions: Sequence[Path], num_gpus: int = 0) -> ModelConfig:
    """`config` of the model folder `name`, with its version folders and the server's GPUs known.

    Fills name, backend, platform, default file name and instance groups. Raises
    ServingError(INVALID) for a name that is not the folder's and for a backend that cannot be told.
    """
    if config.name and config.name != name:
        raise ServingError(
            Code.INVALID,
            f"unexpected directory name '{name}' for model '{config.name}', directory name must equal model name",
            param="name",
        )
    config = _with_framework(replace(config, name=name), versions)
    return replace(config, instance_groups=_groups(config, num_gpus))


def _with_framework(config: ModelConfig, versions: Sequence[Path]) -> ModelConfig:
    if config.platform == ENSEMBLE or (config.ensemble and not config.platform and not config.backend):
        return replace(config, platform=ENSEMBLE)
    if not config.backend and not config.platform:
        found = _from_files(config, versions)
        if found is None:
            raise _unknown_backend(config.name, versions)
        config = replace(config, backend=found.backend, platform=found.platform)
    candidates = [
        framework
        for framework in FRAMEWORKS
        if config.backend in ("", framework.backend) and config.platform in ("", framework.platform)
    ]
    if not candidates:
        return _without_framework(config)
    # what lies beside a Python file are its weights
    python_first = sorted(candidates, key=lambda framework: framework.filename != "model.py")
    chosen = _present(python_first, config, versions) or candidates[0]
    return replace(
        config,
        backend=chosen.backend,
        platform=chosen.platform,
        default_model_filename=config.default_model_filename or chosen.filename,
    )


def _without_framework(config: ModelConfig) -> ModelConfig:
    if config.platform and config.backend and any(config.backend == framework.backend for framework in FRAMEWORKS):
        raise ServingError(
            Code.INVALID,
            f"platform '{config.platform}' does not belong to backend '{config.backend}' for {config.name}",
            param="platform",
        )
    if config.platform and not config.backend:
        raise ServingError(
            Code.INVALID, f"unexpected platform type '{config.platform}' for {config.name}", param="platform"
        )
    return config


def _from_files(config: ModelConfig, versions: Sequence[Path]) -> Framework | None:
    found = _present(FRAMEWORKS, config, versions)
    if found is not None:
        return found
    if any((folder / "modules.json").is_file() for folder in versions):
        return Framework(POOLING, "", "")
    return Framework(LLM, "", "") if any(_holds_language_model(folder) for folder in versions) else None


def _present(frameworks: Sequence[Framework], config: ModelConfig, versions: Sequence[Path]) -> Framework | None:
    """The framework whose default file is there, or whose files end like the one the config names."""
    if config.default_model_filename:
        suffix = Path(config.default_model_filename).suffix
        return next((item for item in frameworks if Path(item.filename).suffix == suffix), None)
    return next((item for item in frameworks if any((folder / item.filename).exists() for folder in versions)), None)


def _holds_language_model(folder: Path) -> bool:
    has_safetensors = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    return has_safetensors or any(folder.glob("*.gguf"))


def _unknown_backend(name: str, versions: Sequence[Path]) -> ServingError:
    text = (
        f"Invalid model name: Could not determine backend for model '{name}' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )
    entries = (entry for folder in versions for entry in folder.iterdir())
    broken = next((entry for entry in entries if entry.is_symlink() and not entry.exists()), None)
    if broken is not None:
        text += f" '{broken.parent.name}/{broken.name}' links to what is not there."
    return ServingError(Code.INVALID, text, param="backend")


def _groups(config: ModelConfig, num_gpus: int) -> tuple[InstanceGroup, ...]:
    if config.platform == ENSEMBLE:
        return config.instance_groups
    given = config.instance_groups or (InstanceGroup(count=0),)
    return tuple(_group(group, index, config, num_gpus) for index, group in enumerate(given))


def _group(group: InstanceGroup, index: int, config: ModelConfig, num_gpus: int) -> InstanceGroup:
    kind = group.kind
    if kind == "KIND_AUTO":
        kind = _kind_for(config.backend, group, num_gpus)
    default_count = 2 if kind == "KIND_CPU" and config.backend in _TWO_CPU_INSTANCES else 1
    return replace(
        group,
        name=group.name or f"{config.name}_{index}",
        kind=kind,
        count=group.count or default_count,
        gpus=tuple(range(num_gpus)) if kind == "KIND_GPU" and not group.gpus else group.gpus,
    )


def _kind_for(backend: str, group: InstanceGroup, num_gpus: int) -> str:
    """KIND_AUTO stays where there are GPUs and only the backend knows whether it can use them."""
    if backend in OWN_ENGINES:
        return "KIND_MODEL"  # the engine places itself
    if group.gpus:
        return "KIND_GPU"
    return "KIND_AUTO" if num_gpus else "KIND_CPU"
