"""The step-time model and the pace it serves."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.pace import Pace
from scheduler.step_time import StepLoad, StepTimeModel, chunk_load, num_pairs

A, B, C, D = 0.010, 0.0008, 1e-7, 4e-7


def true_time(load: StepLoad) -> float:
    return A + B * load.tokens + C * load.chunk_pairs + D * load.decode_pairs


def learned(steps: int = 400, noise: float = 0.0, seed: int = 1) -> StepTimeModel:
    rng, model = random.Random(seed), StepTimeModel()
    for step in range(steps):
        load = StepLoad()
        for _ in range(rng.randrange(1, 30)):
            load.add_decode(1, rng.randrange(10, 3000))
        if step % 3 == 0:
            chunk = rng.randrange(16, 256)
            load.add_chunk(chunk, chunk + rng.randrange(3000))
        model.observe(load, true_time(load) * (1 + noise * rng.uniform(-1, 1)))
    return model


def test_it_learns_the_machine():
    assert learned().coefficients == pytest.approx((A, B, C, D), rel=0.05)


def test_a_few_chunks_teach_it_what_no_guess_came_near():
    model = StepTimeModel()
    for context in range(100, 3000, 60):
        load = StepLoad(4, decode_pairs=4 * context)
        model.observe(load, 0.007)
    for context in range(200, 2000, 100):
        load = chunk_load(100, context)
        model.observe(load, 0.005 + 0.0005 * 100 + 5e-6 * load.chunk_pairs)
    assert model.coefficients.chunk_pair == pytest.approx(5e-6, rel=0.2)


def test_noise_is_averaged():
    model = learned(noise=0.2)
    for load in (StepLoad(1, 0, 100), StepLoad(30, 0, 9000), StepLoad(256, 40000, 0)):
        assert model.predict(load) == pytest.approx(true_time(load), rel=0.1)


def test_a_hiccup_of_the_machine_changes_little():
    model, load = learned(), StepLoad(10, 0, 1000)
    model.observe(load, 5.0)
    assert model.predict(load) < 1.5 * true_time(load)


def test_a_thousand_decode_steps_do_not_make_it_forget_prefill():
    model, small, large = learned(), StepLoad(4, 0, 800), StepLoad(260, 20000, 800)
    for _ in range(1000):
        model.observe(small, true_time(small))
    assert model.predict(large) == pytest.approx(true_time(large), rel=0.1)


def test_it_follows_a_machine_that_becomes_slower():
    model, load = learned(), StepLoad(8, 0, 800)
    for _ in range(300):
        model.observe(load, 2 * true_time(load))
    assert model.predict(load) == pytest.approx(2 * true_time(load), rel=0.1)


LOADS = st.builds(StepLoad, st.integers(1, 4000), st.floats(0, 1e7), st.floats(0, 1e6))


@given(st.lists(st.tuples(LOADS, st.floats(0, 10)), max_size=30))
@example([(StepLoad(1, 3572548.6875, 798553.5), 0.0)])  # all that is known is one step too short for the clock
def test_whatever_it_sees_its_answers_make_sense(samples):
    model = StepTimeModel()
    for load, seconds in samples:
        model.observe(load, seconds)
    assert min(model.coefficients) >= 0
    assert model.largest_chunk(0.1, 100) >= model.largest_chunk(0.05, 100) >= 0


@given(st.floats(1e-3, 1), st.integers(0, 5000))
def test_the_largest_chunk_takes_the_time_it_is_given(seconds, context):
    model = learned(40)
    chunk = model.largest_chunk(seconds, context)
    _, b, c, _ = model.coefficients
    assert b * chunk + c * num_pairs(chunk, context + chunk) == pytest.approx(seconds + c * chunk / 2, rel=0.01)


def test_pairs_are_those_of_a_causal_mask():
    assert num_pairs(1, 7) == 7
    assert num_pairs(3, 5) == 3 + 4 + 5


def test_one_prompt_does_not_quite_double_the_step():
    assert 0.04 < Pace().step_seconds(0.03, num_decoding=8, num_prefilling=1) < 0.06


def test_many_prompts_slow_streams_down_only_to_reading_pace():
    assert Pace().step_seconds(0.01, num_decoding=2, num_prefilling=6) == pytest.approx(0.06)
    assert Pace().step_seconds(0.03, num_decoding=8, num_prefilling=20) == pytest.approx(0.1)
    assert Pace().step_seconds(0.08, num_decoding=8, num_prefilling=20) == pytest.approx(1.6 * 0.08)


def test_a_target_is_kept_while_anything_streams():
    pace = Pace(itl_target=0.04)
    assert pace.step_seconds(0.03, num_decoding=1, num_prefilling=50) == 0.04
    assert pace.step_seconds(0.03, num_decoding=0, num_prefilling=50) > 0.04
