"""What the forms that an engine runs in, a child process or a thread, know of it."""

from typing import Protocol

from scheduler.frames import Commands, EngineLimits, StepFrame


class SteppedEngine(Protocol):
    """An engine of tokens or of vectors: takes commands, and brings its requests forward a step at a time."""

    @property
    def limits(self) -> EngineLimits: ...

    @property
    def has_work(self) -> bool:
        """Whether a step would bring something."""
        ...

    def apply(self, commands: Commands) -> bool:
        """Do what a client wants. True when the engine shall end."""
        ...

    def step(self) -> StepFrame: ...

    def close(self) -> None: ...
