"""The instances of a serving model: more and fewer of them while requests go on."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.api.base import Placement
from backends.api.errors import ServingError
from backends.api.model_config import DynamicBatching, InstanceGroup, RateLimiterResource, SequenceBatching
from scheduler.load import start_tensor_model
from scheduler.rate_limit import RateLimiter
from scheduler.tensor_model import TensorModel
from tests.unit.backends.python_models import ask as ask_python
from tests.unit.backends.python_models import loaded
from tests.unit.scheduler.tensor_fakes import ALARM, FakeBackend, Gate, answer, ask, config, echo, serving


def groups(*counts: int, **fields: object) -> tuple[InstanceGroup, ...]:
    return tuple(InstanceGroup(f"g{n}", "KIND_CPU", count, **fields) for n, count in enumerate(counts))  # type: ignore[arg-type]


async def settled(model: TensorModel) -> list[str]:
    """The names of the instances, once those that were too many are gone."""
    await asyncio.to_thread(model._instances.join_retired)
    return model._instances.names


async def served(backend: FakeBackend, folder: Path, **fields: object) -> TensorModel:
    settings = config(max_batch_size=1, **fields)  # type: ignore[arg-type]
    return await start_tensor_model(backend, settings, "1", folder, alarm=ALARM)


async def test_more_instances_run_more_at_once_and_what_was_counted_stays_counted():
    gate = Gate()
    async with serving(gate, config(max_batch_size=1, instances=groups(1))) as model:
        gate.open()
        model.infer(first := ask(1))
        assert answer(first) == [1]
        gate.wait_entered()
        await model.set_instances(groups(2))
        requests = [ask(2), ask(3)]
        for request in requests:
            model.infer(request)
        gate.wait_entered()
        gate.wait_entered()
        gate.open(2)
        assert [answer(request) for request in requests] == [[2], [3]]
        assert model.statistics.snapshot().success.count == 3
        assert model.config.instance_groups == groups(2)


async def test_one_too_many_ends_its_batch_before_it_goes(tmp_path):
    gate = Gate()
    backend = FakeBackend(gate)
    model = await served(backend, tmp_path, instances=groups(2))
    requests = [ask(1), ask(2)]
    for request in requests:
        model.infer(request)
    gate.wait_entered()
    gate.wait_entered()
    await model.set_instances(groups(1))
    gate.open(2)
    assert [answer(request) for request in requests] == [[1], [2]]
    assert len(await settled(model)) == backend.num_open == 1
    await model.close()


async def test_what_stays_the_same_is_not_made_again(tmp_path):
    made: list[str] = []

    class Counting(FakeBackend):
        def instance(self, placement: Placement):
            made.append(placement.name)
            return super().instance(placement)

    model = await served(Counting(), tmp_path, instances=groups(2))
    await model.set_instances(groups(1, 2))
    assert len(made) == 3
    assert len(set(await settled(model))) == 3
    await model.set_instances(groups(3))  # another name for the same
    assert len(made) == 3
    await model.close()


async def test_an_instance_that_cannot_be_made_leaves_all_as_it_was(tmp_path):
    class Broken(FakeBackend):
        def instance(self, placement: Placement):
            if self.num_open == 3:
                raise RuntimeError("no room")
            return super().instance(placement)

    backend = Broken()
    model = await served(backend, tmp_path, instances=groups(2))
    with pytest.raises(ServingError, match="model 'fake': no room"):
        await model.set_instances(groups(4))
    assert (backend.num_open, len(await settled(model)), model.config.instance_groups) == (2, 2, groups(2))
    model.infer(request := ask(5))
    assert answer(request) == [5]
    await model.close()


async def test_a_rate_limited_instance_gives_its_resources_back_when_it_goes(tmp_path):
    limiter = RateLimiter()
    needs = RateLimiterResource("R", 1)
    limited = config(instances=groups(2, resources=(needs,)))
    model = await start_tensor_model(FakeBackend(), limited, "1", tmp_path, alarm=ALARM, limiter=limiter)
    assert len(limiter._claims) == 2
    await model.set_instances(groups(1, resources=(needs,)))
    await settled(model)
    assert len(limiter._claims) == 1
    await model.close()
    assert not limiter._claims


async def test_a_passive_instance_waits_and_goes(tmp_path):
    backend = FakeBackend()
    passive = replace(groups(1)[0], name="spare", passive=True)
    model = await served(backend, tmp_path, instances=(*groups(1), passive))
    model.infer(request := ask(1))
    assert answer(request) == [1]
    await model.set_instances(groups(1))
    await settled(model)
    assert backend.num_open == 1
    await model.set_instances((*groups(1), passive))
    await model.close()
    assert backend.num_open == 0


async def test_a_sequence_ends_on_the_instance_it_began_on(tmp_path):
    threads: list[int] = []

    def run(inputs, outputs):
        threads.append(threading.get_ident())
        return echo({"IN": inputs["IN"]}, outputs)

    settings = config(max_batch_size=1, batching=None, instances=groups(2), sequence_batching=SequenceBatching())
    backend = FakeBackend(run)
    model = await start_tensor_model(backend, settings, "1", tmp_path, alarm=ALARM)
    for number in (1, 2):
        model.infer(request := ask(1, sequence_id=number, sequence_start=True))
        answer(request)
    await model.set_instances(groups(1))
    for number in (1, 2):
        model.infer(request := ask(2, sequence_id=number, sequence_end=True))
        assert answer(request) == [2]
    assert threads[:2] == threads[2:]
    await settled(model)
    assert backend.num_open == 1
    model.infer(request := ask(3, sequence_id=3, sequence_start=True, sequence_end=True))
    assert answer(request) == [3]
    await model.close()


async def test_a_custom_model_gets_more_processes_and_fewer(tmp_path):
    source = """
import os
class TritonPythonModel:
    def execute(self, requests):
        pid = np.array([[os.getpid()]], np.int32)
        return [pb.InferenceResponse([pb.Tensor("OUT", pid)]) for _ in requests]
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source)
        ((first,),) = await ask_python(model)
        await model.set_instances((InstanceGroup("m_0", "KIND_CPU", 2),))
        pids = {instance.pid for instance in model.backend.instances}
        assert len(pids) == 2
        assert first in pids
        await model.set_instances((InstanceGroup("m_0", "KIND_CPU", 1),))
        await settled(model)
        assert [instance.pid for instance in model.backend.instances] == [first]
        assert model.statistics.snapshot().success.count == 1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    delay=st.sampled_from([0, 300]),
    with_sequences=st.booleans(),
)
def test_whatever_the_sizes_every_request_is_answered_once(sizes, delay, with_sequences):
    asyncio.run(_storm(sizes, delay, with_sequences))


async def _storm(sizes, delay, with_sequences):
    batching = None if with_sequences else DynamicBatching((3,), max_queue_delay_microseconds=delay)
    sequences = SequenceBatching() if with_sequences else None
    model_config = config(batching=batching, instances=groups(1), sequence_batching=sequences)
    answered: list[float] = []
    async with serving(echo, model_config) as model:
        over = threading.Event()

        def act(number: int) -> None:
            turn = 0
            while not over.is_set() or turn < 20:
                value = number * 1000.0 + turn
                request = ask(value, sequence_id=number + 1, sequence_start=True, sequence_end=turn % 3 > 0)
                model.infer(request)
                assert answer(request) == [value]
                answered.append(value)
                turn += 1

        workers = [threading.Thread(target=act, args=(number,)) for number in range(3)]
        for worker in workers:
            worker.start()
        for size in sizes:
            await model.set_instances(groups(size))
        over.set()
        await asyncio.gather(*(asyncio.to_thread(worker.join) for worker in workers))
        model._scheduler.check()
        assert len(answered) == len(set(answered)) == model.statistics.snapshot().success.count >= 60
        assert len(model._instances.names) == sizes[-1]
