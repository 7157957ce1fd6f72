"""How the processes of a model's instances come back when they have died."""

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from backends.api.errors import Code, ServingError
from backends.python.frames import Initialized
from backends.python.process import ModelProcess

if TYPE_CHECKING:
    from backends.python.instance import PythonInstance

_LOG = logging.getLogger("tidegate.model")


class Supervisor:
    """What the instances of a model share: whether any of them is alive, and how a dead one comes back.

    A process is started again after `first` seconds, doubled with every further failure up to `longest`, anew after
    a life of `stable` seconds. When none is left and a start has failed, the model is down until one succeeds.
    """

    def __init__(self, *, first: float = 0.1, longest: float = 30.0, stable: float = 30.0) -> None:
        self.stopping = threading.Event()
        self.on_end: Callable[[PythonInstance], None] = lambda instance: None  # on the instance's thread
        self.on_down: Callable[[ServingError], None] = lambda error: None
        self.on_up: Callable[[], None] = lambda: None
        self._first, self._longest, self._stable = first, longest, stable
        self.instances: list[PythonInstance] = []  # replaced, never written into: any thread may look
        self._lock = threading.Lock()
        self._alive: set[PythonInstance] = set()
        self._num_failures: dict[PythonInstance, int] = {}
        self.num_restarts = 0

    def started(self, instance: "PythonInstance") -> None:
        with self._lock:
            self.instances = [*self.instances, instance]
            self._alive.add(instance)

    def left(self, instance: "PythonInstance") -> None:
        """It is closed."""
        with self._lock:
            self.instances = [each for each in self.instances if each is not instance]
            self._alive.discard(instance)
            self._num_failures.pop(instance, None)

    def pause(self, fd: int, timeout: float | None) -> None:
        """Wait for the eventfd and reset it, for an instance that has no process any more."""
        if select.select([fd], [], [], timeout)[0]:
            os.eventfd_read(fd)

    def restart(
        self,
        instance: "PythonInstance",
        life: float,
        start: Callable[["PythonInstance"], tuple[ModelProcess, Initialized]],
    ) -> tuple[ModelProcess, Initialized] | None:
        """A new process once one has started; None when the model is being closed."""
        with self._lock:
            self._alive.discard(instance)
        failures = 0 if life >= self._stable else self._num_failures.get(instance, 0)
        while True:
            delay = min(self._first * 2.0 ** min(failures, 32), self._longest) if failures else 0.0
            failures += 1
            self._num_failures[instance] = failures
            if self.stopping.wait(delay):
                return None
            try:
                started = start(instance)
            except ServingError as error:
                instance.lose()
                if self.stopping.is_set():
                    return None
                _LOG.error("%s: cannot be started again: %s", instance.placement.name, error.message)
                self._failed(instance, error)
                continue
            self._succeeded(instance)
            return started

    def _failed(self, instance: "PythonInstance", error: ServingError) -> None:
        with self._lock:
            if self._alive:
                return
        name = instance.placement.name
        self.on_down(
            ServingError(
                Code.UNAVAILABLE,
                f"Stub process '{name}' is not healthy. It cannot be started again: {error.message}",
                reason="process_ended",
                retry_after=1.0,
            )
        )

    def _succeeded(self, instance: "PythonInstance") -> None:
        with self._lock:
            self._alive.add(instance)
            self.num_restarts += 1
        self.on_up()
