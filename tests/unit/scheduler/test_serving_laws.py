"""Under random load, cancels, timeouts, failures and a close in the middle: each request ends once, and is counted once."""

import asyncio
import threading

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.api.model_config import DynamicBatching, QueuePolicy, TimeoutAction
from tests.unit.scheduler.tensor_fakes import answer, ask, config, echo, serving

FATAL = 1000.0  # a value that makes its batch fail


def run_or_fail(inputs, outputs):
    if (inputs["IN"].as_numpy() >= FATAL).any():
        raise RuntimeError("fatal value")
    return echo(inputs, outputs)


deeds = st.lists(
    st.tuples(
        st.integers(1, 4),  # rows
        st.sampled_from(["wait", "wait", "cancel", "timeout", "deadline", "fatal"]),
        st.integers(0, 3),  # priority
    ),
    min_size=1,
    max_size=25,
)
batchings = st.builds(
    DynamicBatching,
    preferred_batch_size=st.sampled_from([(), (4,), (2, 6)]),
    max_queue_delay_microseconds=st.sampled_from([0, 300]),
    priority_levels=st.sampled_from([0, 2]),
    default_priority_level=st.just(1),
    default_queue_policy=st.builds(
        QueuePolicy,
        timeout_action=st.sampled_from(TimeoutAction),
        default_timeout_microseconds=st.sampled_from([0, 200]),
        allow_timeout_override=st.booleans(),
        max_queue_size=st.sampled_from([0, 3]),
    ),
)
orders = st.builds(DynamicBatching, preserve_ordering=st.just(True), max_queue_delay_microseconds=st.just(300))
ENDS = {Code.OVERLOADED, Code.CANCELLED, Code.UNAVAILABLE, Code.DEADLINE, Code.INTERNAL}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    threads=st.lists(deeds, min_size=1, max_size=4),
    batching=st.one_of(st.none(), batchings, orders),
    count=st.integers(1, 3),
    closes=st.booleans(),
)
def test_every_request_ends_once_with_its_own_rows_and_is_counted_once(threads, batching, count, closes):
    asyncio.run(_storm(threads, batching, count, closes))


async def _storm(threads, batching, count, closes):
    outcomes: list[str] = []
    answered: list[int] = []  # rows of each request
    codes: set[Code] = set()
    async with serving(run_or_fail, config(batching=batching, count=count)) as model:

        def act(number: int, deeds) -> None:
            sent = []
            for turn, (rows, deed, priority) in enumerate(deeds):
                base = FATAL if deed == "fatal" else number * 100.0 + turn
                request = ask(
                    *[base] * rows,
                    priority=priority,
                    timeout_us=50 if deed == "timeout" else 0,
                    deadline=0.0 if deed == "deadline" else None,
                )
                try:
                    model.infer(request)
                except ServingError as error:
                    outcomes.append("refused")
                    codes.add(error.code)
                    continue
                if deed == "cancel":
                    request.stream.cancel()
                sent.append((request, base, rows))
            for request, base, rows in sent:
                try:
                    assert answer(request) == [base] * rows
                    outcomes.append("answered")
                    answered.append(rows)
                except ServingError as error:
                    outcomes.append("failed")
                    codes.add(error.code)
                assert request.stream.ended

        workers = [threading.Thread(target=act, args=item) for item in enumerate(threads)]
        for worker in workers:
            worker.start()
        if closes:
            await model.close()
        await asyncio.gather(*(asyncio.to_thread(worker.join) for worker in workers))
        await model.close()
        model._scheduler.check()
    counts = model.statistics.snapshot()
    assert codes <= ENDS
    assert len(outcomes) == sum(map(len, threads))
    assert counts.success.count + counts.fail.count == len(outcomes)
    assert sum(counts.failures.values()) == counts.fail.count
    # a cancel that comes between counting and delivery leaves a success that nobody read
    assert counts.success.count >= outcomes.count("answered")
    assert counts.execution_count == sum(batch.compute_infer.count for batch in counts.batch_stats.values())
    num_executed = sum(rows * batch.compute_infer.count for rows, batch in counts.batch_stats.items())
    assert sum(answered) <= counts.inference_count <= num_executed
    assert counts.success.ns >= counts.queue.ns + counts.compute_infer.ns - 1000 * len(outcomes)
