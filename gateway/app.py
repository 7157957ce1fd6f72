"""The composition root: builds the parts, starts them in order, and stops them in the other."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path

import uvloop
from fastapi import FastAPI

from backends.api.errors import ServingError
from backends.api.request import InferenceRequest
from backends.python.environment import Environments
from gateway import health, kserve_http, logs
from gateway.admission import Gate
from gateway.compound_settings import (
    backend_settings,
    forward_pattern,
    grpc_options,
    metrics_options,
    rate_limiter,
    response_cache,
    restrictions,
    tls_context,
    trace_settings,
)
from gateway.console_page import console_routes
from gateway.framework_errors import HANDLERS
from gateway.front_door import direct_infer, guarded, guarded_metrics, make_gate
from gateway.kserve_controls import LogControl, LogSettings, TraceControl
from gateway.kserve_grpc import GrpcServer
from gateway.kserve_http_infer import HotPath
from gateway.kserve_service import Service
from gateway.listener import HttpListener
from gateway.metrics import Metrics
from gateway.request_log import log_end
from gateway.settings import Settings
from gateway.shared_memory import CudaSharedMemory, SharedMemory
from gateway.tracing import Tracer
from model_repository.options import RepositoryOptions
from model_repository.pbtxt import parse_json, to_json, to_proto
from model_repository.repository import Repository
from openai_api.options import OpenAIOptions
from openai_api.routes import OpenAI
from scheduler.loader import ModelLoader, PythonParts

log = logging.getLogger("tidegate.server")


def run(settings: Settings, notes: Sequence[str] = ()) -> int:
    """Serve until a signal; the exit code: 0 after a clean stop, 1 when the start failed. `notes` on the flags are logged."""
    output = logs.set_up(settings)
    for note in notes:
        log.info("%s", note)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, output))


async def _serve(settings: Settings, output: logs.LogOutput) -> int:
    stop = asyncio.Event()
    _on_signals(stop)
    server = Server(settings, output.apply)
    gc.freeze()  # what is here stays: a collection that looks at it all, now and then, holds every answer up for 50 ms
    try:
        await server.start(stop)
    except ServingError as error:
        for line in error.message.splitlines():
            log.error("%s", line)
        await server.close(grace=0.0)
        return 1
    await stop.wait()
    log.info("stopping: no new requests; those under way have %g s", settings.exit_timeout_secs)
    await server.close(settings.exit_timeout_secs)
    log.info("stopped")
    return 0


def _on_signals(stop: asyncio.Event) -> None:
    """The first SIGTERM or SIGINT asks for a clean stop, a second one ends the process at once."""

    def received(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)


class Server:
    """All that one process serves. `close` may be called in any state, once."""

    def __init__(self, settings: Settings, apply_logs: Callable[[LogSettings], None] = lambda settings: None) -> None:
        """`apply_logs` is told when a client changes what is logged."""
        self._settings = settings
        self._stopping = False
        self._start: asyncio.Task[dict[str, ServingError]] | None = None
        self._grpc_started = False
        version = metadata.version("tidegate")
        self.repository: Repository  # made below: what is made before asks for it later
        cache = response_cache(settings.cache_config)
        self.metrics = Metrics(lambda: self.repository.live_models(), metrics_options(settings), cache)
        self._loader = ModelLoader(
            self.metrics.engines.observer,
            cache=cache,
            backend_settings=backend_settings(settings.backend_config),
            limiter=rate_limiter(settings.rate_limit, settings.rate_limit_resource),
            cache_folder=str(_cache_folder("kernels")),
            python=PythonParts(
                models=lambda: self.repository,
                config_to_json=to_json,
                config_of_json=parse_json,
                environments=Environments(
                    _cache_folder("environments"), allow_requirements=settings.allow_model_requirements
                ),
            ),
            find=lambda name, version, *, home, namespace: self.repository.find_step(
                name, version, home=home, namespace=namespace
            ),
        )
        self.repository = Repository(_repository_options(settings), self._loader)
        gate = make_gate(settings)
        find, ready_models = self.repository.find, self.repository.ready_models
        if gate is not None:  # this face learns the model's name from the body, where no path can be checked
            find, ready_models = partial(gate.find_permitted, find), partial(gate.only_permitted, ready_models)
        self.openai = OpenAI(find, ready_models, _openai_options(settings))
        trace = TraceControl(trace_settings(settings.trace_config))
        self._tracer = Tracer(trace)
        service = Service(
            repository=self.repository,
            config_to_json=to_json,
            config_to_proto=to_proto,
            server_name=settings.id,
            server_version=version,
            max_body_bytes=settings.http_max_input_size,
            system_memory=SharedMemory(allowed=settings.allow_client_shm),
            cuda_memory=CudaSharedMemory(allowed=settings.allow_client_shm),
            is_stopping=lambda: self._stopping,
            restrictions=restrictions("--http-restricted-api", settings.http_restricted_api),
            trace=trace,
            logging=LogControl(logs.log_settings(settings), apply_logs),
            forwarded_headers=forward_pattern("--http-header-forward-pattern", settings.http_header_forward_pattern),
            gate=gate,
            on_end=self._ended,
        )
        app = _application(service, self.metrics, self.openai, with_console=settings.allow_console)
        front = guarded(HotPath(app, service), gate, settings)
        tls = tls_context(settings.http_server_cert, settings.http_server_key)
        self.http = HttpListener(
            front,
            settings.http_address,
            settings.http_port,
            "HTTPService",
            tls,
            direct_infer(service, settings),
            reuse_port=settings.reuse_http_port,
        )
        grpc_restrictions = restrictions("--grpc-restricted-protocol", settings.grpc_restricted_protocol)
        forwarded = forward_pattern("--grpc-header-forward-pattern", settings.grpc_header_forward_pattern)
        grpc_service = replace(service, restrictions=grpc_restrictions, forwarded_headers=forwarded)
        self.grpc = GrpcServer(grpc_service, asyncio.get_running_loop(), grpc_options(settings))
        self.metrics_http = _metrics_listener(self.metrics, gate, settings)

    async def start(self, stop: asyncio.Event) -> None:
        """Open the ports, then load the models; return when both are done or `stop` is set.

        Ports first: liveness and "loading" are visible from the start. Raises ServingError for a port that is taken
        and, with exit_on_error, for a model that does not load.
        """
        if self._settings.allow_http:
            await self.http.start()
            log.info("Started HTTPService at %s", self.http.url)
        if self._settings.allow_grpc:
            port = self.grpc.start()
            self._grpc_started = True
            log.info("Started GRPCInferenceService at %s:%d", self._settings.grpc_address, port)
        if self._settings.allow_metrics:
            await self.metrics_http.start()
            log.info("Started Metrics Service at %s", self.metrics_http.url)
        self._start = asyncio.create_task(self.repository.start(), name="load models")
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({self._start, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if self._start.done():
            for name, error in self._start.result().items():
                log.error("model '%s' failed to load: %s", name, error.message.rstrip())
            log.info("ready: %s", ", ".join(_shown(self.repository)) or "no models")

    async def close(self, grace: float) -> None:
        """Refuse new work, give requests under way `grace` seconds, end the rest with an error, free everything."""
        self._stopping = True
        if self._start is not None and not self._start.done():
            self._start.cancel()
            await asyncio.gather(self._start, return_exceptions=True)
        # together: the models refuse new work at once, by whatever door it comes, while the answers under way end
        await asyncio.gather(self.openai.drain(grace), self._close_models(grace + 5.0))
        if self._grpc_started:
            await self.grpc.stop(grace_s=1.0)
        await self.http.stop(grace=1.0)
        await self.metrics_http.stop(grace=1.0)
        self._tracer.close()

    def _ended(self, request: InferenceRequest, error: ServingError | None) -> None:
        log_end(request, error)
        self._tracer.ended(request, error)

    async def _close_models(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.repository.close(), seconds)
        except TimeoutError:
            log.error("some models did not close in time")


def _application(service: Service, metrics: Metrics, openai: OpenAI, *, with_console: bool) -> FastAPI:
    """Every route of the HTTP port."""
    version = service.server_version
    app = FastAPI(title="Tidegate", version=version, redoc_url=None, exception_handlers=HANDLERS)
    app.router.routes += [
        *health.routes(service.is_server_ready, version),
        *metrics.routes(),
        *(console_routes() if with_console else ()),
        *kserve_http.routes(service),
        *openai.routes(),
    ]
    return app


def _metrics_listener(metrics: Metrics, gate: Gate | None, settings: Settings) -> HttpListener:
    app = FastAPI(openapi_url=None)
    app.router.routes += metrics.routes()
    address = settings.metrics_address or settings.http_address
    return HttpListener(guarded_metrics(app, gate, settings), address, settings.metrics_port, "Metrics Service")


def _cache_folder(kind: str) -> Path:
    """Where compiled kernels and custom models' environments are kept between starts."""
    return Path.home() / ".cache" / "tidegate" / kind


def _shown(repository: Repository) -> list[str]:
    return [f"{model.config.name}:{model.version}" for model in repository.ready_models()]


def _repository_options(settings: Settings) -> RepositoryOptions:
    return RepositoryOptions(
        paths=tuple(Path(path) for path in settings.model_repository),
        mode=settings.model_control_mode,
        load_models=settings.load_model,
        poll_seconds=settings.repository_poll_secs,
        config_name=settings.model_config_name,
        load_threads=settings.model_load_thread_count,
        load_retries=settings.model_load_retry_count,
        namespacing=settings.model_namespacing,
        exit_on_error=settings.exit_on_error,
        strict_readiness=settings.strict_readiness,
        auto_complete=not settings.disable_auto_complete_config,
    )


def _openai_options(settings: Settings) -> OpenAIOptions:
    return OpenAIOptions(
        max_body_bytes=settings.http_max_input_size,
        keep_alive_interval=settings.sse_keep_alive_interval,
        log_request_chars=settings.log_request_chars,
    )
