"""A broken configuration says what is wrong, where, and what was likely meant."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.api.errors import Code
from model_repository.findings import ConfigError, likely
from model_repository.pbtxt import parse_json, parse_text
from model_repository.positions import field_places, place_of
from model_repository.refused import REFUSED

FILE = "m/config.pbtxt"


def error_of(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        parse_text(text.encode("latin-1"), FILE)
    return raised.value


FIRST_RESPONSE = 'metric_identifier { family: "nv_inference_first_response_histogram_ms" }'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_batch_size: ${x}\n", f"{FILE}:1:17: Couldn't parse integer: $ in 'max_batch_size: ${{x}}'"),
        (
            'backend: "a"\nmax_batch: 8',
            f"{FILE}:2:1: a model configuration has no field 'max_batch'. Did you mean 'max_batch_size'?",
        ),
        ("input [{\n nam: 'x'}]", f"{FILE}:2:2: a ModelInput has no field 'nam'. Did you mean 'name'?"),
        ("input { data_type: FP32 }", f"{FILE}:1:20: 'FP32' is not a value of DataType. Did you mean 'TYPE_FP32'?"),
        (
            "input { data_type: TYPE_FLOAT }",
            f"{FILE}:1:20: 'TYPE_FLOAT' is not a value of DataType. Did you mean 'TYPE_FP32'?",
        ),
        ('instance_group { kind: "KIND_CPU" }', f'{FILE}:1:24: "KIND_CPU" must be written without quotes'),
        ("\x00", f"{FILE}:1:1: Expected identifier or number, got \\x00 in '\\x00'"),
        ("\n\x00\xff", f"{FILE}:2: not UTF-8 text: byte 2 is 0xff"),
        (
            'model_metrics { metric_control { metric_identifier { family: "nv_x" } } }',
            f"{FILE}:1:1: model_metrics can set the buckets of nv_inference_first_response_histogram_ms alone",
        ),
        (
            f"model_metrics {{ metric_control {{ {FIRST_RESPONSE} histogram_options {{ buckets: [ 2, 1 ] }} }} }}",
            f"{FILE}:1:1: model_metrics must have buckets that grow from above 0, got [2.0, 1.0]",
        ),
        ("version_policy:\n { latest {} }", f"{FILE}:1:1: version policy 'latest' must have 'num_versions' >= 1"),
    ],
)
def test_a_fault_is_told_with_its_place(text: str, expected: str) -> None:
    error = error_of(text)
    assert error.code in (Code.INVALID, Code.UNSUPPORTED)
    assert error.message.startswith(expected)


def test_two_scheduling_choices_are_named() -> None:
    message = error_of("dynamic_batching {}\nsequence_batching {}").message
    assert message.startswith(f"{FILE}:2:1: ")
    assert "sequence_batching" in message
    assert "dynamic_batching" in message


_EXAMPLES = {
    "model_operations": 'model_operations { op_library_filename: "x.so" }',
    "runtime": 'runtime: "x"',
    "cc_model_filenames": 'cc_model_filenames { key: "8.0" value: "x" }',
    "optimization.priority": "optimization { priority: PRIORITY_MAX }",
    "optimization.cuda.graph_spec": "optimization { cuda { graph_spec { } } }",
    "optimization.gather_kernel_buffer_threshold": "optimization { gather_kernel_buffer_threshold: 1 }",
    "instance_group.profile": 'instance_group { profile: "1" }',
    "instance_group.host_policy": 'instance_group { host_policy: "p" }',
    "instance_group.secondary_devices": "instance_group { secondary_devices { } }",
}


def _text_for(path: str) -> str:
    *parents, leaf = path.split(".")
    return _EXAMPLES.get(path, " ".join(f"{parent} {{" for parent in parents) + f" {leaf}: true" + " }" * len(parents))


@pytest.mark.parametrize("path", REFUSED)
def test_a_field_that_is_not_acted_on_is_refused_and_never_ignored(path: str) -> None:
    error = error_of(_text_for(path))
    assert error.code is Code.UNSUPPORTED
    assert path in error.message.replace("[0]", "")
    assert error.finding.line == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"max_batch": 1}, "a model configuration has no field 'max_batch'. Did you mean 'max_batch_size'?"),
        ({"input": [{}, {"nam": 1}]}, "input[1]: a ModelInput has no field 'nam'. Did you mean 'name'?"),
        (
            {"input": [{"data_type": "FP32"}]},
            "override: input[0].data_type: 'FP32' is not a value of DataType. Did you mean 'TYPE_FP32'?",
        ),
        ({"max_batch_size": "many"}, "max_batch_size"),
        ({"input": 3}, "input"),
        ([1], "expected a JSON object, got list"),
    ],
)
def test_a_fault_in_an_override_is_told_by_field(value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_json(json.dumps(value), "override")
    assert expected in raised.value.message


def test_an_override_that_is_not_json_is_told_with_its_place() -> None:
    with pytest.raises(ConfigError, match="override:2:3: not JSON"):
        parse_json("{\n  x: 1}", "override")
    with pytest.raises(ConfigError, match="nested too deep|not JSON"):
        parse_json("[" * 100_000, "override")


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text("{}[]<>:,;\"'#\n namedutypimx_18-", max_size=60).map(str.encode))
def test_any_bytes_give_a_config_or_a_config_error(data: bytes) -> None:
    try:
        parse_text(data, FILE)
    except ConfigError as error:
        assert error.message.startswith(FILE)


@settings(deadline=None)
@given(
    st.text(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "input", "dims", "parameters", "max_batch_size", "x"]), inner, max_size=3
            )
        ),
    ).map(json.dumps)
)
def test_any_override_gives_a_config_or_a_config_error(text: str) -> None:
    try:
        parse_json(text, "override")
    except ConfigError as error:
        assert error.message.startswith("override")


def test_places_are_found_by_path_through_lists_blocks_and_comments() -> None:
    text = 'name: "}" # input {\ninput [ { name: "a" },\n  { name: "b"\n    dims: [ 1,\n 2 ] } ]\noptimization <\n graph { level: 1 } >\n'
    places = field_places(text)
    assert places["input"] == (2, 9)
    assert places["input[1]"] == (3, 3)
    assert places["input[1].name"] == (3, 5)
    assert places["input[1].dims[1]"] == (5, 2)
    assert places["optimization.graph.level"] == (7, 10)
    assert place_of("input[1].data_type", places) == (3, 3)
    assert place_of("output[0].dims", places) == (0, 0)


@settings(deadline=None)
@given(st.text(max_size=80) | st.text("{}[]<>:,\"'#\nab ", max_size=80))
def test_places_of_any_text_lie_inside_it(text: str) -> None:
    lines = text.split("\n")
    for line, column in field_places(text).values():
        assert 1 <= line <= len(lines)
        assert 1 <= column <= len(lines[line - 1]) + 1


@pytest.mark.parametrize(
    ("word", "meant"),
    [("max_bach_size", "max_batch_size"), ("NAME", "name"), ("zzz", ""), ("batch_size", "max_batch_size")],
)
def test_a_likely_name_is_near_or_absent(word: str, meant: str) -> None:
    assert likely(word, ["name", "max_batch_size", "backend"]) == meant


def test_the_refused_fields_are_documented() -> None:
    documented = (Path(__file__).parents[3] / "docs" / "model_config.md").read_text()
    assert [path for path in REFUSED if f"`{path}`" not in documented] == []
