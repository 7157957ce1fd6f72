"""Queue limits and priorities hold, and models do not wait for each other, whatever comes."""

import asyncio

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.api.model_config import DynamicBatching, QueuePolicy
from tests.unit.scheduler.tensor_fakes import Gate, answer, ask, config, serving

LEVELS = 3
sizes = st.lists(st.integers(0, 4), min_size=LEVELS, max_size=LEVELS)
priorities = st.lists(st.integers(0, LEVELS), max_size=30)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def batching(limits: list[int]) -> DynamicBatching:
    """`limits`: max_queue_size by level, 0 for none."""
    policies = {level: QueuePolicy(max_queue_size=limit) for level, limit in enumerate(limits, start=1)}
    return DynamicBatching(priority_levels=LEVELS, default_priority_level=2, priority_queue_policy=policies)


@quick
@given(limits=sizes, asked=priorities)
def test_each_level_takes_as_many_as_it_may_and_the_higher_go_first(limits: list[int], asked: list[int]) -> None:
    asyncio.run(_fill(limits, asked))


async def _fill(limits: list[int], asked: list[int]) -> None:
    gate = Gate()
    async with serving(gate, config(max_batch_size=1, batching=batching(limits))) as model:
        model.infer(first := ask(-1))
        gate.wait_entered()  # the one instance is busy: what comes now waits
        taken: list[tuple[int, int]] = []  # level, number
        for number, priority in enumerate(asked):
            level = priority or 2
            limit = limits[level - 1]
            has_room = not limit or sum(each == level for each, _ in taken) < limit
            try:
                model.infer(ask(number, priority=priority))
            except ServingError as error:
                assert error.code is Code.OVERLOADED
                assert not has_room, "refused although there is room"
            else:
                assert has_room, "taken beyond the limit"
                taken.append((level, number))
        assert model.num_waiting == len(taken)
        gate.open(1 + len(taken))
        assert answer(first) == [-1]
    served = [int(value) for batch in gate.batches[1:] for value in batch]
    assert served == [number for _, number in sorted(taken)]


@quick
@given(stuck=st.lists(st.booleans(), min_size=2, max_size=5), order=st.randoms(use_true_random=False))
def test_models_that_hang_delay_no_other(stuck: list[bool], order) -> None:
    asyncio.run(_hang(stuck, order))


async def _hang(stuck: list[bool], order) -> None:
    gates = [Gate() for _ in stuck]
    for gate, is_stuck in zip(gates, stuck, strict=True):
        if not is_stuck:
            gate.open(3)
    async with asyncio.TaskGroup() as group:
        over = asyncio.Event()
        ready: list[asyncio.Future] = [asyncio.get_running_loop().create_future() for _ in stuck]

        async def serve(number: int) -> None:
            async with serving(gates[number]) as model:
                ready[number].set_result(model)
                await over.wait()

        for number in range(len(stuck)):
            group.create_task(serve(number))
        models = await asyncio.gather(*ready)
        requests = [(number, ask(turn)) for number in range(len(stuck)) for turn in range(3)]
        order.shuffle(requests)
        for number, request in requests:
            models[number].infer(request)
        for number, request in requests:
            if not stuck[number]:
                value = np.asarray(request.inputs[0].data).ravel().tolist()
                assert await asyncio.to_thread(answer, request) == value
        for gate, is_stuck in zip(gates, stuck, strict=True):
            if is_stuck:
                gate.open(3)
        over.set()
