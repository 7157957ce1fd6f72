"""The server's settings: typed, frozen, checked where they are made.

Every field is a flag (`http_port` is `--http-port`) and an environment variable (`TIDEGATE_HTTP_PORT`), as `flags.py` reads
them. Those that Triton has carry Triton's names and meanings.
"""

from dataclasses import dataclass, field
from typing import Any, Literal


def _setting(group: str, help_text: str, default: Any, separator: str = ",") -> Any:
    """A field that is a flag of `group`. `separator` stands between a list's items in its environment variable."""
    return field(default=default, metadata={"group": group, "help": help_text, "separator": separator})


def _secret(help_text: str) -> Any:
    """A list that only the environment gives: everyone on the machine can read a process's flags."""
    return field(default=(), repr=False, metadata={"group": "", "help": help_text, "separator": ","})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `tidegate serve` was told. Times in the unit of their name, sizes in bytes."""

    # repository
    model_repository: tuple[str, ...] = _setting("repository", "folder with models; may be given several times", ())
    model_control_mode: Literal["none", "poll", "explicit"] = _setting(
        "repository",
        "none: load all at start; poll: also follow changes on disk; explicit: load what is asked for",
        "none",
    )
    repository_poll_secs: float = _setting("repository", "seconds between two looks at the disk in poll mode", 15.0)
    load_model: tuple[str, ...] = _setting(
        "repository", "model to load at start in explicit mode; may be given several times, * is all", ()
    )
    model_config_name: str = _setting(
        "repository", "use configs/NAME.pbtxt of a model instead of its config.pbtxt, where it exists", ""
    )
    model_load_thread_count: int = _setting("repository", "how many models may load at once", 4)
    model_load_retry_count: int = _setting("repository", "how often a load that failed is tried again", 0)
    model_namespacing: bool = _setting(
        "repository", "let two repositories hold models of the same name, told apart by namespace", False
    )
    exit_on_error: bool = _setting("repository", "end the server when a model fails to load at start", True)
    strict_readiness: bool = _setting("repository", "ready only when every model is", True)
    disable_auto_complete_config: bool = _setting(
        "repository", "take configs as written, without completing them from the model file", False
    )
    backend_config: tuple[str, ...] = _setting(
        "repository", "BACKEND,KEY=VALUE for one backend, or default-max-batch-size=N for all", (), ";"
    )

    allow_model_requirements: bool = _setting(
        "repository", "install what a custom model's requirements.txt lists, into an environment of its own", False
    )

    # http
    allow_http: bool = _setting("http", "serve HTTP: KServe v2 and OpenAI side by side", True)
    http_address: str = _setting("http", "address to listen on", "127.0.0.1")
    http_port: int = _setting("http", "port; 0 takes a free one", 8000)
    reuse_http_port: bool = _setting("http", "let other servers of this machine listen on the same port", False)
    http_max_input_size: int = _setting(
        "http", "largest request body in bytes, and largest gRPC message", 64 * 1024 * 1024
    )
    http_header_forward_pattern: str = _setting(
        "http", "request headers that match this regular expression become parameters of the request", ""
    )
    http_restricted_api: tuple[str, ...] = _setting(
        "http",
        "APIS:KEY=VALUE; requests of these categories (health, metadata, inference, ...) must carry the header",
        (),
        ";",
    )
    sse_keep_alive_interval: float = _setting(
        "http", "seconds of silence after which a token stream gets a comment line; 0 for none", 15.0
    )

    http_server_cert: str = _setting("http", "serve HTTPS: file with the server's certificate chain, PEM", "")
    http_server_key: str = _setting("http", "file with the certificate's private key, PEM", "")
    allow_console: bool = _setting("http", "serve the page for people at /", True)

    # who may come in
    api_key_file: str = _setting(
        "security", "file with API keys: NAME.toml with rights and limits, else a line KEY or NAME KEY each", ""
    )
    api_keys: tuple[str, ...] = _secret("API keys for OpenAI and KServe, with commas between them")
    admin_api_keys: tuple[str, ...] = _secret("API keys that may also load and unload models")
    metrics_require_key: bool = _setting("security", "metrics need an API key too", False)
    share_prefix_cache: bool = _setting(
        "security",
        "let prompts of different API keys share cached prefixes: each can then tell what others sent",
        False,
    )
    cors_allow_origin: tuple[str, ...] = _setting(
        "security", "origin whose web pages may call this server; may be given several times, * is all", ()
    )
    http_allowed_host: tuple[str, ...] = _setting(
        "security", "further name by which a server without keys may be called; may be given several times", ()
    )

    # grpc
    allow_grpc: bool = _setting("grpc", "serve gRPC", True)
    grpc_address: str = _setting("grpc", "address to listen on", "127.0.0.1")
    grpc_port: int = _setting("grpc", "port; 0 takes a free one", 8001)

    reuse_grpc_port: bool = _setting("grpc", "let other servers of this machine listen on the same port", False)
    grpc_header_forward_pattern: str = _setting("grpc", "as --http-header-forward-pattern, for metadata", "")
    grpc_restricted_protocol: tuple[str, ...] = _setting(
        "grpc", "as --http-restricted-api; the header is triton-grpc-protocol-KEY", (), ";"
    )
    grpc_use_ssl: bool = _setting("grpc", "encrypt connections", False)
    grpc_use_ssl_mutual: bool = _setting("grpc", "encrypt connections and ask clients for certificates", False)
    grpc_server_cert: str = _setting("grpc", "file with the server's certificate, PEM", "")
    grpc_server_key: str = _setting("grpc", "file with the server's private key, PEM", "")
    grpc_root_cert: str = _setting("grpc", "file with the root certificates clients are checked against, PEM", "")
    grpc_infer_response_compression_level: Literal["none", "low", "medium", "high"] = _setting(
        "grpc", "compression of answers", "none"
    )
    grpc_keepalive_time: int = _setting("grpc", "milliseconds of silence after which a ping is sent", 7_200_000)
    grpc_keepalive_timeout: int = _setting("grpc", "milliseconds a ping may stay unanswered", 20_000)
    grpc_keepalive_permit_without_calls: bool = _setting("grpc", "ping also without calls in flight", False)
    grpc_http2_max_pings_without_data: int = _setting("grpc", "pings in a row without data", 2)
    grpc_http2_min_recv_ping_interval_without_data: int = _setting(
        "grpc", "least milliseconds between two pings of a client that sends no data", 300_000
    )
    grpc_http2_max_ping_strikes: int = _setting("grpc", "bad pings before a connection is closed", 2)
    grpc_max_connection_age: int = _setting("grpc", "milliseconds a connection may live; 0: no bound", 0)
    grpc_max_connection_age_grace: int = _setting("grpc", "milliseconds its calls then have to end; 0: no bound", 0)

    # metrics
    allow_metrics: bool = _setting("metrics", "serve Prometheus metrics", True)
    metrics_address: str = _setting("metrics", "address to listen on; empty: that of HTTP", "")
    metrics_port: int = _setting("metrics", "port; 0 takes a free one", 8002)

    allow_cpu_metrics: bool = _setting("metrics", "show the use of processors and memory", True)
    allow_gpu_metrics: bool = _setting("metrics", "show the use of GPUs, where nvidia-ml-py finds any", True)
    metrics_interval_ms: int = _setting("metrics", "how old what is shown of the machine may be", 2000)
    metrics_config: tuple[str, ...] = _setting(
        "metrics",
        "counter_latencies=BOOL, histogram_latencies=BOOL, summary_latencies=BOOL or summary_quantiles=Q:E,...",
        (),
        ";",
    )

    # traces
    trace_config: tuple[str, ...] = _setting(
        "trace", "triton,file=FILE, rate=N (one request of N), level=OFF|TIMESTAMPS, count=N, log-frequency=N", (), ";"
    )

    # memory and scheduling
    allow_client_shm: bool = _setting("memory", "let clients register shared memory regions", False)

    cache_config: tuple[str, ...] = _setting(
        "memory", "response cache: local,size=BYTES, or redis,host=HOST and redis,port=PORT", (), ";"
    )
    rate_limit: Literal["off", "execution_count"] = _setting(
        "memory", "off, or execution_count: instances run only with the resources their group names", "off"
    )
    rate_limit_resource: tuple[str, ...] = _setting(
        "memory", "NAME:COUNT or NAME:COUNT:DEVICE of a resource there is", ()
    )

    # logs and life cycle
    log_verbose: int = _setting("log", "0: events and finished requests; 1 and more: details", 0)
    log_info: bool = _setting("log", "log at level info", True)
    log_warning: bool = _setting("log", "log warnings", True)
    log_error: bool = _setting("log", "log errors", True)
    log_format: Literal["default", "ISO8601", "json"] = _setting(
        "log", "default: text for people; ISO8601: text with UTC dates; json: an object a line", "default"
    )
    log_file: str = _setting("log", "write logs to this file instead of standard error", "")
    log_request_chars: int = _setting(
        "log", "how many characters of each OpenAI request's body are logged, prompts and all", 0
    )
    id: str = _setting("general", "name of this server, as clients see it in its metadata", "tidegate")
    exit_timeout_secs: float = _setting("general", "how long a stop waits for requests in flight", 30.0)

    def __post_init__(self) -> None:
        for name in ("http_port", "grpc_port", "metrics_port"):
            _check_range(name, getattr(self, name), 0, 65535)
        _check_range("exit_timeout_secs", self.exit_timeout_secs, 0, 86400)
        _check_range("repository_poll_secs", self.repository_poll_secs, 0.01, 86400)
        _check_range("model_load_thread_count", self.model_load_thread_count, 1, 1024)
        _check_range("model_load_retry_count", self.model_load_retry_count, 0, 1000)
        _check_range("http_max_input_size", self.http_max_input_size, 1, 1 << 40)
        _check_range("sse_keep_alive_interval", self.sse_keep_alive_interval, 0, 3600)
        _check_range("log_request_chars", self.log_request_chars, 0, 1_000_000)
        _check_range("metrics_interval_ms", self.metrics_interval_ms, 0, 86_400_000)
        if bool(self.http_server_cert) != bool(self.http_server_key):
            raise SettingsError("--http-server-cert and --http-server-key go together")
        if self.load_model and self.model_control_mode != "explicit":
            raise SettingsError("--load-model needs --model-control-mode=explicit")
        if "*" in self.load_model and len(self.load_model) > 1:
            raise SettingsError("--load-model=* stands alone: it already means every model")


class SettingsError(ValueError):
    """A flag or variable with a value that cannot be."""


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        flag = "--" + name.replace("_", "-")
        raise SettingsError(f"{flag}: expected {low:g} to {high:g}, got {value:g}")
