"""How much prefill a step may carry beside running streams."""

from dataclasses import dataclass

_COMFORT = 0.1  # seconds a token: still faster than people read
_STRETCH = 1.6  # of a step by one prompt: steps beside it vary more, and the slowest hundredth shall at most double
_LEAST_STRETCH = 1.25  # of a step by prefill, whatever the target
_MAX_STEP = 0.25  # seconds: how long an arrival or an abort may have to wait for a step to end


@dataclass(frozen=True, slots=True)
class Pace:
    """`itl_target` is the inter-token time in seconds that running streams shall keep; None adapts to the machine.

    Prefill must not starve: a step takes at least `min_chunk` tokens of a prompt, unless a larger chunk goes through the
    model's layers bit by bit, and a part of the time is prefill's where the streams alone miss the target.
    """

    itl_target: float | None = None
    min_chunk: int = 8

    def step_seconds(self, decode_seconds: float, num_decoding: int, num_prefilling: int) -> float:
        """How long a step may take that brings `num_decoding` streams forward and has prompts to prefill.

        `decode_seconds` is its time without prefill. Without a target, one prompt may stretch the step by `_STRETCH`. With
        more of them waiting the streams give way in proportion, up to a comfortable reading pace, since every prompt
        that is done makes the following steps carry one stream more. With no stream running only the time until
        the engine listens again counts.
        """
        if not num_decoding:
            return _MAX_STEP
        if self.itl_target is not None:
            return max(self.itl_target, _LEAST_STRETCH * decode_seconds)
        return max(_STRETCH * decode_seconds, min(num_prefilling * decode_seconds, _COMFORT))
