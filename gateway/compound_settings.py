"""Settings whose value is a little language of Triton's: caches, rate limits, restricted APIs, TLS files."""

import re
import ssl
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from backends.api.errors import ServingError
from gateway.kserve_controls import TraceControl, TraceSettings
from gateway.kserve_grpc import GrpcOptions
from gateway.kserve_service import Restriction
from gateway.metrics import MetricsOptions
from gateway.settings import Settings, SettingsError
from scheduler.rate_limit import RateLimiter, Resource
from scheduler.redis_cache import connect
from scheduler.response_cache import LocalCache, ResponseCache

_BACKEND_SETTINGS = {
    "onnxruntime": ("default-max-batch-size",),
    # the sizes change nothing: shared memory here grows and shrinks as it is needed
    "python": ("stub-timeout-seconds", "shm-default-byte-size", "shm-growth-byte-size", "shm-region-prefix-name"),
}
_METRIC_SWITCHES = ("counter_latencies", "histogram_latencies", "summary_latencies")
_TRACE_NAMES = {
    "file": "trace_file",
    "level": "trace_level",
    "rate": "trace_rate",
    "count": "trace_count",
    "log-frequency": "log_frequency",
}
CATEGORIES = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)


def response_cache(texts: Sequence[str]) -> ResponseCache | None:
    """`local,size=BYTES` or `redis,KEY=VALUE`, each key in a flag of its own or after further commas."""
    values: dict[str, str] = {}
    kinds = set()
    for text in texts:
        kind, *pairs = text.split(",")
        kinds.add(kind)
        values |= dict(_pair("--cache-config", pair) for pair in pairs)
    if not kinds:
        return None
    if kinds == {"local"} and values.keys() == {"size"} and values["size"].isdecimal():
        return LocalCache(int(values["size"]))
    if kinds == {"redis"} and "host" in values and values.get("port", "6379").isdecimal():
        return connect(values["host"], int(values.get("port", "6379")), values.get("user"), values.get("password"))
    raise SettingsError(f"--cache-config: expected local,size=BYTES or redis,host=HOST,..., got '{' '.join(texts)}'")


def rate_limiter(mode: str, texts: Sequence[str]) -> RateLimiter | None:
    if mode == "off":
        if texts:
            raise SettingsError("--rate-limit-resource needs --rate-limit=execution_count")
        return None
    limits: dict[Resource, int] = {}
    for text in texts:
        match = re.fullmatch(r"([^:]+):(\d+)(?::(\d+))?", text)
        if match is None:
            raise SettingsError(f"--rate-limit-resource: expected NAME:COUNT or NAME:COUNT:DEVICE, got '{text}'")
        name, count, device = match.groups()
        limits[name, int(device) if device else -1] = int(count)
    return RateLimiter(limits)


def backend_settings(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """`BACKEND,KEY=VALUE`, or `KEY=VALUE` for all backends that know it: backend -> its settings."""
    result: dict[str, dict[str, str]] = {backend: {} for backend in _BACKEND_SETTINGS}
    for text in texts:
        backend, comma, pair = text.rpartition(",")
        key, value = _pair("--backend-config", pair)
        concerned = [backend] if comma else [name for name, keys in _BACKEND_SETTINGS.items() if key in keys]
        if not concerned or key not in _BACKEND_SETTINGS.get(backend or concerned[0], ()):
            known = "; ".join(f"{name}: {', '.join(keys)}" for name, keys in _BACKEND_SETTINGS.items())
            raise SettingsError(f"--backend-config: nothing here takes '{text}', known are {known}")
        if not value.isdecimal() and key != "shm-region-prefix-name":
            raise SettingsError(f"--backend-config: {key}: expected a whole number, got '{value}'")
        for name in concerned:
            result[name][key] = value
    return result


def metrics_options(settings: Settings) -> MetricsOptions:
    values = dict(_pair("--metrics-config", text) for text in settings.metrics_config)
    switches = {name: _switch(name, values.pop(name)) for name in _METRIC_SWITCHES if name in values}
    quantiles = values.pop("summary_quantiles", "")
    if values:
        known = ", ".join((*_METRIC_SWITCHES, "summary_quantiles"))
        raise SettingsError(f"--metrics-config: unknown setting '{next(iter(values))}', expected one of {known}")
    options = MetricsOptions(
        cpu=settings.allow_cpu_metrics,
        gpu=settings.allow_gpu_metrics,
        interval=settings.metrics_interval_ms / 1000,
    )
    if quantiles:
        options = replace(options, quantiles=tuple(map(_quantile, quantiles.split(","))))
    return replace(options, **switches)  # type: ignore[arg-type]  # the three switches


def _switch(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SettingsError(f"--metrics-config: {name}: expected true or false, got '{text}'")
    return text.lower() == "true"


def _quantile(text: str) -> float:
    """Of QUANTILE:ERROR; the error is what it is."""
    try:
        value = float(text.partition(":")[0])
    except ValueError:
        value = -1.0
    if not 0.0 < value < 1.0:
        raise SettingsError(f"--metrics-config: summary_quantiles: expected 0.5:0.05,..., got '{text}'")
    return value


def trace_settings(texts: Sequence[str]) -> TraceSettings:
    """`mode=triton`, or settings with or without `triton,` before each; several levels may be given."""
    values: dict[str, str] = {}
    levels: list[str] = []
    for text in texts:
        mode, comma, pair = text.rpartition(",")
        name, value = _pair("--trace-config", pair)
        if "opentelemetry" in (mode, value):
            raise SettingsError("--trace-config: traces go to a file (mode triton), not to an OpenTelemetry collector")
        if (comma and mode != "triton") or (name == "mode" and value != "triton"):
            raise SettingsError(f"--trace-config: expected mode triton, got '{text}'")
        if name == "level":
            levels.append(value.upper())
        elif name != "mode":
            values[name] = value
    unknown = values.keys() - _TRACE_NAMES.keys()
    if unknown:
        raise SettingsError(
            f"--trace-config: unknown setting '{min(unknown)}', expected one of {', '.join(_TRACE_NAMES)}"
        )
    control = TraceControl(TraceSettings(trace_file=values.pop("file", "")))
    changes: dict[str, Any] = {_TRACE_NAMES[name]: value for name, value in values.items()}
    try:
        settings = control.update(changes | ({"trace_level": levels} if levels else {}))
    except ServingError as error:
        raise SettingsError(f"--trace-config: {error.message}") from None
    if settings.trace_file:
        _check_writable(f"{settings.trace_file}.0" if int(settings.log_frequency) else settings.trace_file)
    return settings


def _check_writable(trace_file: str) -> None:
    try:
        with Path(trace_file).open("ab"):
            pass
    except OSError as error:
        raise SettingsError(f"--trace-config: cannot write '{trace_file}': {error.strerror}") from None


def restrictions(flag: str, texts: Sequence[str]) -> dict[str, Restriction]:
    """`APIS:KEY=VALUE`: category -> the header its requests must carry. A category may stand in one group alone."""
    result: dict[str, Restriction] = {}
    for text in texts:
        apis, _, pair = text.partition(":")
        key, value = _pair(flag, pair)
        for api in apis.split(","):
            if api not in CATEGORIES:
                raise SettingsError(f"{flag}: unknown api '{api}', expected one of {', '.join(CATEGORIES)}")
            if api in result:
                raise SettingsError(f"{flag}: api '{api}' can not be specified in multiple config groups")
            result[api] = Restriction(key, value)
    return result


def forward_pattern(flag: str, text: str) -> "re.Pattern[str] | None":
    """As Triton's: any part of a header's name may match, in either case."""
    try:
        return re.compile(text, re.IGNORECASE) if text else None
    except re.error as error:
        raise SettingsError(f"{flag}: '{text}' is no regular expression: {error}") from None


def grpc_options(settings: Settings) -> GrpcOptions:
    """Where and how gRPC listens. Certificates count only when encryption is on."""
    encrypted = settings.grpc_use_ssl or settings.grpc_use_ssl_mutual
    if encrypted and not (settings.grpc_server_cert and settings.grpc_server_key):
        raise SettingsError("--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key")
    if settings.grpc_use_ssl_mutual and not settings.grpc_root_cert:
        raise SettingsError("--grpc-use-ssl-mutual needs --grpc-root-cert")

    def pem(text: str) -> Path | None:
        return Path(text) if encrypted and text else None

    return GrpcOptions(
        address=settings.grpc_address,
        port=settings.grpc_port,
        reuse_port=settings.reuse_grpc_port,
        server_cert=pem(settings.grpc_server_cert),
        server_key=pem(settings.grpc_server_key),
        root_cert=pem(settings.grpc_root_cert),
        use_mutual_ssl=settings.grpc_use_ssl_mutual,
        compression=settings.grpc_infer_response_compression_level,
        keepalive_time_ms=settings.grpc_keepalive_time,
        keepalive_timeout_ms=settings.grpc_keepalive_timeout,
        keepalive_permit_without_calls=settings.grpc_keepalive_permit_without_calls,
        http2_max_pings_without_data=settings.grpc_http2_max_pings_without_data,
        http2_min_recv_ping_interval_without_data_ms=settings.grpc_http2_min_recv_ping_interval_without_data,
        http2_max_ping_strikes=settings.grpc_http2_max_ping_strikes,
        max_connection_age_ms=settings.grpc_max_connection_age or None,
        max_connection_age_grace_ms=settings.grpc_max_connection_age_grace or None,
    )


def tls_context(certificate: str, key: str) -> ssl.SSLContext | None:
    """TLS 1.2 and later with a certificate chain and its key (PEM files); None where neither is named.

    Raises SettingsError for files that cannot be used; a key behind a passphrase is one.
    """
    if not certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")  # rather than a question on the terminal
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingsError(
            f"--http-server-cert, --http-server-key: cannot use {certificate}, {key}: {reason}"
        ) from None
    return context


def _pair(flag: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise SettingsError(f"{flag}: expected KEY=VALUE, got '{text}'")
    return key, value
