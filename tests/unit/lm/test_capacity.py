"""How the KV cache is sized, and that nobody gets more memory than there is."""

from pathlib import Path

import pytest

from backends.api.errors import Code, ServingError
from backends.lm.capacity import Capacity, Memory, host_memory, plan_capacity
from backends.lm.options import LmOptions

BLOCK_BYTES = 1000
MEMORY = Memory(by_default=100 * BLOCK_BYTES, limit=400 * BLOCK_BYTES)
GIB = 1 << 30


def plan(max_positions: int = 160, memory: Memory = MEMORY, **options: int) -> Capacity:
    return plan_capacity(LmOptions(model="m", block_size=16, **options), max_positions, BLOCK_BYTES, memory, "m")


def test_without_a_word_it_takes_what_sequences_can_use_and_no_more_than_the_default():
    assert plan(max_num_seqs=4) == Capacity(40, 160)
    assert plan(max_num_seqs=64) == Capacity(100, 160)


def test_what_is_asked_for_is_given_up_to_the_memory_there_is():
    assert plan(kv_cache_memory_bytes=400 * BLOCK_BYTES) == Capacity(400, 160)
    assert plan(num_gpu_blocks_override=400) == Capacity(400, 160)


@pytest.mark.parametrize(
    ("name", "value"), [("kv_cache_memory_bytes", 401 * BLOCK_BYTES), ("num_gpu_blocks_override", 401)]
)
def test_more_than_the_memory_there_is_is_refused_by_name(name: str, value: int):
    with pytest.raises(
        ServingError, match=f"'{name}': expected at most .* 400000 bytes .400 blocks., got 401000"
    ) as no:
        plan(**{name: value})
    assert (no.value.code, no.value.param) == (Code.INVALID, name)


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    file = tmp_path / "meminfo"
    file.write_text(f"MemTotal: {24 << 20} kB\nMemFree: 1 kB\nMemAvailable: {8 << 20} kB\n")
    return file


def test_the_machines_memory_is_the_limit_and_a_part_of_what_is_free_the_default(meminfo: Path, tmp_path: Path):
    assert host_memory(meminfo, tmp_path) == Memory(2 * GIB, 24 * GIB)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{100 * GIB}\n")
    assert host_memory(meminfo, tmp_path) == Memory(2 * GIB, 24 * GIB)


@pytest.mark.parametrize(("used", "default"), [(2 * GIB, GIB // 2), (5 * GIB, 0)])
def test_a_control_groups_limit_counts_where_it_is_lower(meminfo: Path, tmp_path: Path, used: int, default: int):
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    assert host_memory(meminfo, tmp_path) == Memory(default, 4 * GIB)
