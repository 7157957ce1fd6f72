"""The server's settings: typed, frozen, read from flags and environment in this one place.

Every field is a flag (`http_port` is `--http-port`) and an environment variable (`TIDEGATE_HTTP_PORT`); a flag wins.
Flags that Triton has carry Triton's names and meanings. Nobody else reads the environment.
"""

import argparse
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

ENVIRONMENT_PREFIX = "TIDEGATE_"
_TRUE, _FALSE = frozenset({"true", "on", "1", "yes"}), frozenset({"false", "off", "0", "no"})


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
    http_max_input_size: int = _setting("http", "largest request body in bytes", 64 * 1024 * 1024)
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
        if bool(self.http_server_cert) != bool(self.http_server_key):
            raise SettingsError("--http-server-cert and --http-server-key go together")
        if self.load_model and self.model_control_mode != "explicit":
            raise SettingsError("--load-model needs --model-control-mode=explicit")
        if "*" in self.load_model and len(self.load_model) > 1:
            raise SettingsError("--load-model=* stands alone: it already means every model")


class SettingsError(ValueError):
    """A flag or variable with a value that cannot be."""


def from_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from the flags of `tidegate serve` and the environment.

    Raises SettingsError; `--help` prints and exits as usual.
    """
    given = vars(parser().parse_args(arguments))
    values: dict[str, Any] = {}
    for setting in dataclasses.fields(Settings):
        text = environment.get(ENVIRONMENT_PREFIX + setting.name.upper())
        if given.get(setting.name) is not None:
            raw = given[setting.name]
        elif text is not None:
            raw = text.split(setting.metadata["separator"]) if _is_list(setting) else text
        else:
            continue
        values[setting.name] = _convert(setting, raw)
    return Settings(**values)


def parser() -> argparse.ArgumentParser:
    """The flags of `tidegate serve`, grouped as in Settings."""
    result = _Parser(
        prog="tidegate serve",
        usage="tidegate serve --model-repository FOLDER [flags]",
        allow_abbrev=False,
        description="Serve the models of a repository over KServe v2 (HTTP and gRPC) and the OpenAI API.",
        epilog="Every flag is also an environment variable: --http-port is TIDEGATE_HTTP_PORT.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in dataclasses.fields(Settings):
        title = setting.metadata["group"]
        if not title:
            continue
        group = groups.setdefault(title, result.add_argument_group(title))
        flags = ["--" + setting.name.replace("_", "-")]
        if setting.name == "model_repository":
            flags.append("--model-store")
        group.add_argument(
            *flags,
            dest=setting.name,
            metavar=_metavar(setting),
            nargs="?" if _type(setting) is bool else None,
            const="true" if _type(setting) is bool else None,
            action="append" if _is_list(setting) else "store",
            help=setting.metadata["help"] + _default_text(setting),
        )
    return result


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def _type(setting: "dataclasses.Field[Any]") -> Any:
    return typing.get_type_hints(Settings)[setting.name]


def _is_list(setting: "dataclasses.Field[Any]") -> bool:
    return typing.get_origin(_type(setting)) is tuple


def _metavar(setting: "dataclasses.Field[Any]") -> str:
    kind = _type(setting)
    if typing.get_origin(kind) is Literal:
        return "|".join(typing.get_args(kind))
    return {bool: "true|false", int: "N", float: "SECONDS"}.get(kind, "TEXT")


def _default_text(setting: "dataclasses.Field[Any]") -> str:
    default = setting.default
    if default in ((), ""):
        return ""
    shown = (
        str(default).lower() if isinstance(default, bool) else f"{default:g}" if isinstance(default, float) else default
    )
    return f" (default: {shown})"


def _convert(setting: "dataclasses.Field[Any]", raw: Any) -> Any:
    kind, flag = _type(setting), "--" + setting.name.replace("_", "-")
    if _is_list(setting):
        return tuple(raw)
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if raw not in choices:
            raise SettingsError(f"{flag}: expected one of {', '.join(choices)}, got '{raw}'")
        return raw
    if kind is bool:
        return _boolean(flag, raw)
    if isinstance(kind, types.GenericAlias):
        raise TypeError(f"setting {setting.name} has a type without a conversion: {kind}")
    try:
        return kind(raw)
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}[kind]
        raise SettingsError(f"{flag}: expected {wanted}, got '{raw}'") from None


def _boolean(flag: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise SettingsError(f"{flag}: expected true or false, got '{text}'")


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        flag = "--" + name.replace("_", "-")
        raise SettingsError(f"{flag}: expected {low:g} to {high:g}, got {value:g}")
