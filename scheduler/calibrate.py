"""The first steps of a runner, before anybody waits for them: they warm it up and teach the step-time model."""

import time
from collections.abc import Callable

from backends.api.errors import Code, ServingError
from backends.api.request import SamplingParams
from backends.lm.step import ModelRunner
from scheduler.engine import Engine
from scheduler.engine_options import EngineOptions
from scheduler.frames import NewRequest
from scheduler.step_time import StepTimeModel

_PROMPTS = (8, 64, 192)  # tokens: far enough apart for a line through them, together a fraction of a second
_NUM_TOKENS = 4


def calibrate(
    runner: ModelRunner, options: EngineOptions, clock: Callable[[], float] = time.monotonic
) -> StepTimeModel:
    """A model of `runner`'s step time, from a few steps on prompts of made-up tokens.

    Each size runs twice and counts once: first steps compile, allocate and fill caches. Raises ServingError(INTERNAL)
    when the runner cannot do them, so that a model that cannot serve is never called ready.
    """
    times = StepTimeModel()
    for model in (StepTimeModel(), times):
        engine = Engine(runner, options, clock=clock, times=model)
        for length in _PROMPTS:
            _run_one(engine, min(length, engine.schedule.max_len - _NUM_TOKENS), runner.vocab_size)
    return times


def _run_one(engine: Engine, length: int, vocab_size: int) -> None:
    if length < 1:
        return
    sampling = SamplingParams(max_tokens=_NUM_TOKENS, temperature=0.0, ignore_eos=True)
    prompt = [(position * 31 + length) % vocab_size for position in range(length)]
    engine.add(NewRequest(length, prompt, sampling, 0, 0.0, None, ""))
    while engine.has_work:
        for _, failure in engine.step().failures:
            raise ServingError(Code.INTERNAL, f"the model's first steps failed: {failure.message}")
