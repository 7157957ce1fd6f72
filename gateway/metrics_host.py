"""The machine's metrics under Triton's names: processor, memory, GPUs, and the response cache of this server."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gateway.exposition import Sample, render
from scheduler.response_cache import LocalCache

_GPU = (
    ("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", "gauge"),
    ("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", "gauge"),
    ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", "gauge"),
    ("nv_gpu_power_usage", "GPU power usage in watts", "gauge"),
    ("nv_gpu_power_limit", "GPU power management limit in watts", "gauge"),
    ("nv_energy_consumption", "GPU energy consumption in joules since the Triton Server started", "counter"),
)


class Periodic:
    """What `read` gave, read again when it is older than `interval` seconds."""

    def __init__(self, read: Callable[[], list[str]], interval: float) -> None:
        self._read = read
        self._interval = interval
        self._when = float("-inf")
        self._text: list[str] = []

    def families(self) -> list[str]:
        now = time.monotonic()
        if now - self._when >= self._interval:
            self._when, self._text = now, self._read()
        return self._text


class Processor:
    """Use of the machine's processors between two looks, and of its memory. Linux only: nothing elsewhere."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before = (0, 0)

    def families(self) -> list[str]:
        try:
            busy, total = self._ticks()
            memory = self._memory()
        except (OSError, ValueError, KeyError, IndexError):
            return []
        spent = total - self._before[1]
        share = (busy - self._before[0]) / spent if spent else 0.0
        self._before = (busy, total)
        used = memory["MemTotal"] - memory["MemAvailable"]
        return [
            render("nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]", [Sample({}, share)]),
            render(
                "nv_cpu_memory_total_bytes",
                "gauge",
                "CPU total memory (RAM), in bytes",
                [Sample({}, memory["MemTotal"])],
            ),
            render("nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes", [Sample({}, used)]),
        ]

    def _ticks(self) -> tuple[int, int]:
        """Busy and all ticks since the machine started."""
        first = (self._proc / "stat").read_text().splitlines()[0]
        ticks = [int(field) for field in first.split()[1:9]]  # guest time is part of user time
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)

    def _memory(self) -> dict[str, int]:
        lines = (line.split() for line in (self._proc / "meminfo").read_text().splitlines())
        return {name.rstrip(":"): int(kib) * 1024 for name, kib, *_ in lines}


class Gpus:
    """What NVIDIA's management library (package nvidia-ml-py) says of each GPU; nothing where there is none."""

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._energy: dict[str, int] = {}
        try:
            if library is None:
                import pynvml  # type: ignore[import-not-found, unused-ignore]

                self._library = pynvml
            self._library.nvmlInit()
        except Exception:  # no package, no driver, no GPU
            self._library = None

    def families(self) -> list[str]:
        if self._library is None:
            return []
        samples: dict[str, list[Sample]] = {name: [] for name, _, _ in _GPU}
        for index in range(self._library.nvmlDeviceGetCount()):
            for name, labels, value in self._values(self._library.nvmlDeviceGetHandleByIndex(index)):
                samples[name].append(Sample(labels, value))
        return [render(name, kind, text, samples[name]) for name, text, kind in _GPU]

    def _values(self, device: Any) -> Iterator[tuple[str, dict[str, str], float]]:
        nvml = self._library
        uuid = nvml.nvmlDeviceGetUUID(device)
        labels = {"gpu_uuid": uuid if isinstance(uuid, str) else uuid.decode()}
        readers: tuple[tuple[str, Callable[[], float]], ...] = (
            ("nv_gpu_utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100),
            ("nv_gpu_memory_total_bytes", lambda: nvml.nvmlDeviceGetMemoryInfo(device).total),
            ("nv_gpu_memory_used_bytes", lambda: nvml.nvmlDeviceGetMemoryInfo(device).used),
            ("nv_gpu_power_usage", lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000),
            ("nv_gpu_power_limit", lambda: nvml.nvmlDeviceGetPowerManagementLimit(device) / 1000),
            (
                "nv_energy_consumption",
                lambda: self._spent(labels["gpu_uuid"], nvml.nvmlDeviceGetTotalEnergyConsumption(device)),
            ),
        )
        for name, read in readers:
            try:
                yield name, labels, read()
            except Exception:  # not every GPU knows everything
                continue

    def _spent(self, uuid: str, millijoules: int) -> float:
        return (millijoules - self._energy.setdefault(uuid, millijoules)) / 1000


def pinned_memory_families() -> list[str]:
    """There is no pool of pinned memory here; dashboards ask for it all the same."""
    return [
        render(f"nv_pinned_memory_pool_{what}_bytes", "gauge", f"Pinned memory pool {text}, in bytes", [Sample({}, 0)])
        for what, text in (("total", "total memory size"), ("used", "used memory size"))
    ]


def cache_families(cache: LocalCache) -> list[str]:
    counts = cache.counts()
    values = (
        ("util", "Cache utilization [0.0 - 1.0]", counts.num_bytes / counts.max_bytes if counts.max_bytes else 0.0),
        ("num_entries", "Number of responses stored in response cache", counts.num_entries),
        ("num_lookups", "Number of cache lookups in response cache", counts.num_lookups),
        ("num_hits", "Number of cache hits in response cache", counts.num_hits),
        ("num_misses", "Number of cache misses in response cache", counts.num_misses),
        ("num_evictions", "Number of cache evictions in response cache", counts.num_evictions),
        (
            "lookup_duration",
            "Total cache lookup duration (hit and miss), in microseconds",
            round(counts.lookup_duration * 1e6),
        ),
        (
            "insertion_duration",
            "Total cache insertion duration, in microseconds",
            round(counts.insertion_duration * 1e6),
        ),
    )
    return [render(f"nv_cache_{name}", "gauge", text, [Sample({}, value)]) for name, text, value in values]
