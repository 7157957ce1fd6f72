"""The weights of a folder in Hugging Face's layout: model.safetensors, or shards with their index."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from backends.api.errors import Code, ServingError
from backends.lm.config_hf import read_json
from backends.lm.weights import Weight, raw_weight, weight_error

_INDEX = "model.safetensors.index.json"


class SafetensorsFile:
    """A `WeightFile` over the folder at `path`; tensors are mapped from their files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, Any] = {}
        if (path / _INDEX).exists():
            self._shard_of = self._read_index()
        else:
            self._shard_of = dict.fromkeys(self._open("model.safetensors").keys(), "model.safetensors")

    def names(self) -> Collection[str]:
        return self._shard_of.keys()

    def weight(self, name: str) -> Weight:
        shard = self._shard_of.get(name)
        if shard is None:
            raise weight_error(self.path, name, "to be there", "nothing")
        try:
            tensor = self._open(shard).get_tensor(name)
        except SafetensorError as cause:
            raise weight_error(self.path / shard, name, "to be there", str(cause)) from None
        # as bytes, since the same file may hold formats that torch has and we do not read
        data = tensor.contiguous().flatten().view(torch.uint8).numpy()
        return raw_weight(self.path / shard, name, _format_name(tensor.dtype), tuple(tensor.shape), data)

    def _read_index(self) -> dict[str, str]:
        shard_of = read_json(self.path / _INDEX).get("weight_map")
        if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
            raise ServingError(Code.INVALID, f"{self.path / _INDEX}: field 'weight_map': expected names of files")
        for shard in set(shard_of.values()):
            self._open(shard)
        return shard_of

    def _open(self, shard: str) -> Any:
        if shard not in self._files:
            self._files[shard] = _open_shard(self.path, shard)
        return self._files[shard]


def _open_shard(folder: Path, shard: str) -> Any:
    path = folder / shard
    if Path(shard).name != shard:
        raise ServingError(Code.INVALID, f"{folder / _INDEX}: expected files beside it, got '{shard}'")
    if not path.is_file():
        others = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        hint = f"; {others[0].name} is a pickle, which is not read: convert it to safetensors" if others else ""
        raise ServingError(Code.NOT_FOUND, f"{path}: no such file{hint}")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as cause:
        raise ServingError(Code.INVALID, f"{path}: the file is cut off or damaged: {cause}") from None


def _format_name(dtype: torch.dtype) -> str:
    known = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    return known.get(dtype, str(dtype).removeprefix("torch."))
