"""PyTorch models: TorchScript, torch.export, AOTInductor packages, and nn.Module files.

How the config's names reach the model: `INPUT__0` is argument 0 and `OUTPUT__0` result 0; `ARGS[0]`, `KWARGS[k]` and
`RESULT[0]` likewise; an input named as an argument of `forward` is that argument; a model that returns a dict names
its outputs itself. Otherwise the order in the config is the order of the arguments and results.
"""

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.api.base import Placement
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, TensorSpec
from backends.api.registry import register
from backends.api.tensor import Tensor
from backends.torch_program import Program, model_file, open_program

_INDEXED = re.compile(r".+__(\d+)|(?:ARGS|RESULT)\[(\d+)\]")
_LOG = logging.getLogger(__name__)
_NO_EFFECT = {
    "ENABLE_WEIGHT_SHARING": "instances on one device always share their weights",
    "ENABLE_JIT_EXECUTOR": "torch chooses its executor itself",
    "ENABLE_JIT_PROFILING": "torch chooses its executor itself",
    "DISABLE_CUDNN": "cuDNN is the process' own, not a model's",
    "TORCH_COMPILE_OPTIONAL_PARAMETERS": "models run as they were saved",
}
"""Parameters of Triton's backend -> why they change nothing."""
_KEYWORD = re.compile(r"KWARGS\[['\"]?(\w+)['\"]?\]")


def input_slots(specs: Sequence[TensorSpec], program: Program) -> dict[str, int | str]:
    """Input name -> place among the positional arguments, or name of a keyword argument.

    Raises ServingError(INVALID) for names of which only some follow a rule, or places given twice or left out.
    """
    slots: dict[str, int | str] = {}
    for order, spec in enumerate(specs):
        indexed, keyword = _INDEXED.fullmatch(spec.name), _KEYWORD.fullmatch(spec.name)
        if indexed:
            slots[spec.name] = int(indexed[1] or indexed[2])
        elif keyword:
            slots[spec.name] = keyword[1]
        elif spec.name in program.arguments:
            place = program.arguments.index(spec.name)
            slots[spec.name] = place if place < program.num_positional else spec.name
        else:
            slots[spec.name] = order
    places = sorted(slot for slot in slots.values() if isinstance(slot, int))
    required = [slots[spec.name] for spec in specs if not spec.optional]
    if len(set(slots.values())) < len(slots) or any(place not in places for place in range(len(places))):
        raise ServingError(
            Code.INVALID, f"the inputs {list(slots)} do not name the model's arguments 0 to {len(slots) - 1} once each"
        )
    if program.arguments and any(isinstance(slot, int) and slot >= len(program.arguments) for slot in required):
        raise ServingError(
            Code.INVALID,
            f"the configuration has {len(slots)} inputs, the model takes {len(program.arguments)}: "
            f"{', '.join(program.arguments)}",
        )
    return slots


class TorchInstance:
    """Runs batches on a program; programs keep no state between calls, so instances on one device share one."""

    def __init__(self, config: ModelConfig, program: Program) -> None:
        self._program: Program | None = program
        self._device = program.device
        self._slots = input_slots(config.inputs, program)
        self._outputs = config.outputs
        self._guard = torch.inference_mode if _is_on(config, "INFERENCE_MODE", default=True) else torch.no_grad
        is_plain = _is_on(config, "DISABLE_OPTIMIZED_EXECUTION")
        self._execution: Callable[[], AbstractContextManager[None]] = _unoptimized if is_plain else nullcontext
        self._cleans = _is_on(config, "ENABLE_CACHE_CLEANING") and program.device.type == "cuda"
        for name in _NO_EFFECT.keys() & config.parameters.keys():
            _LOG.info("model '%s': parameter %s has no effect: %s", config.name, name, _NO_EFFECT[name])

    def execute(self, inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        assert self._program is not None
        positional, named = self._arguments(self._program, inputs)
        with self._guard(), self._execution():
            try:
                result = self._program.call(*positional, **named)
            except Exception as error:  # torch has no base of its own
                raise ServingError(Code.INTERNAL, f"PyTorch execute failure: {_reason(error)}") from error
            return self._collect(result, outputs)

    def close(self) -> None:
        self._program = None
        if self._cleans:
            torch.cuda.empty_cache()

    def _arguments(self, program: Program, inputs: dict[str, Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """What follows an optional input that was left out goes by name."""
        values = {self._slots[name]: _to_torch(tensor, self._device) for name, tensor in inputs.items()}
        named = {slot: value for slot, value in values.items() if isinstance(slot, str)}
        positional: list[Any] = []
        for place in sorted(slot for slot in values if isinstance(slot, int)):
            if place == len(positional):
                positional.append(values[place])
            elif place < len(program.arguments):
                named[program.arguments[place]] = values[place]
            else:
                raise ServingError(Code.INVALID, f"argument {len(positional)} of the model is missing")
        return positional, named

    def _collect(self, result: Any, wanted: Sequence[str]) -> dict[str, Tensor]:
        collected = {}
        for order, spec in enumerate(self._outputs):
            if wanted and spec.name not in wanted:
                continue
            collected[spec.name] = _from_torch(spec, _pick(result, spec.name, order))
        if self._cleans:
            torch.cuda.empty_cache()
        return collected


class TorchBackend:
    """One model, opened once for each device it runs on."""

    def __init__(self, config: ModelConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._lock = threading.Lock()
        self._programs: dict[str, Program] = {}
        model_file(config, folder)
        _set_threads(config)

    @property
    def num_gpus(self) -> int:
        return int(torch.cuda.device_count())

    def complete(self, config: ModelConfig) -> ModelConfig:
        """A PyTorch file does not tell the types and shapes of its inputs, so the config has to list them."""
        if not config.inputs or not config.outputs:
            raise ServingError(
                Code.INVALID,
                f"model '{config.name}': backend 'pytorch' cannot read inputs and outputs from the model file, "
                "list them in the configuration",
            )
        for spec in (*config.inputs, *config.outputs):
            if spec.datatype == "BYTES":
                raise ServingError(
                    Code.INVALID, f"model '{config.name}': '{spec.name}' is BYTES, and PyTorch has no string tensors"
                )
        self._config = config
        return config

    def instance(self, placement: Placement) -> TorchInstance:
        device = torch.device("cuda", placement.device) if placement.kind == "GPU" else torch.device("cpu")
        with self._lock:
            program = self._programs.get(str(device))
            if program is None:
                program = self._programs[str(device)] = open_program(self._config, self._folder, device)
        try:
            return TorchInstance(self._config, program)
        except ServingError as error:
            raise ServingError(error.code, f"model '{self._config.name}': {error.message}") from None

    def close(self) -> None:
        with self._lock:
            self._programs.clear()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


@register("pytorch")
def pytorch(config: ModelConfig, folder: Path, settings: Mapping[str, str]) -> TorchBackend:
    return TorchBackend(config, folder)


def _unoptimized() -> AbstractContextManager[None]:
    context: AbstractContextManager[None] = torch.jit.optimized_execution(False)
    return context


def _set_threads(config: ModelConfig) -> None:
    """Thread counts are torch's own, one for the process: the model loaded last has the word, with those between
    operations the first."""
    for name in ("INTRA_OP_THREAD_COUNT", "NUM_THREADS"):
        if (count := _thread_count(config, name)) is not None:
            torch.set_num_threads(count)
    for name in ("INTER_OP_THREAD_COUNT", "NUM_INTEROP_THREADS"):
        count = _thread_count(config, name)
        if count is not None and count != torch.get_num_interop_threads():
            try:
                torch.set_num_interop_threads(count)
            except RuntimeError:  # only once, and before anything has run
                _LOG.warning("model '%s': %s=%d comes too late, torch has begun to run", config.name, name, count)


def _thread_count(config: ModelConfig, name: str) -> int | None:
    text = config.parameters.get(name)
    if text is not None and (not text.isdigit() or int(text) < 1):
        raise ServingError(
            Code.INVALID, f"model '{config.name}': parameter '{name}' must be a positive integer, got '{text}'"
        )
    return None if text is None else int(text)


def _is_on(config: ModelConfig, name: str, *, default: bool = False) -> bool:
    text = config.parameters.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ServingError(
            Code.INVALID, f"model '{config.name}': parameter '{name}' must be true or false, got '{text}'"
        )
    return text == "true"


def _to_torch(tensor: Tensor, device: Any) -> Any:
    array = np.ascontiguousarray(tensor.data)
    if not array.flags.writeable:
        array = array.copy()  # torch may write to what it is given; received bytes are not ours to change
    value = torch.from_numpy(array)
    if tensor.datatype == "BF16":
        value = value.view(torch.bfloat16)
    return value.to(device)


def _from_torch(spec: TensorSpec, value: Any) -> Tensor:
    if not isinstance(value, torch.Tensor):
        raise ServingError(
            Code.INTERNAL, f"output '{spec.name}': expected a tensor of the model, got {type(value).__name__}"
        )
    value = value.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:
        array = value.view(torch.uint16).numpy()
        tensor = Tensor(spec.name, "BF16", tuple(array.shape), array)
    else:
        tensor = Tensor.from_numpy(spec.name, value.numpy())
    if tensor.datatype != spec.datatype:
        raise ServingError(
            Code.INTERNAL,
            f"configuration expects datatype {spec.datatype} for output '{spec.name}', "
            f"model provides {tensor.datatype}",
        )
    return tensor


def _pick(result: Any, name: str, order: int) -> Any:
    if isinstance(result, Mapping):
        if name in result:
            return result[name]
        result = tuple(result.values())
    elif not isinstance(result, (tuple, list)):
        result = (result,)
    match = _INDEXED.fullmatch(name)
    place = order if match is None else int(match[1] or match[2])
    if place >= len(result):
        raise ServingError(Code.INTERNAL, f"the model gave {len(result)} results, none for output '{name}'")
    return result[place]


def _reason(error: Exception) -> str:
    """One line: TorchScript puts its reason last, after a trace, everybody else first."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if "TorchScript interpreter" in lines[0] else lines[0]
