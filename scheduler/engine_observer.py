"""What there is to know about an engine from outside: the one place where metrics are fed from."""

from backends.api.errors import ServingError
from backends.api.request import FinishReason, GenerateRequest
from scheduler.frames import StepFrame


class EngineObserver:
    """Told of every step, and of every request it took exactly one end. Does nothing; override what you need.

    Called where the engine's client lives, between two frames: be quick. `request.times` is written before.
    """

    def state(self, state: str, reason: str) -> None:
        """The engine is "starting", "ready", "restarting" (`reason` says why) or "closed"."""

    def progress(self, what: str, done: float, total: float) -> None:
        """How far loading is; `total` 0.0 where it is unknown."""

    def step(self, frame: StepFrame) -> None:
        """A step was delivered: its statistics, and its block events where they are recorded."""

    def tokens(self, request: GenerateRequest, count: int, gap: float | None) -> None:
        """`count` new tokens, `gap` seconds after those before; None for the request's first."""

    def ended(self, request: GenerateRequest, num_tokens: int, end: FinishReason | ServingError) -> None:
        """The request ended after `num_tokens` tokens. A reader that left is an error CANCELLED."""
