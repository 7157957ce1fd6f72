"""How many blocks of keys and values fit, and how long a sequence may be. Pure but for `host_memory`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backends.api.errors import Code, ServingError
from backends.lm.ops import AttentionSpec
from backends.lm.options import LmOptions

log = logging.getLogger(__name__)

_AUTO_LIMIT = 4 << 30  # bytes of KV cache on a CPU when nothing is said
_UNLIMITED = 1 << 62
_AUTO_SHARE = 4  # of the free memory, one part in so many


@dataclass(frozen=True, slots=True)
class Capacity:
    num_blocks: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a device, in bytes: what a KV cache may take by default, and the most that anything can have of it."""

    by_default: int
    limit: int


def bytes_per_block(specs: Sequence[AttentionSpec], block_size: int, itemsize: int) -> int:
    """Keys and values of `block_size` tokens in every layer."""
    return sum(2 * spec.num_kv_heads * spec.head_dim for spec in specs) * block_size * itemsize


def plan_capacity(options: LmOptions, max_positions: int, block_bytes: int, memory: Memory, model: str) -> Capacity:
    """Never more than the options' memory; without, what `memory` gives by default and no more than sequences can use.

    A max_model_len that was asked for must fit into the memory; the model's own is shortened to what does. With a
    number of blocks, which is nobody's guess, both hold: a sequence ends at whichever it meets first. Raises
    ServingError(INVALID) naming the parameter and its range.
    """
    wanted = options.max_model_len or max_positions
    if wanted > max_positions:
        raise _error(model, "max_model_len", f"at most {max_positions}, which the model was made for", f"{wanted}")
    size = options.block_size
    blocks_per_sequence = -(-wanted // size)
    if options.num_gpu_blocks_override:
        num_blocks = options.num_gpu_blocks_override
    elif options.kv_cache_memory_bytes:
        num_blocks = options.kv_cache_memory_bytes // block_bytes
    else:
        num_blocks = min(memory.by_default // block_bytes, options.max_num_seqs * blocks_per_sequence)
    if num_blocks * block_bytes > memory.limit:
        name = "num_gpu_blocks_override" if options.num_gpu_blocks_override else "kv_cache_memory_bytes"
        most = f"at most the memory there is, {memory.limit} bytes ({memory.limit // block_bytes} blocks)"
        raise _error(model, name, most, f"{num_blocks * block_bytes} ({num_blocks} blocks)")
    if num_blocks >= blocks_per_sequence or (options.num_gpu_blocks_override and options.max_model_len):
        return Capacity(num_blocks, wanted)
    if options.max_model_len or not num_blocks:
        need = f"at least {blocks_per_sequence * block_bytes} bytes ({blocks_per_sequence} blocks) for one sequence"
        got = f"{num_blocks * block_bytes} ({num_blocks} blocks); lower max_model_len ({wanted}) or give more memory"
        raise _error(model, "kv_cache_memory_bytes", need, got)
    log.warning("%s: max_model_len is %d instead of %d: the KV cache holds no more", model, num_blocks * size, wanted)
    return Capacity(num_blocks, num_blocks * size)


def host_memory(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> Memory:
    """This machine's, its control group's limit heeded."""
    total, available = (_of_machine(meminfo, name) for name in ("MemTotal", "MemAvailable"))
    limit, used = _of_group(group / "memory.max", _UNLIMITED), _of_group(group / "memory.current", 0)
    free = min(available, max(0, limit - used))
    return Memory(min(_AUTO_LIMIT, free // _AUTO_SHARE), min(total, limit))


def _of_machine(meminfo: Path, name: str) -> int:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return _UNLIMITED
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), _UNLIMITED)


def _of_group(file: Path, otherwise: int) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such group, or its limit is "max"
        return otherwise


def _error(model: str, name: str, expected: str, got: str) -> ServingError:
    return ServingError(Code.INVALID, f"{model}: parameter '{name}': expected {expected}, got {got}", param=name)
