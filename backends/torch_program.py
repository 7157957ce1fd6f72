"""PyTorch models in the forms people keep them in, each as something to call with named arguments.

`model.pt` is TorchScript; `model.pt2` what `torch.export` or AOTInductor wrote; `model.py` a file with one
`torch.nn.Module` class, its weights beside it in `model.safetensors` (or `model.pt`, a state dict).
"""

import importlib.util
import inspect
import json
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Program:
    """`call` takes tensors on `device`. `arguments` are its arguments' names in order, () where nobody knows them;
    those from `num_positional` on are passed by name."""

    call: Callable[..., Any]
    device: Any
    arguments: tuple[str, ...] = ()
    num_positional: int = 1 << 30


def open_program(config: ModelConfig, folder: Path, device: Any) -> Program:
    """The model in `folder`, on `device`. Raises ServingError: NOT_FOUND without a file, INVALID for one that fails."""
    path = model_file(config, folder)
    try:
        if path.suffix == ".py":
            return _open_python(config, path, device)
        if path.suffix == ".pt2":
            return _open_aoti(path, device) if _is_aoti(path) else _open_export(path, device)
        return _open_script(path, device)
    except ServingError:
        raise
    except Exception as error:  # torch raises a dozen kinds here
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise ServingError(Code.INVALID, f"model '{config.name}': cannot load '{path.name}': {text[0]}") from error


def model_file(config: ModelConfig, folder: Path) -> Path:
    if config.default_model_filename:
        names = [config.default_model_filename]
    elif config.platform == "torch_aoti":
        names = ["model.pt2"]
    elif config.runtime == "model.py":
        names = ["model.py"]
    else:
        names = ["model.pt", "model.pt2", "model.py"]
    # a state dict beside a Python file is its weights and no model of its own
    if len(names) > 1 and (folder / "model.py").is_file():
        names = ["model.py"]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ServingError(
        Code.NOT_FOUND,
        f"model '{config.name}': unable to find {' or '.join(names)} in version folder '{folder.name}'",
    )


def _open_script(path: Path, device: Any) -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch would like us to export; the file is what it is
        module = torch.jit.load(str(path), map_location=device).eval()
    arguments = module.forward.schema.arguments[1:]
    return Program(module, device, tuple(argument.name for argument in arguments))


def _open_export(path: Path, device: Any) -> Program:
    program = torch.export.load(str(path))
    module = program.module().to(device)
    arguments = tuple(program.graph_signature.user_inputs)
    positional, _ = program.call_spec.in_spec.children()
    return Program(module, device, arguments, positional.num_leaves)


def _open_aoti(path: Path, device: Any) -> Program:
    index = -1 if device.type == "cpu" else device.index
    return Program(torch._inductor.aoti_load_package(str(path), device_index=index), device)


def _is_aoti(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any("/aotinductor/" in name for name in archive.namelist())


def _open_python(config: ModelConfig, path: Path, device: Any) -> Program:
    kind = _module_class(config, _import(config, path))
    arguments = json.loads(config.parameters.get("MODULE_ARGUMENTS", "{}"))
    module = kind(**arguments)
    weights = _weights(path.parent)
    if weights is not None:
        module.load_state_dict(weights)
    module = module.eval().to(device)
    names = tuple(inspect.signature(module.forward).parameters)
    options = config.parameters.get("TORCH_COMPILE_OPTIONAL_PARAMETERS")
    call = module if options is None else torch.compile(module, **json.loads(options))
    return Program(call, device, names)


def _import(config: ModelConfig, path: Path) -> ModuleType:
    name = f"_tidegate_model_{config.name}_{path.parent.name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ServingError(Code.INVALID, f"model '{config.name}': cannot import '{path.name}'")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles of the file look themselves up here
    spec.loader.exec_module(module)
    return module


def _module_class(config: ModelConfig, module: ModuleType) -> Any:
    classes = {
        name: item
        for name, item in vars(module).items()
        if inspect.isclass(item) and issubclass(item, torch.nn.Module) and item.__module__ == module.__name__
    }
    wanted = config.parameters.get("MODULE_CLASS")
    if wanted is None and len(classes) == 1:
        return next(iter(classes.values()))
    if wanted in classes:
        return classes[wanted]
    raise ServingError(
        Code.INVALID,
        f"model '{config.name}': expected one torch.nn.Module class in the file, or the parameter 'MODULE_CLASS' "
        f"to name one of: {', '.join(classes) or 'none'}",
    )


def _weights(folder: Path) -> Any:
    if (folder / "model.safetensors").is_file():
        from safetensors.torch import load_file

        return load_file(folder / "model.safetensors")
    if (folder / "model.pt").is_file():
        return torch.load(folder / "model.pt", map_location="cpu", weights_only=True)
    return None
