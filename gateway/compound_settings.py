"""Settings whose value is a little language of Triton's: caches, rate limits, restricted APIs, TLS files."""

import re
import ssl
from collections.abc import Sequence
from pathlib import Path

from gateway.kserve_grpc import GrpcOptions
from gateway.kserve_service import Restriction
from gateway.settings import Settings, SettingsError
from scheduler.rate_limit import RateLimiter, Resource
from scheduler.redis_cache import connect
from scheduler.response_cache import LocalCache, ResponseCache

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


def forward_pattern(text: str) -> "re.Pattern[str] | None":
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise SettingsError(f"--http-header-forward-pattern: '{text}' is no regular expression: {error}") from None


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
