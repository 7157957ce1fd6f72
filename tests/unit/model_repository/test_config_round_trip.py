"""A configuration survives both of its written forms, and what the server prints it can read."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from backends.api.model_config import (
    Accelerator,
    BatchInput,
    BatchOutput,
    DirectStrategy,
    DynamicBatching,
    Ensemble,
    EnsembleStep,
    InitialState,
    InstanceGroup,
    ModelConfig,
    OldestStrategy,
    Optimization,
    QueuePolicy,
    RateLimiterResource,
    SequenceBatching,
    SequenceControl,
    SequenceState,
    TensorSpec,
    TimeoutAction,
    VersionPolicy,
    Warmup,
    WarmupInput,
)
from model_repository.pbtxt import parse_json, parse_text, read_text, to_json, to_proto, to_text
from model_repository.proto import from_proto

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
words = st.text("abcXYZ_019", min_size=1, max_size=6)
datatypes = st.sampled_from(["FP32", "INT64", "BYTES", "BOOL", "BF16", "UINT8", ""])
dims = st.lists(st.one_of(st.just(-1), st.integers(1, 2**40)), max_size=4).map(tuple)
small = st.integers(0, 2**31 - 1)
large = st.integers(0, 2**63 - 1)
maps = st.dictionaries(words, names, max_size=2)
flags = st.booleans()

inputs = st.builds(
    TensorSpec,
    names,
    datatypes,
    dims,
    st.none() | dims,
    flags,
    flags,
    st.sampled_from(["FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"]),
    flags,
    flags,
)
outputs = st.builds(TensorSpec, names, datatypes, dims, st.none() | dims, flags, flags, label_filename=names)
policies = st.builds(QueuePolicy, st.sampled_from(TimeoutAction), large, flags, small)
dynamic = st.builds(
    DynamicBatching,
    st.lists(small, min_size=1, max_size=3).map(tuple),
    large,
    flags,
    large,
    large,
    policies,
    st.dictionaries(large, policies, max_size=2),
)
controls = st.one_of(
    st.builds(SequenceControl, words, st.just("CORRID"), datatypes),
    st.builds(
        SequenceControl,
        words,
        st.sampled_from(["START", "END", "READY"]),
        st.just("INT32"),
        st.tuples(small, small),
    ),
)
initial_states = st.builds(InitialState, names, datatypes, dims, names)
sequence = st.builds(
    SequenceBatching,
    st.one_of(
        st.builds(DirectStrategy, large, st.floats(0, 1, width=32)),
        st.builds(OldestStrategy, small, st.lists(small, max_size=2).map(tuple), large, flags),
    ),
    st.integers(1, 2**62),
    # the wire groups controls by tensor: each has its own here
    st.lists(controls, max_size=3, unique_by=lambda control: control.name).map(tuple),
    st.lists(
        st.builds(SequenceState, names, names, datatypes, dims, st.none() | initial_states, flags, flags), max_size=2
    ).map(tuple),
    flags,
)
ensembles = st.builds(
    Ensemble,
    st.lists(st.builds(EnsembleStep, names, st.integers(-1, 9), maps, maps, names), max_size=2).map(tuple),
    small,
)
accelerators = st.lists(st.builds(Accelerator, words, maps), max_size=2).map(tuple)
groups = st.builds(
    InstanceGroup,
    names,
    st.sampled_from(["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"]),
    small,
    st.lists(small, max_size=2).map(tuple),
    st.lists(names, max_size=2).map(tuple),
    flags,
    names,
    st.lists(st.tuples(st.just("KIND_NVDLA"), small), max_size=1).map(tuple),
    st.lists(st.builds(RateLimiterResource, names, small, flags), max_size=2).map(tuple),
    small,
)
warmups = st.builds(
    Warmup,
    names,
    small,
    st.dictionaries(
        words,
        st.builds(WarmupInput, datatypes, dims, st.sampled_from(["zero_data", "random_data", "a.bin"])),
        max_size=2,
    ),
    small,
)
versions = st.one_of(
    st.builds(VersionPolicy, st.integers(0, 9)),
    st.builds(VersionPolicy, st.just(1), st.lists(st.integers(1, 99), min_size=1, max_size=3).map(tuple)),
)
configs = st.builds(
    ModelConfig,
    names,
    words,
    names,
    names,
    st.integers(0, 2**31 - 1),
    st.lists(inputs, max_size=2).map(tuple),
    st.lists(outputs, max_size=2).map(tuple),
    st.lists(
        st.builds(BatchInput, st.just("BATCH_ELEMENT_COUNT"), st.tuples(names), datatypes, st.tuples(names)), max_size=1
    ).map(tuple),
    st.lists(
        st.builds(BatchOutput, st.just("BATCH_SCATTER_WITH_INPUT_SHAPE"), st.tuples(names), st.tuples(names)),
        max_size=1,
    ).map(tuple),
    versions,
    st.lists(groups, max_size=2).map(tuple),
    decoupled=flags,
    response_cache=flags,
    default_model_filename=names,
    cc_model_filenames=maps,
    metric_tags=maps,
    parameters=maps,
    optimization=st.builds(
        Optimization,
        st.integers(-1, 2),
        st.sampled_from(["PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN"]),
        accelerators,
        accelerators,
        flags,
        flags,
        flags,
        small,
        flags,
    ),
    warmup=st.lists(warmups, max_size=2).map(tuple),
    op_library_filenames=st.lists(names, max_size=2).map(tuple),
    repository_agents=accelerators,
    response_histogram_buckets=st.sets(st.floats(0.1, 1e6), max_size=3).map(lambda bounds: tuple(sorted(bounds))),
)
scheduled = st.builds(
    lambda config, field: config if field is None else _with(config, field),
    configs,
    st.none() | dynamic | sequence | ensembles,
)


def _with(config: ModelConfig, choice: Any) -> ModelConfig:
    from dataclasses import replace

    match choice:
        case DynamicBatching():
            return replace(config, dynamic_batching=choice)
        case SequenceBatching():
            return replace(config, sequence_batching=choice)
        case _:
            return replace(config, ensemble=choice)


@settings(deadline=None, max_examples=150)
@given(scheduled)
def test_every_field_survives_the_protobuf_the_text_and_the_json_form(config: ModelConfig) -> None:
    assert from_proto(to_proto(config)) == config
    assert read_text(to_text(config).encode(), "f")[0] == config
    printed = json.loads(json.dumps(to_json(config)))
    from google.protobuf import json_format
    from tritonclient.grpc import model_config_pb2

    assert from_proto(json_format.ParseDict(printed, model_config_pb2.ModelConfig())) == config


def test_what_the_server_prints_it_reads_back_as_the_same() -> None:
    text = b"""
        name: "m"  # a comment
        backend: 'onnxruntime'
        max_batch_size: 8;
        input [ { name: "A", data_type: TYPE_STRING, dims: [ ] reshape: { shape: [] } },
                { name: "B" data_type: TYPE_BF16 dims: 3 dims: -1 optional: true } ]
        output { name: "C" "D" data_type: TYPE_FP16 dims: [1,2 , 3] }
        dynamic_batching { }
        instance_group [ { kind: KIND_CPU } ]
        parameters { key: "k" value: { string_value: "v \\"quoted\\"" } }
    """
    config = parse_text(text, "m/config.pbtxt")
    assert config.output("CD") is not None
    printed = to_json(config)
    assert printed["dynamic_batching"]["preferred_batch_size"] == [8]
    again = parse_json(json.dumps(printed), "override")
    assert to_json(again) == printed
    assert to_json(parse_text(to_text(config).encode(), "m/config.pbtxt")) == printed


def test_the_printed_form_has_tritons_names_and_defaults() -> None:
    printed = to_json(parse_text(b'name: "m" input { name: "A" data_type: TYPE_FP32 dims: 9007199254740993 }', "f"))
    assert printed["platform"] == ""
    assert printed["version_policy"] == {"latest": {"num_versions": 1}}
    assert printed["input"][0]["dims"] == [9007199254740993]
    assert printed["optimization"]["priority"] == "PRIORITY_DEFAULT"
    assert printed["optimization"]["input_pinned_memory"] == {"enable": True}
    assert printed["parameters"] == {}
    assert "dynamic_batching" not in printed
    assert "reshape" not in printed["input"][0]
