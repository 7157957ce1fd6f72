"""A tensor model under sequence batching: controls, padding to slots, state, order, ends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.api.errors import Code, ServingError
from backends.api.model_config import (
    DirectStrategy,
    InitialState,
    InstanceGroup,
    ModelConfig,
    OldestStrategy,
    SequenceBatching,
    SequenceControl,
    SequenceState,
    TensorSpec,
    Warmup,
    WarmupInput,
)
from backends.api.request import InferenceRequest
from backends.api.statistics import Failure
from backends.api.tensor import Tensor
from scheduler.load import start_tensor_model
from scheduler.tensor_model import TensorModel
from tests.unit.scheduler.tensor_fakes import ALARM, PATIENCE, FakeBackend, Gate

CONTROLS = (
    SequenceControl("START", "START", "INT32", (0, 1)),
    SequenceControl("END", "END", "BOOL", (False, True)),
    SequenceControl("READY", "READY", "FP32", (0.0, 1.0)),
    SequenceControl("CORRID", "CORRID", "UINT64"),
)
DIRECT, OLDEST = DirectStrategy(), OldestStrategy(max_candidate_sequences=4)
SUM = SequenceState("SUM_IN", "SUM_OUT", "FP32", (1,))


def config(
    strategy: DirectStrategy | OldestStrategy = DIRECT, *, batch: int = 4, count: int = 1, **more: Any
) -> ModelConfig:
    return ModelConfig(
        "seq",
        backend="fake",
        max_batch_size=batch,
        inputs=(TensorSpec("IN", "FP32", (1,)),),
        outputs=(TensorSpec("OUT", "FP32", (1,)),),
        instance_groups=(InstanceGroup(kind="KIND_CPU", count=count),),
        sequence_batching=SequenceBatching(strategy=strategy, **({"controls": CONTROLS} | more)),
    )


class Recorder:
    """OUT = IN; keeps the inputs of each execution, column by column."""

    def __init__(self) -> None:
        self.seen: list[dict[str, list[Any]]] = []

    def __call__(self, inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        self.seen.append({name: list(tensor.as_numpy().ravel()) for name, tensor in inputs.items()})
        given = inputs["IN"]
        return {"OUT": Tensor("OUT", "FP32", given.shape, given.data)}


def adds_up(inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
    """OUT = SUM_OUT = SUM_IN + IN: all it knows of a sequence is its state."""
    total = inputs["SUM_IN"].as_numpy() + inputs["IN"].as_numpy()
    return {name: Tensor(name, "FP32", total.shape, total) for name in ("OUT", "SUM_OUT")}


@asynccontextmanager
async def serving(execute: Any, model_config: ModelConfig, folder: Path | None = None) -> AsyncIterator[TensorModel]:
    backend = FakeBackend(execute)
    model = await start_tensor_model(backend, model_config, "1", (folder or Path("/nowhere")) / "warmup", alarm=ALARM)
    try:
        yield model
    finally:
        await model.close()
        assert (backend.num_open, backend.closed) == (0, 1)
        assert model.num_waiting == 0


def ask(sequence: int | str, value: float = 0.0, flags: str = "", **fields: Any) -> InferenceRequest:
    array = np.full(fields.pop("shape", (1, 1)), value, np.float32)
    return InferenceRequest(
        "seq",
        "",
        [Tensor("IN", "FP32", array.shape, array)],
        sequence_id=sequence,
        sequence_start="S" in flags,
        sequence_end="E" in flags,
        **fields,
    )


def send(model: TensorModel, *requests: InferenceRequest) -> list[float]:
    for request in requests:
        model.infer(request)
    return [answer(request) for request in requests]


def answer(request: InferenceRequest) -> float:
    response = request.stream.get(PATIENCE)
    assert response is not None
    assert [output.name for output in response.outputs] == ["OUT"]
    return float(response.outputs[0].as_numpy().flat[0])


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
async def test_the_model_is_told_where_in_which_sequence_a_request_stands(strategy: Any) -> None:
    recorder = Recorder()
    async with serving(recorder, config(strategy)) as model:
        assert send(model, ask(7, 1, "S"), ask(7, 2), ask(7, 3, "E")) == [1, 2, 3]
    columns = {name: [value for seen in recorder.seen for value in seen[name]] for name in recorder.seen[0]}
    assert columns == {
        "IN": [1, 2, 3],
        "START": [1, 0, 0],
        "END": [False, False, True],
        "READY": [1, 1, 1],
        "CORRID": [7, 7, 7],
    }


async def test_a_direct_batch_has_every_sequence_at_its_slot_and_marks_the_empty_ones() -> None:
    gate, recorder = Gate(), Recorder()

    def execute(inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        gate(inputs, outputs)
        return recorder(inputs, outputs)

    async with serving(execute, config()) as model:
        first = [ask(1, 10, "S"), ask(2, 20, "S"), ask(3, 30, "S")]
        model.infer(first[0])
        gate.wait_entered()
        model.infer(first[1])
        model.infer(first[2])
        gate.open(2)
        assert [await asyncio.to_thread(answer, each) for each in first] == [10, 20, 30]
        third, one = ask(3, 31, "E"), ask(1, 11, "E")
        model.infer(third)
        gate.wait_entered()
        gate.wait_entered()
        gate.open(3)
        assert await asyncio.to_thread(answer, third) == 31
        assert await asyncio.to_thread(send, model, one) == [11]
    assert [seen["IN"] for seen in recorder.seen] == [[10], [0, 20, 30], [0, 0, 31], [11]]
    assert [seen["READY"] for seen in recorder.seen] == [[1], [0, 1, 1], [0, 0, 1], [1]]
    assert recorder.seen[2]["CORRID"] == [0, 0, 3]


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
@pytest.mark.parametrize("batch", [0, 4])
async def test_a_state_follows_its_sequence_and_begins_anew_with_each(strategy: Any, batch: int) -> None:
    model_config = config(strategy, batch=batch, states=(SUM,))
    shape = (1, 1) if batch else (1,)
    async with serving(adds_up, model_config) as model:
        first = [ask(sequence, sequence, "S", shape=shape) for sequence in (1, 2, 3)]
        more = [ask(sequence, 10, "E", shape=shape) for sequence in (1, 2, 3)]
        assert await asyncio.to_thread(send, model, *first, *more) == [1, 2, 3, 11, 12, 13]
        again = [ask(sequence, 5, "SE", shape=shape) for sequence in (9, 8, 7)]
        assert await asyncio.to_thread(send, model, *again) == [5, 5, 5]
        assert [spec.name for spec in model.config.inputs] == ["IN"]
        assert [spec.name for spec in model.config.outputs] == ["OUT"]


async def test_many_sequences_at_once_never_see_each_others_state() -> None:
    async with serving(adds_up, config(OLDEST, count=2, states=(SUM,))) as model:

        def whole(sequence: int) -> list[float]:
            flags = ["S", *[""] * 8, "E"]
            return [total for flag in flags for total in send(model, ask(sequence, sequence, flag))]

        found = await asyncio.gather(*(asyncio.to_thread(whole, sequence) for sequence in range(1, 25)))
        assert found == [[sequence * step for step in range(1, 11)] for sequence in range(1, 25)]
        assert model.statistics.snapshot().success.count == 240


async def test_states_of_growing_shape_are_kept_apart() -> None:
    def appends(inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        grown = np.concatenate([inputs["ALL_IN"].as_numpy(), inputs["IN"].as_numpy()], axis=1)
        counts = np.full((len(grown), 1), grown.shape[1], np.float32)
        return {
            "OUT": Tensor("OUT", "FP32", counts.shape, counts),
            "ALL_OUT": Tensor("ALL_OUT", "FP32", grown.shape, grown),
        }

    state = SequenceState("ALL_IN", "ALL_OUT", "FP32", (-1,), InitialState("empty", "FP32", (1,)))
    async with serving(appends, config(states=(state,))) as model:
        assert await asyncio.to_thread(send, model, ask(1, 0, "S"), ask(1)) == [2, 3]
        both = [ask(1), ask(2, 0, "S")]
        assert await asyncio.to_thread(send, model, *both) == [4, 2]


async def test_an_initial_state_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "hundred").write_bytes(np.float32(100).tobytes())
    state = replace(SUM, initial_state=InitialState("s", "FP32", (1,), "hundred"))
    async with serving(adds_up, config(states=(state,)), tmp_path) as model:
        assert await asyncio.to_thread(send, model, ask(1, 1, "S"), ask(1, 1, "E"), ask(2, 5, "SE")) == [101, 102, 105]
    for file, text in (("gone", "cannot be read"), ("../hundred", "must lie inside")):
        bad = replace(state, initial_state=InitialState("s", "FP32", (1,), file))
        with pytest.raises(ServingError, match=text):
            await start_tensor_model(FakeBackend(), config(states=(bad,)), "1", tmp_path / "warmup", alarm=ALARM)


async def test_a_model_that_gives_no_state_fails_its_request() -> None:
    async with serving(Recorder(), config(states=(SUM,))) as model:
        with pytest.raises(ServingError, match="gave no output 'SUM_OUT', which is a state"):
            await asyncio.to_thread(send, model, ask(1, 0, "S"))


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (ask(0, 1, "S"), "inference request to model 'seq' must specify a non-zero or non-empty correlation ID"),
        (ask("", 1, "S"), "inference request to model 'seq' must specify a non-zero or non-empty correlation ID"),
        (
            ask(1, 1, "S", shape=(2, 1)),
            "inference request to model 'seq' must specify batch-size 1 due to requirements of sequence batcher",
        ),
        (
            ask(1),
            (
                "inference request for sequence 1 to model 'seq' must specify the START flag on the first request of the "
                "sequence"
            ),
        ),
        (
            ask("a", 1, "S"),
            "inference request to model 'seq' has correlation ID 'a', which is a string: control 'CORRID' is of type UINT64",
        ),
    ],
)
async def test_a_request_that_is_none_of_a_sequence_is_refused(request_: InferenceRequest, text: str) -> None:
    async with serving(Recorder(), config()) as model:
        with pytest.raises(ServingError) as refused:
            model.infer(request_)
        assert (refused.value.code, refused.value.message) == (Code.INVALID, text)
        assert model.statistics.snapshot().failures[Failure.OTHER] == 1


async def test_ids_may_be_strings_where_the_control_is_one_and_large_numbers_wrap() -> None:
    recorder = Recorder()
    strings = (SequenceControl("CORRID", "CORRID", "BYTES"),)
    async with serving(recorder, config(controls=strings)) as model:
        await asyncio.to_thread(send, model, ask("a-b", 1, "SE"), ask(12, 1, "SE"))
    assert [value for seen in recorder.seen for value in seen["CORRID"]] == [b"a-b", b"12"]
    recorder = Recorder()
    async with serving(recorder, config()) as model:
        await asyncio.to_thread(send, model, ask(-1, 1, "SE"))
    assert recorder.seen[0]["CORRID"] == [2**64 - 1]
    small = (SequenceControl("CORRID", "CORRID", "INT32"),)
    async with serving(Recorder(), config(controls=small)) as model:
        with pytest.raises(ServingError, match="out of its range"):
            model.infer(ask(2**31, 1, "S"))


async def test_requests_queued_behind_others_are_all_answered_though_their_end_is_queued_too() -> None:
    async with serving(adds_up, config(states=(SUM,))) as model:
        flags = ["S", *[""] * 18, "E"]
        assert await asyncio.to_thread(send, model, *(ask(5, 1, flag) for flag in flags)) == [*range(1, 21)]


async def test_a_cancelled_request_ends_its_sequence_and_is_counted() -> None:
    gate = Gate()
    async with serving(gate, config()) as model:
        requests = [ask(1, 1, "S"), ask(1, 2), ask(1, 3)]
        for request in requests:
            model.infer(request)
        gate.wait_entered()
        requests[1].stream.cancel()
        with pytest.raises(ServingError, match="another of its requests was cancelled"):
            await asyncio.to_thread(answer, requests[2])
        gate.open()
        assert await asyncio.to_thread(answer, requests[0]) == 1
        with pytest.raises(ServingError, match="START"):
            model.infer(ask(1, 4))
        assert model.statistics.snapshot().failures[Failure.CANCELED] == 1


async def test_an_idle_sequence_makes_room_for_one_that_waits() -> None:
    model_config = config(batch=1)
    assert model_config.sequence_batching is not None
    quick = replace(model_config.sequence_batching, max_sequence_idle_microseconds=1)
    async with serving(Recorder(), replace(model_config, sequence_batching=quick)) as model:
        values = [ask(sequence, sequence, "S") for sequence in range(1, 20)]
        assert await asyncio.to_thread(send, model, *values) == [*range(1, 20)]


async def test_a_deadline_that_passes_in_the_backlog_ends_the_request() -> None:
    async with serving(Recorder(), config(batch=1)) as model:
        await asyncio.to_thread(send, model, ask(1, 1, "S"))
        with pytest.raises(ServingError, match="timeout of the corresponding sequence has been expired"):
            await asyncio.to_thread(send, model, ask(2, 1, "S", timeout_us=1000))


async def test_close_answers_all_that_was_taken_even_from_behind_sequences_that_never_end() -> None:
    gate = Gate()
    async with serving(gate, config(batch=1)) as model:
        requests = [ask(sequence, sequence, "S") for sequence in range(1, 6)]
        for request in requests:
            model.infer(request)
        gate.wait_entered()
        closing = asyncio.create_task(model.close())
        gate.open(5)
        await closing
        assert [answer(request) for request in requests] == [1, 2, 3, 4, 5]
        with pytest.raises(ServingError, match="stopped accepting"):
            model.infer(ask(9, 9, "S"))


async def test_a_warm_up_runs_as_a_sequence_of_its_own(tmp_path: Path) -> None:
    seen: list[set[str]] = []

    def execute(inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        seen.append(set(inputs))
        return adds_up(inputs, outputs)

    warmup = Warmup("w", 2, {"IN": WarmupInput("FP32", (1,), "zero_data")})
    async with serving(execute, replace(config(states=(SUM,)), warmup=(warmup,)), tmp_path) as model:
        assert seen == [{"IN", "START", "END", "READY", "CORRID", "SUM_IN"}]
        assert await asyncio.to_thread(send, model, ask(1, 1, "S")) == [1]


async def test_answers_of_the_oldest_strategy_leave_in_order_where_asked() -> None:
    strategy = replace(OLDEST, preserve_ordering=True)
    async with serving(Recorder(), config(strategy, count=2)) as model:
        requests = [ask(sequence, sequence, "SE") for sequence in range(1, 9)]
        assert await asyncio.to_thread(send, model, *requests) == [*range(1, 9)]
