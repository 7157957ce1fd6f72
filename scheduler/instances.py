"""A model's instances: where they run, and the thread each one lives on."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from backends.api.base import Placement
from backends.api.errors import Code, ServingError
from backends.api.model_config import InstanceGroup, ModelConfig

_KINDS = {"KIND_CPU": "CPU", "KIND_GPU": "GPU", "KIND_MODEL": "MODEL"}


def placements(config: ModelConfig, num_gpus: int = 0) -> list[tuple[InstanceGroup, Placement]]:
    """Every instance `config` asks for; `num_gpus` are the GPUs its backend can use.

    A group's count is for each GPU it lists (all, when it lists none), or in all on the CPU. KIND_AUTO is the GPUs
    where there are any. Raises ServingError(INVALID) for a GPU that is not there.
    """
    groups = config.instance_groups or (InstanceGroup(),)
    placed: list[tuple[InstanceGroup, Placement]] = []
    for number, group in enumerate(groups):
        name = group.name or f"{config.name}_{number}"
        devices = _devices(config.name, name, group, num_gpus)
        kinds = [(device, turn) for device in devices for turn in range(group.count)]
        kind = _KINDS.get(group.kind, "GPU" if num_gpus or group.gpus else "CPU")
        placed += [(group, Placement(f"{name}_{index}", kind, device)) for index, (device, _) in enumerate(kinds)]
    return placed


def _devices(model: str, name: str, group: InstanceGroup, num_gpus: int) -> Sequence[int]:
    wants_gpu = group.kind == "KIND_GPU" or (group.kind == "KIND_AUTO" and (num_gpus > 0 or bool(group.gpus)))
    if not wants_gpu:
        return (0,)
    for gpu in group.gpus:
        if not 0 <= gpu < num_gpus:
            raise ServingError(
                Code.INVALID,
                f"instance group {name} of model {model} specifies invalid or unsupported gpu id {gpu}, "
                f"the backend has {num_gpus} GPU(s)",
            )
    if num_gpus == 0:
        raise ServingError(
            Code.INVALID, f"instance group {name} of model {model} has kind {group.kind} but no GPUs are available"
        )
    return group.gpus or range(num_gpus)


class _Instance(Protocol):
    def close(self) -> None: ...


InstanceT = TypeVar("InstanceT", bound=_Instance)


class InstanceThread(Generic[InstanceT]):
    """One instance on one thread: made there, used there and closed there.

    `serve` runs the instance until there is no more work. `ready` completes when the instance has been made
    (and warmed up, which is `make`'s business) and fails with what stopped it.
    """

    def __init__(self, placement: Placement, make: Callable[[], InstanceT], serve: Callable[[InstanceT], None]) -> None:
        self.placement = placement
        self.ready: Future[None] = Future()
        self._go = threading.Event()
        self._wanted = True
        self._make = make
        self._serve = serve
        # daemon: a model that never comes back must not keep a process from exiting
        self._thread = threading.Thread(target=self._run, name=placement.name, daemon=True)
        self._thread.start()

    def go(self) -> None:
        """Start to serve, once `ready`."""
        self._go.set()

    def abandon(self) -> None:
        """Close the instance without serving: the load failed elsewhere."""
        self._wanted = False
        self._go.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            instance = self._make()
        except BaseException as error:  # a library may raise anything; the loader waits for it
            self.ready.set_exception(error)
            return
        self.ready.set_result(None)
        try:
            self._go.wait()
            if self._wanted:
                self._serve(instance)
        finally:
            instance.close()
