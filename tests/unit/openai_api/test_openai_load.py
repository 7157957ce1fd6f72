"""The pure parts of the load generator."""

from itertools import islice

import pytest

from bench.chat_client import has_text
from bench.chat_load import Call, Shape, arrivals, over_runs, percentile, summary, token_prompts, word_prompts


def test_prompts_have_their_length_share_their_beginning_and_differ_behind_it():
    prompts = list(islice(token_prompts(Shape(prompt=64, output=8, shared=48), 10, 1000, seed=3), 20))
    assert {len(prompt) for prompt in prompts} == {64}
    assert {tuple(prompt[:48]) for prompt in prompts} == {tuple(prompts[0][:48])}
    assert len({tuple(prompt) for prompt in prompts}) == 20
    assert all(10 <= token < 1000 for prompt in prompts for token in prompt)


def test_a_seed_makes_the_same_prompts_again():
    shape = Shape(prompt=16, output=8)
    assert next(token_prompts(shape, 0, 99, seed=1)) == next(token_prompts(shape, 0, 99, seed=1))
    assert next(token_prompts(shape, 0, 99, seed=1)) != next(token_prompts(shape, 0, 99, seed=2))
    assert len(next(word_prompts(30, 10, seed=1)).split()) == 30


def test_arrivals_come_at_the_rate_asked_for():
    times = arrivals(rate=50, count=5000, seed=1)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 3), (90, 5), (100, 5)])
def test_a_percentile_is_one_of_the_values(percent, value):
    assert percentile([5, 1, 4, 2, 3], percent) == value


def test_a_run_in_numbers():
    good = Call(sent=10.0, events=[10.5, 10.6, 10.8], prompt_tokens=7, completion_tokens=3)
    found = summary([good, Call(sent=10.2, error="refused")], end=12.0)
    assert (found["requests"], found["errors"], found["seconds"]) == (2, 1, 2.0)
    assert found["tokens_per_s"] == 1.5
    assert found["ttft_ms_p50"] == pytest.approx(500)
    assert found["itl_ms_p50"] == pytest.approx(100)
    assert found["itl_ms_max"] == pytest.approx(200)
    assert found["e2e_ms_p99"] == pytest.approx(800)


def test_runs_are_shown_with_their_spread():
    runs = [{"x": 3.0}, {"x": 1.0}, {"x": 2.0}]
    assert over_runs(runs) == {"x": {"median": 2.0, "min": 1.0, "max": 3.0}}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"choices":[{"delta":{"content":"a"}}]}', True),
        (b'{"choices":[{"delta": {"content": "a"}}]}', True),
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'{"choices":[{"delta":{"role":"assistant","content":null}}]}', False),
        (b'{"choices":[{"delta":{}}]}', False),
        (b'{"choices":[{"index":0,"text":" b"}]}', True),
        (b'{"choices":[{"index":0,"text":""}]}', False),
    ],
)
def test_chunks_with_text_are_told_by_their_bytes(data, expected):
    assert has_text(data) is expected
