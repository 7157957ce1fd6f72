"""Settings with a language of their own."""

import pytest

from gateway.compound_settings import forward_pattern, grpc_options, rate_limiter, response_cache, restrictions
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
    assert forward_pattern("") is None
    pattern = forward_pattern("X-.*")
    assert pattern is not None
    assert pattern.match("X-Tenant")
    with pytest.raises(SettingsError, match="no regular expression"):
        forward_pattern("(")


def test_tls_needs_its_files() -> None:
    with pytest.raises(SettingsError, match="needs --grpc-server-cert"):
        grpc_options(Settings(grpc_use_ssl=True))
    assert grpc_options(Settings(grpc_server_cert="unused.pem")).server_cert is None
