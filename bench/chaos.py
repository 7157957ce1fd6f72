"""Break custom models at random under load, and count how every request ended.

    python -m bench.chaos --seconds 120 --clients 32

Each request asks for one of: a right answer, an exception, an error of its own, a wrong count, garbage on the socket, an
exit, a crash, a hang; meanwhile processes are killed. Right means: a right answer for those that asked for one and
met nobody else's trouble, or an error that names the process or the batch. Exits with 1 if anything else happened, if a
process, a descriptor or a mapping was left, or if memory grew.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest
from backends.api.tensor import Tensor
from backends.python.backend import PythonBackend, config_texts
from backends.python.supervisor import Supervisor
from model_repository.complete import complete
from model_repository.pbtxt import parse_json, parse_text, to_json
from scheduler.alarm import Alarm
from scheduler.load import start_tensor_model
from scheduler.python_model import PythonModel

ANSWER, RAISE, REFUSE, COUNT, GARBAGE, EXIT, CRASH, HANG = range(8)
_WEIGHTS = (200, 4, 4, 2, 1, 1, 1, 1)
_HANG_LIMIT = 0.3
_PATIENCE = 30.0
_LARGE = 40_000  # elements: through shared memory
_MODEL = """
import ctypes, os, time
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        responses, count = [], False
        for request in requests:
            value = request.inputs()[0].as_numpy()
            act = int(value.flat[0])
            if act == 1: raise RuntimeError("chaos")
            if act == 2:
                responses.append(pb.InferenceResponse(error=pb.TritonError("refused", pb.TritonError.INVALID_ARG)))
                continue
            if act == 3: count = True
            if act == 4:
                for fd in range(3, 30):
                    try:
                        if os.readlink(f"/proc/self/fd/{fd}").startswith("socket"): os.write(fd, os.urandom(5000))
                    except OSError: pass
            if act == 5: os._exit(7)
            if act == 6: ctypes.string_at(0)
            if act == 7: time.sleep(1000)
            responses.append(pb.InferenceResponse([pb.Tensor("OUT", value + 1)]))
        return responses[:-1] if count else responses
"""
_CONFIG = f"""
max_batch_size: 8
input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }} ]
dynamic_batching {{ }}
instance_group [ {{ kind: KIND_CPU count: 2 }} ]
parameters {{ key: "EXECUTION_TIMEOUT_SECS" value {{ string_value: "{_HANG_LIMIT}" }} }}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    report, faults = asyncio.run(run(arguments.seconds, arguments.clients, arguments.seed))
    print(json.dumps(report, indent=2))
    for fault in faults:
        print("FAULT:", fault)
    return 1 if faults else 0


async def run(seconds: float, num_clients: int, seed: int) -> tuple[dict[str, object], list[str]]:
    """What happened, and what should not have."""
    with tempfile.TemporaryDirectory() as folder:
        here = psutil.Process()
        num_fds = here.num_fds()
        model = await _load(Path(folder))
        ends: Counter[str] = Counter()
        faults: list[str] = []
        end = time.monotonic() + seconds
        memory: list[int] = []
        clients = [
            _client(model, random.Random(seed * 1000 + number), end, ends, faults) for number in range(num_clients)
        ]
        await asyncio.gather(*clients, _killer(model, random.Random(seed), end, ends), _watch(here, end, memory))
        restarts = model.backend.supervisor.num_restarts
        await asyncio.wait_for(model.close(), _PATIENCE)
    _check_left_over(here, num_fds, faults)
    counts = model.statistics.snapshot()
    total = sum(count for end_kind, count in ends.items() if end_kind != "killed")
    if counts.success.count + counts.fail.count != total:
        faults.append(f"{total} requests ended, {counts.success.count} + {counts.fail.count} were counted")
    if len(memory) > 20 and min(memory[-5:]) > 1.2 * max(memory[: len(memory) // 4]) + (16 << 20):
        faults.append(f"memory grew from {max(memory[: len(memory) // 4])} to {min(memory[-5:])} bytes")
    report: dict[str, object] = {"ends": dict(ends), "restarts": restarts, "rss_first_last": [memory[0], memory[-1]]}
    return report, faults


async def _load(folder: Path) -> PythonModel:
    (folder / "1").mkdir()
    (folder / "1" / "model.py").write_text(_MODEL)
    config = complete(parse_text(_CONFIG.encode(), "config.pbtxt"), "chaos", [folder / "1"])
    to_text, of_text = config_texts(to_json, parse_json)
    backend = PythonBackend(config, folder / "1", "1", to_json=to_text, of_json=of_text)
    backend.supervisor = Supervisor(first=0.01, longest=0.2)
    return await start_tensor_model(backend, config, "1", folder / "warmup", alarm=Alarm())


async def _client(model: PythonModel, rng: random.Random, end: float, ends: Counter[str], faults: list[str]) -> None:
    while time.monotonic() < end:
        (act,) = rng.choices(range(8), _WEIGHTS)
        size = _LARGE if rng.random() < 0.05 else 4
        array = np.full((1, size), rng.randrange(100, 1 << 30), np.int32)
        array[0, 0] = act or 100
        try:
            answers = await asyncio.wait_for(_ask(model, array), _PATIENCE)
        except ServingError as error:
            kind = _kind(error)
            ends[kind] += 1
            if kind == "other":
                faults.append(f"request {act} ended with {error!r}")
        except TimeoutError:
            faults.append(f"request {act} never ended")
        else:
            ends["answered"] += 1
            if act in (RAISE, REFUSE, EXIT, CRASH, HANG):
                faults.append(f"request {act} was answered")
            if len(answers) != 1 or not np.array_equal(answers[0], array + 1):
                faults.append(f"request {act} got somebody else's answer")


async def _ask(model: PythonModel, array: np.ndarray) -> list[np.ndarray]:
    request = InferenceRequest("chaos", "", [Tensor.from_numpy("IN", array)])
    model.infer(request)
    return [np.array(response.outputs[0].as_numpy()) async for response in request.stream]


def _kind(error: ServingError) -> str:
    for text, kind in (
        ("is not healthy", "process ended"),
        ("RuntimeError: chaos", "raised"),
        ("refused", "refused"),
        ("Number of InferenceResponse objects", "wrong count"),
    ):
        if text in error.message and error.code in (Code.INTERNAL, Code.INVALID, Code.UNAVAILABLE):
            return kind
    return "other"


async def _killer(model: PythonModel, rng: random.Random, end: float, ends: Counter[str]) -> None:
    while time.monotonic() < end:
        await asyncio.sleep(rng.uniform(0.1, 0.8))
        pid = rng.choice(model.backend.instances).pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]))
                ends["killed"] += 1


async def _watch(here: psutil.Process, end: float, memory: list[int]) -> None:
    while time.monotonic() < end:
        memory.append(here.memory_info().rss)
        await asyncio.sleep(0.25)


def _check_left_over(here: psutil.Process, num_fds: int, faults: list[str]) -> None:
    children = here.children(recursive=True)
    if children:
        faults.append(f"processes left: {[(child.pid, child.status()) for child in children]}")
    gc.collect()  # arrays over shared memory
    if here.num_fds() > num_fds:
        faults.append(f"descriptors: {num_fds} at the start, {here.num_fds()} after")
    maps = Path("/proc/self/maps").read_text().count("memfd:tidegate")
    if maps:
        faults.append(f"{maps} mappings of shared memory left")


if __name__ == "__main__":
    sys.exit(main())
