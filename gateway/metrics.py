"""The scrape: every metric of the server.

`nv_*` are Triton's names, `vllm:*` vLLM's, `tidegate_*` our own; custom models add theirs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from backends.api.base import LiveModel
from gateway.custom_metrics import custom_families
from gateway.metrics_engine import EngineMetrics
from gateway.metrics_host import Gpus, Periodic, Processor, cache_families, pinned_memory_families
from gateway.metrics_models import Measured, families
from gateway.metrics_summaries import Summaries
from scheduler.response_cache import LocalCache, ResponseCache


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """What is shown; `interval` is in seconds, between two looks at the machine."""

    counter_latencies: bool = True
    histogram_latencies: bool = False
    summary_latencies: bool = False
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)
    cpu: bool = False
    gpu: bool = False
    interval: float = 2.0


class Metrics:
    """The registry's owner. `models` names the live models at scrape time. Scrapes come one at a time."""

    def __init__(
        self,
        models: Callable[[], Iterable[LiveModel]],
        options: MetricsOptions = MetricsOptions(),
        cache: ResponseCache | None = None,
    ) -> None:
        self._models = models
        self._options = options
        self._cache = cache
        self._registry = CollectorRegistry()
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # a `_created` series beside each counter doubles a scrape for nothing
        self.engines = EngineMetrics(self._registry)
        self._summaries = Summaries(options.quantiles) if options.summary_latencies else None
        readers = [*([Processor().families] if options.cpu else ()), *([Gpus().families] if options.gpu else ())]
        self._machine = [Periodic(read, options.interval) for read in readers]

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        models = list(self._models())
        measured = [found for model in models if (found := Measured.of(model)) is not None]
        options = self._options
        parts = [prometheus.generate_latest(self._registry).decode()]
        parts += families(
            measured,
            counter_latencies=options.counter_latencies,
            histogram_latencies=options.histogram_latencies,
        )
        parts += self._summaries.families(measured) if self._summaries is not None else ()
        parts += custom_families(models)
        parts += cache_families(self._cache) if isinstance(self._cache, LocalCache) else ()
        parts += pinned_memory_families()
        for part in self._machine:
            parts += part.families()
        return "".join(parts)

    def routes(self) -> list[BaseRoute]:
        async def scrape(request: Request) -> Response:
            return Response(self.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

        return [Route("/metrics", scrape), Route("/metrics/", scrape)]
