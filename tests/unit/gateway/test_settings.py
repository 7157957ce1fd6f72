"""Settings from flags and environment."""

import dataclasses

import pytest

from gateway.flags import from_arguments, parser
from gateway.settings import Settings, SettingsError
from gateway.triton_flags import ONLY_OFF, REFUSED, RENAMED, WITHOUT_EFFECT, translate

# every flag of tritonserver (triton spec 7.1)
TRITON_FLAGS = [
    "id",
    "exit-timeout-secs",
    "model-repository",
    "model-store",
    "model-control-mode",
    "repository-poll-secs",
    "load-model",
    "model-config-name",
    "model-load-thread-count",
    "model-load-retry-count",
    "model-load-gpu-limit",
    "model-namespacing",
    "exit-on-error",
    "strict-readiness",
    "disable-auto-complete-config",
    "strict-model-config",
    "allow-http",
    "http-address",
    "http-port",
    "reuse-http-port",
    "http-thread-count",
    "http-max-input-size",
    "http-header-forward-pattern",
    "http-restricted-api",
    "allow-grpc",
    "grpc-address",
    "grpc-port",
    "reuse-grpc-port",
    "grpc-header-forward-pattern",
    "grpc-infer-thread-count",
    "grpc-infer-allocation-pool-size",
    "grpc-max-response-pool-size",
    "grpc-use-ssl",
    "grpc-use-ssl-mutual",
    "grpc-server-cert",
    "grpc-server-key",
    "grpc-root-cert",
    "grpc-infer-response-compression-level",
    "grpc-keepalive-time",
    "grpc-keepalive-timeout",
    "grpc-keepalive-permit-without-calls",
    "grpc-http2-max-pings-without-data",
    "grpc-http2-min-recv-ping-interval-without-data",
    "grpc-http2-max-ping-strikes",
    "grpc-max-connection-age",
    "grpc-max-connection-age-grace",
    "grpc-restricted-protocol",
    "allow-metrics",
    "allow-gpu-metrics",
    "allow-cpu-metrics",
    "metrics-address",
    "metrics-port",
    "metrics-interval-ms",
    "metrics-config",
    "log-verbose",
    "log-info",
    "log-warning",
    "log-error",
    "log-format",
    "log-file",
    "trace-config",
    "trace-file",
    "trace-level",
    "trace-rate",
    "trace-count",
    "trace-log-frequency",
    "cache-config",
    "cache-directory",
    "response-cache-byte-size",
    "rate-limit",
    "rate-limit-resource",
    "buffer-manager-thread-count",
    "host-policy",
    "pinned-memory-pool-byte-size",
    "cuda-memory-pool-byte-size",
    "cuda-virtual-address-size",
    "enable-peer-access",
    "min-supported-compute-capability",
    "allow-client-shm",
    "backend-directory",
    "backend-config",
    "repoagent-directory",
    "allow-sagemaker",
    "sagemaker-port",
    "sagemaker-safe-port-range",
    "sagemaker-thread-count",
    "allow-vertex-ai",
    "vertex-ai-port",
    "vertex-ai-thread-count",
    "vertex-ai-default-model",
]


def test_defaults_are_those_of_the_class() -> None:
    assert from_arguments([], {}) == Settings()


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_default() -> None:
    environment = {"TIDEGATE_HTTP_PORT": "9000", "TIDEGATE_GRPC_PORT": "9001"}
    settings = from_arguments(["--http-port", "9100"], environment)
    assert (settings.http_port, settings.grpc_port, settings.metrics_port) == (9100, 9001, 8002)


def test_lists_repeat_as_flags_and_take_commas_in_the_environment() -> None:
    assert from_arguments(["--model-repository=a", "--model-store=b"], {}).model_repository == ("a", "b")
    assert from_arguments([], {"TIDEGATE_MODEL_REPOSITORY": "a,b"}).model_repository == ("a", "b")


def test_lists_whose_items_have_commas_take_semicolons_in_the_environment() -> None:
    environment = {"TIDEGATE_CACHE_CONFIG": "redis,host=a;redis,port=1", "TIDEGATE_BACKEND_CONFIG": "onnxruntime,x=1"}
    settings = from_arguments([], environment)
    assert settings.cache_config == ("redis,host=a", "redis,port=1")
    assert settings.backend_config == ("onnxruntime,x=1",)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("on", True), ("1", True), ("false", False), ("OFF", False), ("0", False)]
)
def test_booleans_take_triton_s_words(text: str, value: bool) -> None:
    assert from_arguments([f"--allow-grpc={text}"], {}).allow_grpc is value


def test_a_bare_boolean_flag_is_true() -> None:
    assert from_arguments(["--model-namespacing"], {}).model_namespacing is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--http-port=abc"], "--http-port: expected a whole number, got 'abc'"),
        (["--http-port=70000"], "--http-port: expected 0 to 65535, got 70000"),
        (["--allow-http=maybe"], "--allow-http: expected true or false, got 'maybe'"),
        (["--model-control-mode=auto"], "expected one of none, poll, explicit, got 'auto'"),
        (["--load-model=a"], "--load-model needs --model-control-mode=explicit"),
        (["--model-control-mode=explicit", "--load-model=a", "--load-model=*"], "stands alone"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_a_wrong_value_says_which_flag_what_was_expected_and_what_came(arguments: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message.replace("*", r"\*")):
        from_arguments(arguments, {})


def test_help_names_every_flag_with_its_default() -> None:
    text = parser().format_help()
    assert "--http-port" in text
    assert "(default: 8000)" in text


def test_flags_of_triton_that_change_nothing_are_taken_with_a_note() -> None:
    arguments, notes = translate(["--http-thread-count=8", "--grpc-infer-thread-count", "4", "--http-port=1"])
    assert arguments == ["--http-port=1"]
    assert notes == [
        "--http-thread-count has no effect: one event loop serves HTTP",
        "--grpc-infer-thread-count has no effect: calls take no thread each",
    ]


@pytest.mark.parametrize("name", TRITON_FLAGS)
def test_every_flag_of_triton_is_a_setting_or_has_an_answer(name: str) -> None:
    settings = {field.name.replace("_", "-") for field in dataclasses.fields(Settings)} | {"model-store"}
    assert name in {*settings, *WITHOUT_EFFECT, *ONLY_OFF, *REFUSED, *RENAMED}


def test_instances_cannot_be_tied_to_processors() -> None:
    with pytest.raises(SettingsError, match="--host-policy: instances are not tied to processors here; taskset"):
        translate(["--host-policy=p,cpu-cores=0-1"])


def test_older_names_of_triton_s_flags_stand_for_the_new_ones() -> None:
    old = ["--trace-file=t.json", "--trace-rate", "7", "--response-cache-byte-size=9", "--strict-model-config"]
    settings = from_arguments(translate(old)[0], {})
    assert settings.trace_config == ("triton,file=t.json", "rate=7")
    assert settings.cache_config == ("local,size=9",)
    assert settings.disable_auto_complete_config


@pytest.mark.parametrize("value", ["=true", "=1", ""])
def test_endpoints_that_are_not_here_can_only_be_off(value: str) -> None:
    assert translate(["--allow-sagemaker=false"]) == ([], [])
    with pytest.raises(SettingsError, match="--allow-sagemaker: expected false, as there is no SageMaker endpoint"):
        translate([f"--allow-sagemaker{value}"])
