"""A serving custom model."""

import asyncio
from pathlib import Path

from backends.api.base import RequestBackend, TensorBackend
from backends.api.model_config import InstanceGroup, ModelConfig
from backends.python.backend import PythonBackend
from backends.python.custom_metrics import CustomMetrics
from backends.python.instance import PythonInstance
from scheduler.alarm import Alarm
from scheduler.rate_limit import RateLimiter
from scheduler.response_cache import ResponseCache
from scheduler.sequence import SequenceScheduler
from scheduler.tensor_model import TensorModel

_READINESS_PATIENCE = 5.0


class PythonModel(TensorModel):
    """A `LiveModel` of custom Python code: `TensorModel`'s queue before processes that take requests as they are."""

    def __init__(
        self,
        config: ModelConfig,
        version: str,
        backend: TensorBackend | RequestBackend,
        warmup_folder: Path,
        *,
        alarm: Alarm,
        cache: ResponseCache | None = None,
        limiter: RateLimiter | None = None,
    ) -> None:
        assert isinstance(backend, PythonBackend)
        super().__init__(config, version, backend, warmup_folder, alarm=alarm, cache=cache, limiter=limiter)
        self.backend = backend
        backend.supervisor.on_end = self.instance_ended
        backend.supervisor.on_down = self.suspend
        backend.supervisor.on_up = self.resume

    async def set_instances(self, groups: tuple[InstanceGroup, ...]) -> None:
        before = self.config.instance_groups
        self.backend.set_groups(groups)
        try:
            await super().set_instances(groups)
        except BaseException:
            self.backend.set_groups(before)
            raise

    def instance_ended(self, instance: PythonInstance) -> None:
        """What its process knew is gone, of sequences too. On the instance's thread."""
        if isinstance(self._scheduler, SequenceScheduler):
            self._scheduler.lose(instance.gate)

    async def check_ready(self) -> bool:
        """What the model's own `is_ready` says in every instance; one that does not answer in time is not ready."""
        answers = [asyncio.wrap_future(instance.ask_ready()) for instance in self.backend.instances]
        try:
            return all(await asyncio.wait_for(asyncio.gather(*answers), _READINESS_PATIENCE))
        except TimeoutError:
            return False

    @property
    def custom_metrics(self) -> CustomMetrics:
        return self.backend.metrics
