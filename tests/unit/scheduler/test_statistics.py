"""The statistics of a model are conserved and read as one piece."""

import threading

import pytest

from backends.api.request import Times
from backends.api.statistics import Failure, ModelStatistics


def times(start: float = 1.0) -> Times:
    return Times(
        received=start,
        queued=start + 0.1,
        compute_start=start + 0.3,
        compute_input_end=start + 0.4,
        compute_output_start=start + 0.9,
        compute_end=start + 1.0,
    )


def test_each_request_of_a_batch_counts_and_the_batch_counts_once():
    statistics = ModelStatistics()
    batch = [times(), times()]
    statistics.executed(6, batch[0])
    statistics.succeeded(batch, 6)
    counts = statistics.snapshot()
    assert (counts.inference_count, counts.execution_count, counts.success.count) == (6, 1, 2)
    assert counts.batch_stats[6].compute_infer.count == 1
    assert counts.batch_stats[6].compute_infer.ns == pytest.approx(0.5e9)
    assert counts.compute_infer.ns == pytest.approx(1.0e9)
    assert counts.queue.ns == pytest.approx(0.4e9)
    assert counts.success.ns == pytest.approx(2.0e9)
    assert counts.last_inference > 0


def test_failures_have_their_reasons_and_every_reason_exists_from_the_start():
    statistics = ModelStatistics()
    assert statistics.snapshot().failures == dict.fromkeys(Failure, 0)
    statistics.failed(Failure.REJECTED, 0.5)
    counts = statistics.snapshot()
    assert (counts.fail.count, counts.fail.ns, counts.failures[Failure.REJECTED]) == (1, 500_000_000, 1)


def test_a_request_that_ran_without_an_answer_counts_its_waiting_and_computing():
    statistics = ModelStatistics()
    statistics.failed(Failure.CANCELED, 1.0, executed=times())
    counts = statistics.snapshot()
    assert (counts.success.count, counts.fail.count, counts.failures[Failure.CANCELED]) == (0, 1, 1)
    durations = (counts.queue, counts.compute_input, counts.compute_infer, counts.compute_output)
    assert [each.count for each in durations] == [1, 1, 1, 1]
    assert counts.compute_infer.ns == pytest.approx(0.5e9)


def test_a_cache_hit_is_a_success_without_inference():
    statistics = ModelStatistics()
    statistics.hit(Times(received=1.0, queued=1.0, compute_end=1.5), 0.25)
    statistics.missed(0.125)
    counts = statistics.snapshot()
    assert (counts.success.count, counts.success.ns, counts.inference_count) == (1, 500_000_000, 0)
    assert (counts.cache_hit.ns, counts.cache_miss.ns) == (250_000_000, 125_000_000)


def test_answers_of_a_decoupled_model_are_counted_by_their_place():
    statistics = ModelStatistics()
    statistics.responded(0, "success", infer=0.25, output=0.5)
    statistics.responded(1, "empty_response")
    counts = statistics.snapshot()
    assert counts.response_stats[0].success.ns == 750_000_000
    assert counts.response_stats[1].empty_response.count == 1


def test_a_reader_never_sees_half_an_update_and_nothing_is_lost():
    statistics, done = ModelStatistics(), threading.Event()

    def write() -> None:
        for _ in range(500):
            statistics.succeeded([times()], 1)

    def read() -> None:
        while not done.is_set():
            counts = statistics.snapshot()
            assert counts.success.count == counts.queue.count == counts.compute_infer.count

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write) for _ in range(3)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert statistics.snapshot().success.count == 1500
