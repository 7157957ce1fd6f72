"""The step-time model and the pace it serves."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.pace import Pace
from scheduler.step_time import StepTimeModel, num_pairs

A, B, C = 0.010, 0.0008, 1e-7


def true_time(tokens: int, pairs: float) -> float:
    return A + B * tokens + C * pairs


def learned(steps: int = 400, noise: float = 0.0, seed: int = 1) -> StepTimeModel:
    rng, model = random.Random(seed), StepTimeModel()
    for step in range(steps):
        decoding = rng.randrange(1, 30)
        tokens, pairs = decoding, decoding * rng.randrange(10, 1000)
        if step % 3 == 0:
            chunk = rng.randrange(16, 256)
            tokens, pairs = tokens + chunk, pairs + num_pairs(chunk, chunk + rng.randrange(500))
        seconds = true_time(tokens, pairs) * (1 + noise * rng.uniform(-1, 1))
        model.observe(tokens, pairs, seconds, has_prefill=step % 3 == 0)
    return model


def test_it_learns_the_machine():
    assert learned().coefficients == pytest.approx((A, B, C), rel=0.05)


def test_noise_is_averaged():
    model = learned(noise=0.2)
    for tokens, pairs in ((1, 100), (30, 9000), (256, 40000)):
        assert model.predict(tokens, pairs) == pytest.approx(true_time(tokens, pairs), rel=0.1)


def test_a_hiccup_of_the_machine_changes_little():
    model = learned()
    model.observe(10, 1000, 5.0, has_prefill=False)
    assert model.predict(10, 1000) < 1.5 * true_time(10, 1000)


def test_a_thousand_decode_steps_do_not_make_it_forget_prefill():
    model = learned()
    for _ in range(1000):
        model.observe(4, 800, true_time(4, 800), has_prefill=False)
    assert model.predict(260, 20000) == pytest.approx(true_time(260, 20000), rel=0.1)


def test_it_follows_a_machine_that_becomes_slower():
    model = learned()
    for _ in range(300):
        model.observe(8, 800, 2 * true_time(8, 800), has_prefill=False)
    assert model.predict(8, 800) == pytest.approx(2 * true_time(8, 800), rel=0.1)


@given(st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 10**7), st.floats(0, 10), st.booleans()), max_size=30))
def test_whatever_it_sees_its_answers_make_sense(samples):
    model = StepTimeModel()
    for tokens, pairs, seconds, has_prefill in samples:
        model.observe(tokens, pairs, seconds, has_prefill=has_prefill)
    assert min(model.coefficients) >= 0
    assert model.largest_chunk(0.1, 100) >= model.largest_chunk(0.05, 100) >= 0


@given(st.floats(1e-3, 1), st.integers(0, 5000))
def test_the_largest_chunk_takes_the_time_it_is_given(seconds, context):
    model = learned(40)
    chunk = model.largest_chunk(seconds, context)
    _, b, c = model.coefficients
    assert b * chunk + c * num_pairs(chunk, context + chunk) == pytest.approx(seconds + c * chunk / 2, rel=0.01)


def test_pairs_are_those_of_a_causal_mask():
    assert num_pairs(1, 7) == 7
    assert num_pairs(3, 5) == 3 + 4 + 5


def test_one_prompt_at_most_doubles_the_step():
    assert Pace().step_seconds(0.03, num_decoding=8, num_prefilling=1) == 0.06


def test_many_prompts_slow_streams_down_only_to_reading_pace():
    assert Pace().step_seconds(0.01, num_decoding=2, num_prefilling=6) == pytest.approx(0.06)
    assert Pace().step_seconds(0.03, num_decoding=8, num_prefilling=20) == pytest.approx(0.1)
    assert Pace().step_seconds(0.08, num_decoding=8, num_prefilling=20) == pytest.approx(0.16)


def test_a_target_is_kept_while_anything_streams():
    pace = Pace(itl_target=0.04)
    assert pace.step_seconds(0.03, num_decoding=1, num_prefilling=50) == 0.04
    assert pace.step_seconds(0.03, num_decoding=0, num_prefilling=50) > 0.04
