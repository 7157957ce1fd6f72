"""Settings with a language of their own."""

from pathlib import Path

import pytest

from gateway.compound_settings import (
    backend_settings,
    forward_pattern,
    grpc_options,
    metrics_options,
    rate_limiter,
    response_cache,
    restrictions,
    trace_settings,
)
from gateway.kserve_controls import TraceSettings
from gateway.kserve_service import Restriction
from gateway.settings import Settings, SettingsError
from scheduler.response_cache import LocalCache


def test_no_cache_flag_is_no_cache_and_local_takes_a_size() -> None:
    assert response_cache(()) is None
    assert isinstance(response_cache(("local,size=1048576",)), LocalCache)


@pytest.mark.parametrize("text", ["local", "local,size=big", "disk,size=1", "local,size", "redis,port=1"])
def test_a_cache_that_cannot_be_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--cache-config: expected"):
        response_cache((text,))


def test_rate_limits_need_their_mode() -> None:
    assert rate_limiter("off", ()) is None
    assert rate_limiter("execution_count", ("R:4", "S:2:1")) is not None
    with pytest.raises(SettingsError, match="needs --rate-limit=execution_count"):
        rate_limiter("off", ("R:4",))
    with pytest.raises(SettingsError, match="got 'R'"):
        rate_limiter("execution_count", ("R",))


def test_restrictions_name_the_header_for_each_category() -> None:
    made = restrictions("--http-restricted-api", ("health,metadata:key=value", "trace:other=x=y"))
    assert made == {
        "health": Restriction("key", "value"),
        "metadata": Restriction("key", "value"),
        "trace": Restriction("other", "x=y"),
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("nothing:key=value",), "unknown api 'nothing'"),
        (("health:key",), "expected KEY=VALUE"),
        (("health:a=b", "health:c=d"), "api 'health' can not be specified in multiple config groups"),
    ],
)
def test_wrong_restrictions_are_refused(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        restrictions("--http-restricted-api", texts)


def test_header_patterns_are_compiled_or_refused() -> None:
    assert forward_pattern("--http-header-forward-pattern", "") is None
    pattern = forward_pattern("--http-header-forward-pattern", "X-.*")
    assert pattern is not None
    assert pattern.match("X-Tenant")
    with pytest.raises(SettingsError, match="no regular expression"):
        forward_pattern("--http-header-forward-pattern", "(")


def test_tls_needs_its_files() -> None:
    with pytest.raises(SettingsError, match="needs --grpc-server-cert"):
        grpc_options(Settings(grpc_use_ssl=True))
    assert grpc_options(Settings(grpc_server_cert="unused.pem")).server_cert is None


def test_backend_settings_are_for_one_backend_or_for_all_that_know_them() -> None:
    made = backend_settings(("default-max-batch-size=8", "python,stub-timeout-seconds=60"))
    assert made == {"onnxruntime": {"default-max-batch-size": "8"}, "python": {"stub-timeout-seconds": "60"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("onnxruntime,x=1", "nothing here takes 'onnxruntime,x=1', known are onnxruntime: default-max-batch-size;"),
        ("tensorflow,version=2", "nothing here takes 'tensorflow,version=2'"),
        ("x=1", "nothing here takes 'x=1'"),
        ("default-max-batch-size=many", "default-max-batch-size: expected a whole number, got 'many'"),
        ("python", "expected KEY=VALUE, got 'python'"),
    ],
)
def test_a_backend_setting_that_nobody_takes_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        backend_settings((text,))


def test_metrics_settings() -> None:
    texts = ("summary_latencies=true", "counter_latencies=false", "summary_quantiles=0.5:0.05,0.9:0.01")
    options = metrics_options(Settings(metrics_config=texts, metrics_interval_ms=500, allow_gpu_metrics=False))
    assert (options.summary_latencies, options.counter_latencies, options.histogram_latencies) == (True, False, False)
    assert (options.quantiles, options.interval, options.cpu, options.gpu) == ((0.5, 0.9), 0.5, True, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foo=1", "unknown setting 'foo', expected one of counter_latencies"),
        ("summary_latencies=maybe", "expected true or false, got 'maybe'"),
        ("summary_quantiles=2:1", "expected 0.5:0.05"),
    ],
)
def test_a_wrong_metrics_setting_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        metrics_options(Settings(metrics_config=(text,)))


def test_trace_settings_take_the_mode_before_each_or_not(tmp_path: Path) -> None:
    file = str(tmp_path / "t.json")
    made = trace_settings((f"triton,file={file}", "mode=triton", "rate=5", "level=timestamps", "log-frequency=3"))
    assert made == TraceSettings(("TIMESTAMPS",), trace_rate="5", log_frequency="3", trace_file=file)
    assert trace_settings(()) == TraceSettings()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("mode=opentelemetry",), "not to an OpenTelemetry collector"),
        (("opentelemetry,url=http://x",), "not to an OpenTelemetry collector"),
        (("level=TIMESTAMPS",), "trace file name is not given"),
        (("file=x", "level=TENSORS"), "TENSORS is not offered"),
        (("speed=1",), "unknown setting 'speed', expected one of file, level, rate"),
        (("rate=often",), "Unable to parse 'trace_rate', got: often"),
        (("rate=0",), "sample rate must be non-zero"),
        (("file=/nowhere/t.json",), "cannot write '/nowhere/t.json': No such file or directory"),
        (("other,file=x",), "expected mode triton, got 'other,file=x'"),
    ],
)
def test_a_wrong_trace_setting_is_refused(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        trace_settings(texts)
