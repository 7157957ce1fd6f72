"""The contents of a JSON request's inputs: from `data`, from the binary data after the JSON, or from shared memory."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

import msgspec

from backends.api.errors import Code, ServingError
from backends.api.tensor import Tensor
from gateway import kserve_parameters
from gateway.kserve_numbers import flatten, numbers_from_list, parse_numbers, wrong_type
from gateway.kserve_tensors import check_num_elements, tensor_from_bytes
from gateway.shared_memory import Window

NO_DATA = msgspec.Raw()
"""The `data` of an input that has none: known by identity."""
OpenWindow = Callable[[str, int, int], Window]
"""(region, offset, byte size) -> that part of shared memory. Raises ServingError."""


class InputHeader(Protocol):
    """An input as it stands in the JSON document."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def datatype(self) -> str: ...
    @property
    def data(self) -> msgspec.Raw: ...
    @property
    def parameters(self) -> dict[str, Any]: ...


class Contents:
    """Where the inputs' contents come from, in order: `data`, the binary blob, or shared memory."""

    def __init__(
        self, blob: memoryview, lists: dict[int, Any], label: str, model: str, open_window: OpenWindow
    ) -> None:
        self._blob = blob
        self._lists = lists
        self._label = label
        self._model = model
        self._open_window = open_window
        self._position = 0

    def tensor(self, index: int, given: InputHeader) -> Tensor:
        if given.parameters or given.data is NO_DATA:
            buffer = self._buffer(given, has_data=given.data is not NO_DATA or index in self._lists)
            if buffer is not None:
                return tensor_from_bytes(
                    given.name, given.datatype, given.shape, buffer, label=self._label, model=self._model
                )
        if given.datatype in ("FP16", "BF16"):
            raise ServingError(
                Code.INVALID,
                f"receiving {given.datatype} data via JSON is not supported. "
                f"Please use the binary data format for input {given.name}",
            )
        return self._from_list(given, self._lists.get(index))

    def check_used_up(self) -> None:
        if self._position != len(self._blob):
            raise ServingError(Code.INVALID, f"unexpected additional input data for model '{self._model}'")

    def _buffer(self, given: InputHeader, *, has_data: bool) -> memoryview | None:
        """The bytes of an input that has no `data`; None for one that has."""
        size = given.parameters.get("binary_data_size")
        region = given.parameters.get("shared_memory_region")
        names = ("'data'", "'binary_data_size'", "'shared_memory_region'")
        sources = [
            name for name, is_set in zip(names, (has_data, size is not None, region is not None), strict=True) if is_set
        ]
        if len(sources) != 1:
            raise ServingError(
                Code.INVALID,
                "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
                f"'shared_memory_region' in 'parameters'. But {_fields_set(sources)}",
            )
        if region is not None:
            return self._open_window(*region_window(given.parameters)).read()
        return None if has_data else self._take(given.name, kserve_parameters.unsigned("binary_data_size", size))

    def _take(self, name: str, size: int) -> memoryview:
        available = len(self._blob) - self._position
        if size > available:
            raise ServingError(
                Code.INVALID,
                f"unexpected size for input '{name}', expecting {size - available} additional bytes "
                f"for model '{self._model}'",
            )
        self._position += size
        return self._blob[self._position - size : self._position]

    def _from_list(self, given: InputHeader, values: Any) -> Tensor:
        if given.datatype == "BYTES":
            return self._strings(given, values)
        if values is None:
            array = parse_numbers(bytes(given.data), given.datatype, given.name)
        elif isinstance(values, list):
            array = numbers_from_list(values, given.datatype, given.name)
        else:
            raise wrong_type("data", "non-array as array")
        try:
            return Tensor(given.name, given.datatype, tuple(given.shape), array.reshape(given.shape))
        except ValueError:
            raise ServingError(
                Code.INVALID,
                "Unable to parse 'data': Shape does not match true shape of 'data' field",
                param=given.name,
            ) from None

    def _strings(self, given: InputHeader, values: Any) -> Tensor:
        if values is None:
            values = msgspec.json.decode(given.data)
        if not isinstance(values, list):
            raise wrong_type("data", "non-array as array")
        flat = flatten(values)
        if not set(map(type, flat)) <= {str}:
            raise ServingError(
                Code.INVALID, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
            )
        where = f"inference input '{given.name}' for model '{self._model}'"
        check_num_elements(len(flat), prod(given.shape), where, self._label)
        return Tensor(given.name, "BYTES", tuple(given.shape), [text.encode() for text in flat])


def _fields_set(sources: list[str]) -> str:
    return "set " + " ".join(sources) if sources else "no field is set"


def region_window(parameters: dict[str, Any]) -> tuple[str, int, int]:
    """(region, offset, byte size) of an input's or output's shared memory parameters."""
    region = parameters["shared_memory_region"]
    if not isinstance(region, str):
        raise wrong_type("shared_memory_region", "non-string as string")
    offset = kserve_parameters.unsigned("shared_memory_offset", parameters.get("shared_memory_offset", 0))
    size = parameters.get("shared_memory_byte_size", 0)
    return region, offset, kserve_parameters.unsigned("shared_memory_byte_size", size)
