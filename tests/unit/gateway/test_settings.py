"""Settings from flags and environment."""

import pytest

from gateway.flags import from_arguments, parser
from gateway.settings import Settings, SettingsError
from gateway.triton_flags import translate


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
