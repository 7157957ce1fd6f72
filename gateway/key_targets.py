"""What a request wants, as far as keys care: pure functions from a path or a message.

What is not known to be harmless needs a key, and what is not known to be a read needs an admin's.
"""

from dataclasses import dataclass
from typing import Any

from gateway.keys import EVERY_FACE, Face

_HEALTH = frozenset(
    {"/health", "/v1/health", "/health/ready", "/health/live", "/ping", "/v2/health/live", "/v2/health/ready"}
)
_WORK = frozenset({"infer", "generate", "generate_stream"})
_OPENAI, _KSERVE, _ADMIN = frozenset({Face.OPENAI}), frozenset({Face.KSERVE}), frozenset({Face.ADMIN})
_READERS = _KSERVE | _ADMIN


@dataclass(frozen=True, slots=True)
class Target:
    """A key with any of `faces` will do. `model` is "" where the request names none at this point.

    `is_work` requests count against a key's limits; `is_overview` ones tell of all models.
    """

    faces: frozenset[Face]
    model: str = ""
    is_work: bool = False
    is_overview: bool = False


def http_target(method: str, path: str, *, guard_metrics: bool) -> Target | None:
    """None for what is open to everyone: health, the page's own files, preflights, and metrics unless guarded."""
    reads = method in ("GET", "HEAD")
    if method == "OPTIONS" or path in _HEALTH or (reads and (path == "/" or path.startswith("/console/"))):
        return None
    if path in ("/metrics", "/metrics/"):
        return Target(EVERY_FACE) if guard_metrics else None
    if path == "/v2" or path.startswith("/v2/"):
        return _kserve_target(reads, path.split("/"))
    if path == "/reset_prefix_cache":
        return Target(_ADMIN)
    return Target(_OPENAI, is_work=not reads)


def _kserve_target(reads: bool, parts: list[str]) -> Target:
    """`parts` of a path: "", "v2", ..."""
    if reads:
        if parts[2:4] == ["models", "stats"] and len(parts) == 4:
            return Target(_READERS, is_overview=True)
        return Target(_READERS, _model(parts))
    if parts[2:3] == ["models"] and parts[-1] in _WORK:
        return Target(_KSERVE, _model(parts), is_work=True)
    if parts[2:3] == ["repository"] and parts[-1] == "index":
        return Target(_READERS, is_overview=True)
    return Target(_ADMIN, _model(parts))


def _model(parts: list[str]) -> str:
    """The name after `models`, where there is one."""
    position = parts.index("models") + 1 if "models" in parts else len(parts)
    return parts[position] if position < len(parts) else ""


_READS = frozenset({"ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"})
_SETTINGS = frozenset({"TraceSetting", "LogSettings"})


def grpc_target(message: Any) -> Target | None:
    """The same for a message of `inference.GRPCInferenceService`, by its type; None for the server's health."""
    rpc = message.DESCRIPTOR.name.removesuffix("Request")
    if rpc in ("ServerLive", "ServerReady"):
        return None
    if rpc == "ModelInfer":
        return Target(_KSERVE, message.model_name, is_work=True)
    if rpc == "RepositoryIndex":
        return Target(_READERS, is_overview=True)
    if rpc in _READS:
        name = getattr(message, "name", "")
        return Target(_READERS, name, is_overview=rpc == "ModelStatistics" and not name)
    if rpc.endswith("SharedMemoryStatus") or (rpc in _SETTINGS and not message.settings):
        return Target(_READERS)
    return Target(_ADMIN, getattr(message, "model_name", ""))
