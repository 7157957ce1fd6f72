from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from gateway.counted_histogram import CountedHistogram

BOUNDS = (0.125, 0.5, 1, 2.5)
VALUES = st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 2.0, 4.0])  # whose sums are exact in any order


@given(st.lists(st.tuples(VALUES, st.integers(1, 5))))
def test_it_is_scraped_as_a_histogram_that_took_each_value_by_itself(observed: list[tuple[float, int]]) -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    one_by_one = Histogram("gap_seconds", "Gaps", ("model",), registry=theirs, buckets=BOUNDS).labels("m")
    counted = CountedHistogram("gap_seconds", "Gaps", ("model",), BOUNDS, ours).labels("m")
    for value, count in observed:
        for _ in range(count):
            one_by_one.observe(value)
        counted.observe(value, count)
    expected = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == expected
