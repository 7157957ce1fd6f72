"""`tidegate init`: a config.pbtxt from a model file."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, TensorSpec
from backends.api.registry import open_backend
from model_repository import layout
from model_repository.complete import FRAMEWORKS, Framework

_DESCRIBED = frozenset({"onnxruntime"})
"""Backends whose files say all that a configuration needs."""


def init_config(model_file: Path) -> str:
    """Write the config.pbtxt of MODEL/VERSION/FILE, with what the file says of itself; returns a line for the user.

    Raises ServingError: NOT_FOUND without the file, ALREADY_EXISTS beside a config, INVALID for a file of no known
    kind or in no version folder, and what the backend raises.
    """
    if not model_file.exists():
        raise ServingError(Code.NOT_FOUND, f"'{model_file}': no such file")
    framework = _framework_of(model_file)
    version = model_file.resolve().parent
    model = version.parent
    if version.name not in {str(number) for number in layout.version_folders(model)}:
        expected = version / version.name / "1" / model_file.name
        raise ServingError(
            Code.INVALID, f"'{model_file}' is in no version folder, expected MODEL/VERSION/FILE such as '{expected}'"
        )
    target = model / layout.CONFIG_FILE
    if target.exists():
        raise ServingError(Code.ALREADY_EXISTS, f"'{target}' is there already: remove it to have it written anew")
    config = _completed(ModelConfig(model.name, backend=framework.backend), model_file, framework)
    target.write_text("\n".join(_lines(config)) + "\n")
    return f"wrote {target}"


def _framework_of(model_file: Path) -> Framework:
    """Raises ServingError(INVALID) for a file that does not say what its inputs and outputs are, or that nothing here opens."""
    for framework in FRAMEWORKS:
        if framework.backend in _DESCRIBED and Path(framework.filename).suffix == model_file.suffix:
            return framework
    known = ", ".join(Path(item.filename).suffix for item in FRAMEWORKS if item.backend in _DESCRIBED)
    text = f"'{model_file}': expected a file that names its inputs and outputs: {known}"
    raise ServingError(Code.INVALID, f"{text}. For any other, write the config.pbtxt by hand (docs/model_config.md)")


def _completed(config: ModelConfig, model_file: Path, framework: Framework) -> ModelConfig:
    config = replace(config, platform=framework.platform, default_model_filename=model_file.name)
    backend = open_backend(config, model_file.resolve().parent)
    try:
        config = backend.complete(config)
    finally:
        backend.close()
    return replace(config, default_model_filename="" if model_file.name == framework.filename else model_file.name)


def _lines(config: ModelConfig) -> Iterator[str]:
    yield f"name: {json.dumps(config.name)}"
    yield f"backend: {json.dumps(config.backend)}"
    if config.default_model_filename:
        yield f"default_model_filename: {json.dumps(config.default_model_filename)}"
    yield f"max_batch_size: {config.max_batch_size}"
    for field, specs in (("input", config.inputs), ("output", config.outputs)):
        if specs:
            yield f"{field} ["
            yield ",\n".join("\n".join(_tensor_lines(spec)) for spec in specs)
            yield "]"
    if config.dynamic_batching is not None:
        yield "dynamic_batching { }"


def _tensor_lines(spec: TensorSpec) -> Iterator[str]:
    datatype = "STRING" if spec.datatype == "BYTES" else spec.datatype
    yield "  {"
    yield f"    name: {json.dumps(spec.name)}"
    yield f"    data_type: TYPE_{datatype}"
    yield f"    dims: [ {', '.join(map(str, spec.dims))} ]"
    if spec.reshape is not None:
        yield f"    reshape {{ shape: [ {', '.join(map(str, spec.reshape))} ] }}"
    if spec.optional:
        yield "    optional: true"
    yield "  }"
