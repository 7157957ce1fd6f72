"""What only a whole server shows over HTTP: schedulers, ensembles, memory, models that do not load."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.oracle.http_cases import Case, infer, one, parameters, send, tensor, typed


def wave(model: str, *seconds: float) -> list[Case]:
    """Requests that are sent one shortly after the other and take so long."""
    return [infer({"id": str(turn), **one(shape=[1, 1], data=[each])}, model) for turn, each in enumerate(seconds)]


def sequence(**given: Any) -> Case:
    return infer({"id": "s", **parameters(**given)}, "seq")


def in_memory(region: str = "r", size: int = 16, offset: int = 0, **more: Any) -> dict[str, Any]:
    placed = {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}
    return {"inputs": [tensor(data=..., parameters=placed)], **more}


def register(name: str = "r", key: str = "/tidegate_oracle", offset: int = 0, size: int = 64) -> Case:
    body = json.dumps({"key": key, "offset": offset, "byte_size": size}).encode()
    return Case(f"/v2/systemsharedmemory/region/{name}/register", body)


REGIONS = "/v2/systemsharedmemory"
UNREGISTER = Case(f"{REGIONS}/unregister")
TO_MEMORY = [{"name": "OUT", "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 16}}]
TOO_SMALL = [{"name": "OUT", "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}}]
DEEP = b"[" * 200 + b"]" * 200

CASES: dict[str, Case] = {
    "config of unknown": Case("/v2/models/nope/config", method="GET"),
    "config of unknown version": Case("/v2/models/ident/versions/7/config", method="GET"),
    "metadata of unknown version": Case("/v2/models/ident/versions/7", method="GET"),
    "ready": Case("/v2/models/ident/ready", method="GET"),
    "ready of unknown version": Case("/v2/models/ident/versions/7/ready", method="GET"),
    "ready of a broken model": Case("/v2/models/broken/ready", method="GET"),
    "broken model": infer(one(), "broken"),
    "metadata of a broken model": Case("/v2/models/broken", method="GET"),
    "broken model by version": Case("/v2/models/broken/versions/1/infer", json.dumps(one()).encode()),
    "generate with a broken model": Case("/v2/models/broken/generate", b"{}"),
    "load of a broken model": Case("/v2/repository/models/broken/load"),
    "load of a path": Case("/v2/repository/models/..%2Fident/load"),
    "load with files alone": Case("/v2/repository/models/ident/load", b'{"parameters":{"file:1/x":"YQ=="}}'),
    "load with a wrong config": Case("/v2/repository/models/ident/load", b'{"parameters":{"config":"{"}}'),
    "load with an unknown field": Case(
        "/v2/repository/models/ident/load", b'{"parameters":{"config":"{\\"foo\\":1}"}}'
    ),
    "load of a wrong config.pbtxt": Case("/v2/repository/models/misconfigured/load"),
    "load of a blank name": Case("/v2/repository/models/%20/load"),
    "load of what is loaded": Case("/v2/repository/models/ident/load"),
    "raising": infer(one(), "raising"),
    "batches of two sizes": infer(
        {
            "inputs": [
                {"name": "A", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]},
                {"name": "B", "shape": [2, 2], "datatype": "INT32", "data": [1, 2, 3, 4]},
            ]
        },
        "two",
    ),
    "nested too deep": infer(b'{"inputs":[{"name":"IN","shape":[1,4],"datatype":"FP32","data":' + DEEP + b"}]}"),
    "a fraction": infer(one(data=[0.8, 1e-8, 16777217, 3.5])),
    "ensemble": infer({"id": "e", "inputs": [tensor(name="X")]}, "chain"),
    "ensemble of a failing step": infer({"inputs": [tensor(name="X")]}, "chain_failing"),
    "ensemble of a wrong shape": infer({"inputs": [tensor(name="X", shape=[1, 3], data=[1, 2, 3])]}, "chain"),
    "sequence without id": sequence(),
    "sequence without start": sequence(sequence_id=7),
    "sequence of a batch": infer(
        {**one(shape=[2, 4], data=[1] * 8), "parameters": {"sequence_id": 7, "sequence_start": True}}, "seq"
    ),
    "sequence": sequence(sequence_id=8, sequence_start=True, sequence_end=True),
    "sequence of a name": sequence(sequence_id="abc", sequence_start=True, sequence_end=True),
    "control input sent": infer(
        {
            "inputs": [tensor(), {"name": "START", "shape": [1, 1], "datatype": "INT32", "data": [1]}],
            "parameters": {"sequence_id": 9, "sequence_start": True, "sequence_end": True},
        },
        "seq",
    ),
    **{
        f"a number as {kind}": infer(typed(kind, 1, 2), f"ident_{kind.lower()}")
        for kind in ("INT8", "INT16", "INT64", "UINT16", "UINT32", "UINT64")
    },
    "bf16 as json": infer(typed("BF16", 1), "ident_bf16"),
    "parameter an object": infer(parameters(x={"y": 1})),
    "region of the server's own": register("own", "/triton_python_backend_shm_region_1"),
    "cuda regions": Case("/v2/cudasharedmemory/status", method="GET"),
    "int64 extremes": infer(typed("INT64", -(2**63), 2**63 - 1), "ident_int64"),
    "uint64 extremes": infer(typed("UINT64", 0, 2**64 - 1), "ident_uint64"),
}
# each step's answer counts; the steps of a list inside a list are sent together
SCENARIOS: dict[str, list[Case | list[Case]]] = {
    "queue full": [wave("full", 1.5, 0.0, 0.0, 0.0)],
    "queue time-out": [wave("late", 1.5, 0.0)],
    "sequence goes on": [
        sequence(sequence_id=11, sequence_start=True),
        sequence(sequence_id=11),
        sequence(sequence_id=11, sequence_end=True),
        sequence(sequence_id=11),
    ],
    "regions": [
        UNREGISTER,
        register(),
        register(),
        register("big", size=1 << 20),
        register("beyond", offset=60, size=16),
        Case(f"{REGIONS}/status", method="GET"),
        Case(f"{REGIONS}/region/r/status", method="GET"),
        Case(f"{REGIONS}/region/r/unregister"),
        Case(f"{REGIONS}/region/r/status", method="GET"),
    ],
    "data in a region": [
        UNREGISTER,
        register(),
        infer(in_memory()),
        infer(in_memory(offset=16)),
        infer(in_memory(offset=64)),
        infer(in_memory(offset=60)),
        infer(in_memory(size=1 << 20)),
        infer(in_memory(size=8)),
        infer(in_memory(outputs=TO_MEMORY)),
        infer(in_memory(outputs=TOO_SMALL)),
        infer({**one(), "outputs": TO_MEMORY}),
        UNREGISTER,
        infer(in_memory()),
    ],
    "unload and load": [
        Case("/v2/repository/models/ident_fp64/unload"),
        Case("/v2/repository/models/ident_fp64/load"),
        infer(typed("FP64", 1.5), "ident_fp64"),
    ],
    "an ensemble whose step is gone": [
        Case("/v2/repository/models/failing/unload"),
        Case("/v2/models/chain_failing/ready", method="GET"),
        Case("/v2/repository/models/failing/load"),
        Case("/v2/repository/models/chain_failing/load"),
        Case("/v2/models/chain_failing/ready", method="GET"),
    ],
}


def play(http: httpx.Client, steps: list[Case | list[Case]]) -> list[Any]:
    """The answers of all steps, in order."""
    return [_together(http, step) if isinstance(step, list) else send(http, step) for step in steps]


def _together(http: httpx.Client, cases: list[Case]) -> list[Any]:
    """Sent 250 ms apart, so that they queue up in their order."""

    def after(turn: int) -> Any:
        time.sleep(turn * 0.25)
        with httpx.Client(base_url=http.base_url, timeout=20) as own:
            return send(own, cases[turn])

    with ThreadPoolExecutor(len(cases)) as pool:
        return list(pool.map(after, range(len(cases))))
