"""`auto_complete_config`'s argument, and the helpers that read a model's configuration."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from backends.api.tensor import NUMPY_DTYPES
from backends.python.packing import join_strings, split_strings
from backends.python.pb_tensor import Tensor

_NAMES = {
    **{f"TYPE_{name}": dtype.type for name, dtype in NUMPY_DTYPES.items() if name != "BF16"},
    "TYPE_STRING": np.object_,
}
TRITON_STRING_TO_NUMPY = _NAMES
_FIELDS = {"name", "data_type", "dims", "optional", "reshape", "format", "label_filename", "allow_ragged_batch"}


class ModelConfig:
    """A configuration that a model may complete. What is already there must not be contradicted."""

    def __init__(self, config: str) -> None:
        self._config: dict[str, Any] = json.loads(config)

    def as_dict(self) -> dict[str, Any]:
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets it where it is left out; one that is smaller than the configured stands."""
        present = self._config.get("max_batch_size", 0)
        if present > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {present}, but in auto-complete-config function for model "
                f"'{self._config['name']}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Turns it on where no scheduler is configured."""
        other = [name for name in ("sequence_batching", "ensemble_scheduling") if name in self._config]
        if other:
            raise ValueError(
                f"Configuration specified scheduling_choice as '{other[0]}', but auto-complete-config function for "
                f"model '{self._config['name']}' tries to set scheduling_choice as 'dynamic_batching'"
            )
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, policy: Mapping[str, Any]) -> None:
        unknown = set(policy) - {"decoupled"}
        if unknown:
            raise ValueError(
                f"model transaction policy of model '{self._config['name']}': expected decoupled, got {sorted(unknown)}"
            )
        present = self._config.get("model_transaction_policy")
        if present is not None and dict(present) != dict(policy):
            raise ValueError(
                f"Trying to set decoupled property in auto-complete-config function for model "
                f"'{self._config['name']}', which is different from that specified in the model configuration"
            )
        self._config["model_transaction_policy"] = dict(policy)

    def add_input(self, tensor: Mapping[str, Any]) -> None:
        self._add("input", tensor)

    def add_output(self, tensor: Mapping[str, Any]) -> None:
        self._add("output", tensor)

    def _add(self, kind: str, tensor: Mapping[str, Any]) -> None:
        model = self._config["name"]
        for field in ("name", "data_type", "dims"):
            if field not in tensor:
                raise ValueError(
                    f"{kind} {tensor.get('name', '')!r} in auto-complete-config of '{model}' lacks {field}"
                )
        unknown = set(tensor) - _FIELDS
        if unknown:
            raise ValueError(f"{kind} '{tensor['name']}' of model '{model}': unknown fields {sorted(unknown)}")
        if tensor["data_type"] not in {*_NAMES, "TYPE_BF16"}:
            raise ValueError(f"{kind} '{tensor['name']}' of model '{model}': unknown data_type {tensor['data_type']!r}")
        known = self._config.setdefault(kind, [])
        for present in known:
            if present["name"] == tensor["name"]:
                self._merge(kind, present, tensor)
                return
        known.append({**tensor, "dims": list(tensor["dims"])})

    def _merge(self, kind: str, present: dict[str, Any], tensor: Mapping[str, Any]) -> None:
        for field in ("data_type", "dims"):
            want = list(tensor[field]) if field == "dims" else tensor[field]
            got = present.get(field)
            if got in (None, [], "TYPE_INVALID"):
                present[field] = want
            elif got != want:
                raise ValueError(
                    f"unable to load model '{self._config['name']}', configuration expects {field} {got} for {kind} "
                    f"'{tensor['name']}', but auto-complete-config function specified {want}"
                )


def get_input_tensor_by_name(inference_request: Any, name: str) -> Tensor | None:
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response: Any, name: str) -> Tensor | None:
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    return next((spec for spec in model_config.get("input", ()) if spec["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    return next((spec for spec in model_config.get("output", ()) if spec["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a configuration's data type; None for one numpy lacks (TYPE_BF16)."""
    return _NAMES.get(triton_type_string)


# the numbers of TRITONSERVER_DataType
_ORDER = (*("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"),)
_NUMBERED = {number: NUMPY_DTYPES[name].type for number, name in enumerate(_ORDER, 1)} | {13: np.object_}


def triton_to_numpy_type(data_type: "int | str") -> Any:
    """The numpy type of a datatype's number or KServe name."""
    if isinstance(data_type, str):
        return _NAMES.get("TYPE_STRING" if data_type == "BYTES" else f"TYPE_{data_type}")
    return _NUMBERED.get(int(data_type))


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The datatype's number."""
    wanted = np.dtype(data_type)
    if wanted.kind in "OSU":
        return 13
    return next((number for number, each in _NUMBERED.items() if np.dtype(each) == wanted), None)


def serialize_byte_tensor(input_tensor: np.ndarray) -> np.ndarray | None:
    """All elements, each behind its length, as one bytes object in an array; None for an empty array."""
    if input_tensor.size == 0:
        return None
    items = [item if isinstance(item, bytes) else str(item).encode() for item in input_tensor.ravel()]
    return np.asarray(join_strings(items), dtype=np.object_)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray:
    items = split_strings(encoded_tensor)
    array = np.empty(len(items), dtype=np.object_)
    array[:] = items
    return array


_model_dir = ""


def set_model_dir(folder: str) -> None:
    global _model_dir  # one model, one process
    _model_dir = folder


def get_model_dir() -> str:
    """The version folder of this model."""
    return str(Path(_model_dir))
