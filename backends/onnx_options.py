"""From a model's config to an ONNX Runtime session's options and providers.

Parameter names are those of Triton's onnxruntime backend; `session.*` go to the session as they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime

from backends.api.base import Placement
from backends.api.errors import Code, ServingError
from backends.api.model_config import Accelerator, ModelConfig

Provider = tuple[str, dict[str, str]]

# Triton's graph levels; 0 is its default
_LEVELS = {0: "ORT_ENABLE_ALL", -1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
_CUDA_OPTIONS = (
    "cudnn_conv_algo_search",
    "cudnn_conv_use_max_workspace",
    "gpu_mem_limit",
    "arena_extend_strategy",
    "do_copy_in_default_stream",
    "use_tf32",
)
_CONV_SEARCHES = {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"}
_ARENA_STRATEGIES = {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"}
_PRECISIONS = {"FP32": {}, "FP16": {"trt_fp16_enable": "1"}, "INT8": {"trt_int8_enable": "1"}}


def session_options(config: ModelConfig) -> Any:
    """An `onnxruntime.SessionOptions`. Raises ServingError(INVALID) for a value that means nothing."""
    options = onnxruntime.SessionOptions()
    # warnings about a graph are its author's business, and fill a server's log at every load
    options.log_severity_level = 3
    level = config.optimization.graph_level
    if level not in _LEVELS:
        raise ServingError(
            Code.INVALID, f"model '{config.name}': optimization.graph.level must be one of -1, 0, 1, 2, got {level}"
        )
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, _LEVELS[level])
    options.intra_op_num_threads = _integer(config, "intra_op_thread_count", 0)
    options.inter_op_num_threads = _integer(config, "inter_op_thread_count", 0)
    if _flag(config, "execution_mode", False):
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = _flag(config, "enable_mem_arena", True)
    options.enable_mem_pattern = _flag(config, "enable_mem_pattern", True)
    for name, value in config.parameters.items():
        if name.startswith("session."):
            options.add_session_config_entry(name, value)
    return options


def run_options(config: ModelConfig) -> Any:
    """An `onnxruntime.RunOptions`, None where the config asks for nothing."""
    shrinkage = config.parameters.get("memory.enable_memory_arena_shrinkage")
    if shrinkage is None:
        return None
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrinkage)
    return options


def check_accelerators(config: ModelConfig, num_gpus: int, available: Sequence[str]) -> None:
    """Refuse accelerators of GPUs where no instance can be on one: they would be ignored.

    Raises ServingError: INVALID for what no accelerator knows, UNAVAILABLE without a GPU.
    """
    accelerators = config.optimization.gpu_accelerators
    kinds = {group.kind for group in config.instance_groups} or {"KIND_AUTO"}
    if not accelerators or (num_gpus and kinds & {"KIND_AUTO", "KIND_GPU"}):
        return
    _gpu_providers(config, 0)
    why = "its instances are all on the CPU" if num_gpus else f"onnxruntime finds none here ({', '.join(available)})"
    raise ServingError(
        Code.UNAVAILABLE,
        f"model '{config.name}': gpu_execution_accelerator '{accelerators[0].name}' needs a GPU, and {why}",
    )


def providers(config: ModelConfig, placement: Placement, available: Sequence[str]) -> list[Provider]:
    """The execution providers for an instance, the preferred one first.

    Raises ServingError: INVALID for an accelerator that Triton does not know, UNAVAILABLE for one that
    this onnxruntime was built without.
    """
    chosen: list[Provider] = []
    if placement.kind == "GPU":
        chosen += _gpu_providers(config, placement.device)
    else:
        for accelerator in config.optimization.cpu_accelerators:
            if accelerator.name != "openvino":
                raise _unknown(config, "cpu", accelerator.name, ("openvino",))
            chosen.append(("OpenVINOExecutionProvider", dict(accelerator.parameters)))
    for name, _ in chosen:
        if name not in available:
            raise ServingError(
                Code.UNAVAILABLE,
                f"model '{config.name}': this onnxruntime has no {name}, it has {', '.join(available)}",
            )
    return [*chosen, ("CPUExecutionProvider", {})]


def _gpu_providers(config: ModelConfig, device: int) -> list[Provider]:
    chosen: list[Provider] = []
    for accelerator in config.optimization.gpu_accelerators:
        if accelerator.name == "tensorrt":
            chosen.append(("TensorrtExecutionProvider", _tensorrt_options(config, accelerator, device)))
        elif accelerator.name != "cuda":
            raise _unknown(config, "gpu", accelerator.name, ("tensorrt", "cuda"))
    return [*chosen, ("CUDAExecutionProvider", _cuda_options(config, device))]


def _cuda_options(config: ModelConfig, device: int) -> dict[str, str]:
    options = {"device_id": str(device)}
    accelerators = [item for item in config.optimization.gpu_accelerators if item.name == "cuda"]
    given: Mapping[str, str] = {**config.parameters, **(accelerators[0].parameters if accelerators else {})}
    options.update({name: given[name] for name in _CUDA_OPTIONS if name in given})
    _translate(options, "cudnn_conv_algo_search", _CONV_SEARCHES)
    _translate(options, "arena_extend_strategy", _ARENA_STRATEGIES)
    return options


def _tensorrt_options(config: ModelConfig, accelerator: Accelerator, device: int) -> dict[str, str]:
    options = {"device_id": str(device)}
    for name, value in accelerator.parameters.items():
        if name == "precision_mode":
            if value not in _PRECISIONS:
                raise ServingError(
                    Code.INVALID,
                    f"model '{config.name}': precision_mode must be one of {', '.join(_PRECISIONS)}, got '{value}'",
                )
            options.update(_PRECISIONS[value])
        elif name == "max_workspace_size_bytes":
            options["trt_max_workspace_size"] = value
        elif name in ("int8_calibration_table_name", "int8_use_native_calibration_table"):
            options[f"trt_{name}"] = value
        elif name.startswith("trt_"):
            options[name] = value
        else:
            raise ServingError(Code.INVALID, f"model '{config.name}': accelerator 'tensorrt' has no parameter '{name}'")
    return options


def _translate(options: dict[str, str], name: str, words: Mapping[str, str]) -> None:
    """Triton gives numbers where ONNX Runtime's Python wants words."""
    if name in options:
        options[name] = words.get(options[name], options[name])


def _unknown(config: ModelConfig, kind: str, name: str, known: Sequence[str]) -> ServingError:
    return ServingError(
        Code.INVALID,
        f"model '{config.name}': unknown {kind}_execution_accelerator '{name}', expected one of: {', '.join(known)}",
    )


def _integer(config: ModelConfig, name: str, default: int) -> int:
    text = config.parameters.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise ServingError(
            Code.INVALID,
            f"model '{config.name}': parameter '{name}' must be a non-negative integer, got '{text}'",
            param=name,
        )
    return value


def _flag(config: ModelConfig, name: str, default: bool) -> bool:
    text = config.parameters.get(name)
    if text is None:
        return default
    if text.lower() not in ("0", "1", "false", "true"):
        raise ServingError(
            Code.INVALID, f"model '{config.name}': parameter '{name}' must be 0 or 1, got '{text}'", param=name
        )
    return text.lower() in ("1", "true")
