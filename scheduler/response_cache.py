"""Answers kept for equal questions: `response_cache` of a model's config.

A key is made of the model's name and version, its inputs (name, datatype, shape and bytes) and the outputs asked
for; request id and parameters are not part of it. A model's answer must therefore depend on its inputs alone.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import numpy as np

from backends.api.request import InferenceRequest
from backends.api.tensor import Tensor

_ENTRY_OVERHEAD = 512  # bytes of Python objects around an entry, about


class ResponseCache(Protocol):
    """Where answers are kept. Any thread may call; a failing store is a miss, never a failed request.

    `may_block` says that a call may wait for a network, so that no event loop should make it.
    """

    @property
    def may_block(self) -> bool: ...

    def get(self, key: bytes) -> list[Tensor] | None:
        """The outputs kept under `key`, which the caller must not change."""
        ...

    def put(self, key: bytes, outputs: Sequence[Tensor]) -> None: ...


@dataclass(slots=True)
class CacheCounts:
    """What the nv_cache_* metrics show. Durations are in seconds."""

    num_entries: int = 0
    num_bytes: int = 0
    max_bytes: int = 0
    num_lookups: int = 0
    num_hits: int = 0
    num_misses: int = 0
    num_evictions: int = 0
    lookup_duration: float = 0.0
    insertion_duration: float = 0.0


class LocalCache:
    """A cache in this process of at most `max_bytes`; the least recently used answer goes first."""

    may_block = False

    def __init__(self, max_bytes: int) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, tuple[list[Tensor], int]] = OrderedDict()
        self._counts = CacheCounts(max_bytes=max_bytes)

    def get(self, key: bytes) -> list[Tensor] | None:
        start = time.monotonic()
        with self._lock:
            counts = self._counts
            counts.num_lookups += 1
            entry = self._entries.get(key)
            if entry is None:
                counts.num_misses += 1
            else:
                counts.num_hits += 1
                self._entries.move_to_end(key)
            counts.lookup_duration += time.monotonic() - start
        return None if entry is None else list(entry[0])

    def put(self, key: bytes, outputs: Sequence[Tensor]) -> None:
        """Keep copies of `outputs`; what is larger than the whole cache is not kept."""
        start = time.monotonic()
        size = _ENTRY_OVERHEAD + sum(_num_bytes(tensor) for tensor in outputs)
        if size > self._counts.max_bytes:
            return
        kept = [_copy(tensor) for tensor in outputs]
        with self._lock:
            counts = self._counts
            old = self._entries.pop(key, None)
            if old is not None:
                counts.num_bytes -= old[1]
            while counts.num_bytes + size > counts.max_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                counts.num_bytes -= freed
                counts.num_evictions += 1
            self._entries[key] = (kept, size)
            counts.num_bytes += size
            counts.num_entries = len(self._entries)
            counts.insertion_duration += time.monotonic() - start

    def counts(self) -> CacheCounts:
        with self._lock:
            counts = self._counts
            return CacheCounts(*(getattr(counts, name) for name in CacheCounts.__slots__))


def key_of(model: str, version: str, request: InferenceRequest) -> bytes:
    """The name of `request`'s answer. Reads every input byte: about a millisecond a megabyte."""
    digest = blake2b(digest_size=20)
    outputs = sorted(output.name for output in request.outputs)
    inputs = sorted(request.inputs, key=lambda tensor: tensor.name)
    # repr quotes each name, so no two lists of names read the same
    digest.update(repr((model, version, outputs)).encode())
    for tensor in inputs:
        digest.update(repr((tensor.name, tensor.datatype, tensor.shape)).encode())
        if isinstance(tensor.data, list):
            for item in tensor.data:
                digest.update(len(item).to_bytes(8, "little"))
                digest.update(item)
        else:
            digest.update(np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8).data)
    return digest.digest()


def num_input_bytes(request: InferenceRequest) -> int:
    return sum(_num_bytes(tensor) for tensor in request.inputs)


def _num_bytes(tensor: Tensor) -> int:
    if isinstance(tensor.data, list):
        return sum(map(len, tensor.data)) + 40 * len(tensor.data)
    return int(tensor.data.nbytes)


def _copy(tensor: Tensor) -> Tensor:
    """A tensor that keeps no larger array alive, and that nobody can write to."""
    if isinstance(tensor.data, list):
        return Tensor(tensor.name, tensor.datatype, tensor.shape, list(tensor.data))
    data = np.array(tensor.data, copy=True)
    data.flags.writeable = False
    return Tensor(tensor.name, tensor.datatype, tensor.shape, data)
