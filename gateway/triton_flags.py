"""Flags of Triton's command line that are no settings here, so that its command lines go on working.

They are taken with a note that says what becomes of them, or refused where the server would do something else than asked.
"""

from collections import deque
from collections.abc import Sequence

from gateway.settings import SettingsError

WITHOUT_EFFECT = {
    "http-thread-count": "one event loop serves HTTP",
    "grpc-infer-thread-count": "calls take no thread each",
    "grpc-infer-allocation-pool-size": "messages are not pooled",
    "grpc-max-response-pool-size": "a stream's answers wait for their reader, never more than a few",
    "buffer-manager-thread-count": "each instance gathers its own inputs",
    "pinned-memory-pool-byte-size": "there is no pool of pinned memory",
    "cuda-memory-pool-byte-size": "backends manage device memory themselves",
    "cuda-virtual-address-size": "backends manage device memory themselves",
    "enable-peer-access": "backends manage device memory themselves",
    "min-supported-compute-capability": "backends know which GPUs they can use",
    "model-load-gpu-limit": "a load that does not fit fails by itself",
    "backend-directory": "backends are part of this package and its extras",
    "repoagent-directory": "repository agents are part of this package",
    "cache-directory": "caches are part of this package",
    "sagemaker-port": "there is no SageMaker endpoint",
    "sagemaker-safe-port-range": "there is no SageMaker endpoint",
    "sagemaker-thread-count": "there is no SageMaker endpoint",
    "vertex-ai-port": "there is no Vertex AI endpoint",
    "vertex-ai-thread-count": "there is no Vertex AI endpoint",
    "vertex-ai-default-model": "there is no Vertex AI endpoint",
}
"""Flag -> why it changes nothing."""

ONLY_OFF = {
    "allow-sagemaker": "there is no SageMaker endpoint",
    "allow-vertex-ai": "there is no Vertex AI endpoint",
}
"""Flag -> why it can only be false."""

REFUSED = {
    "host-policy": "instances are not tied to processors here; taskset or numactl can tie the whole server",
}
"""Flag -> why it is not taken, and what to do instead."""

RENAMED = {
    "trace-file": "--trace-config=triton,file={}",
    "trace-level": "--trace-config=level={}",
    "trace-rate": "--trace-config=rate={}",
    "trace-count": "--trace-config=count={}",
    "trace-log-frequency": "--trace-config=log-frequency={}",
    "response-cache-byte-size": "--cache-config=local,size={}",
    "strict-model-config": "--disable-auto-complete-config={}",
}
"""Older flag -> what it is called now."""


def translate(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without Triton's own flags, and what to tell about those that were taken out.

    Raises SettingsError for one that asks for what is not here.
    """
    kept: list[str] = []
    notes: list[str] = []
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        name, _, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--") and name in REFUSED:
            raise SettingsError(f"--{name}: {REFUSED[name]}")
        if not argument.startswith("--") or name not in {*WITHOUT_EFFECT, *ONLY_OFF, *RENAMED}:
            kept.append(argument)
            continue
        if "=" not in argument and rest and not rest[0].startswith("--"):
            value = rest.popleft()
        if name in WITHOUT_EFFECT:
            notes.append(f"--{name} has no effect: {WITHOUT_EFFECT[name]}")
        elif name in RENAMED:
            kept.append(RENAMED[name].format(value or "true"))
        elif value.lower() not in ("false", "off", "0"):
            raise SettingsError(f"--{name}: expected false, as {ONLY_OFF[name]}, got '{value or 'true'}'")
    return kept, notes
