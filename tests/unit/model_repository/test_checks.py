"""What a configuration must hold to be served, in the words that Triton's users know."""

from dataclasses import replace
from typing import Any

import pytest

from backends.api.errors import Code, ServingError
from backends.api.model_config import (
    BatchInput,
    BatchOutput,
    DirectStrategy,
    DynamicBatching,
    Ensemble,
    EnsembleStep,
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
from model_repository.checks import check, check_reported, problems

IN, OUT = TensorSpec("i", "FP32", (4,)), TensorSpec("o", "FP32", (4,))
GOOD = ModelConfig(
    "m",
    backend="identity",
    max_batch_size=8,
    inputs=(IN,),
    outputs=(OUT,),
    instance_groups=(InstanceGroup("m_0", "KIND_CPU"),),
)


def with_input(**changes: Any) -> ModelConfig:
    return replace(GOOD, inputs=(replace(IN, **changes),))


def with_output(**changes: Any) -> ModelConfig:
    return replace(GOOD, outputs=(replace(OUT, **changes),))


def with_group(**changes: Any) -> ModelConfig:
    return replace(GOOD, instance_groups=(replace(GOOD.instance_groups[0], **changes),))


def dynamic(**changes: Any) -> ModelConfig:
    return replace(GOOD, dynamic_batching=DynamicBatching(**changes))


def sequence(**changes: Any) -> ModelConfig:
    return replace(GOOD, sequence_batching=SequenceBatching(**changes))


def warmup(batch_size: int = 1, **item: Any) -> ModelConfig:
    values = {"datatype": "FP32", "dims": (4,), "source": "zero_data"} | item
    return replace(GOOD, warmup=(Warmup("w", batch_size, {"i": WarmupInput(**values)}),))


def flag(name: str, kind: str) -> SequenceControl:
    return SequenceControl(name, kind, "INT32", (0, 1))


DELAY = QueuePolicy(TimeoutAction.DELAY, 100)
STEP = EnsembleStep("x", -1, {"a": "i"}, {"c": "o"})


def ensemble(*steps: EnsembleStep, **changes: Any) -> ModelConfig:
    return replace(GOOD, platform="ensemble", ensemble=Ensemble(steps), instance_groups=(), **changes)


def through(source: str, target: str) -> EnsembleStep:
    return EnsembleStep("x", -1, {"a": source}, {"c": target})


WRONG = [
    (replace(GOOD, max_batch_size=-1), "max_batch_size", "'max_batch_size' must be non-negative value for m"),
    (replace(GOOD, version_policy=VersionPolicy(specific=(0,))), "version_policy", "versions start at 1"),
    (with_input(name=""), "input[0]", "model input must specify 'name' for m"),
    (with_input(datatype=""), "input[0]", "model input 'i' must specify 'data_type' for m"),
    (with_output(datatype=""), "output[0]", "model output 'o' must specify 'data_type' for m"),
    (with_input(dims=()), "input[0]", "model input 'i' must specify 'dims' for m"),
    (
        with_input(dims=(0,)),
        "input[0].dims",
        "model input 'i' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
    ),
    (with_output(dims=(-2,)), "output[0].dims", "model output 'o' dimension must be integer >= 1"),
    (with_input(reshape=(0,)), "input[0].reshape", "reshape dimension must be integer >= 1"),
    (with_input(reshape=(5,)), "input[0].reshape", "model input 'i' has different size for dims and reshape for m"),
    (with_output(reshape=()), "output[0].reshape", "model output 'o' has different size for dims and reshape for m"),
    (with_input(dims=(-1, 2), reshape=(2,)), "input[0].reshape", "different number of variable-size dimensions"),
    (with_input(dims=(2, -1, 3), reshape=(3, -1, 2)), "input[0].reshape", "has different size for dims and reshape"),
    (with_input(format="FORMAT_NHWC"), "input[0].format", "NHWC format requires 3 dims, got 1"),
    (replace(GOOD, inputs=(IN, IN)), "input[1].name", "model input 'i' is specified 2 times for m"),
    (with_output(label_filename="../../etc/passwd"), "output[0].label_filename", "must be a path inside the folder"),
    (replace(GOOD, default_model_filename="/etc/passwd"), "default_model_filename", "must be a path inside the folder"),
    (with_group(count=-1), "instance_group[0].count", "must have 'count' >= 1, got -1"),
    (
        with_group(gpus=(0,)),
        "instance_group[0].gpus",
        "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPU",
    ),
    (with_group(resources=(RateLimiterResource("", 1),)), "instance_group[0].rate_limiter", "resource without a name"),
    (
        dynamic(preferred_batch_size=(0,)),
        "dynamic_batching.preferred_batch_size",
        "dynamic batching preferred size must be positive for m",
    ),
    (
        dynamic(preferred_batch_size=(4, 9)),
        "dynamic_batching.preferred_batch_size",
        "dynamic batching preferred size must be <= max batch size for m",
    ),
    (
        dynamic(priority_levels=3),
        "dynamic_batching.default_priority_level",
        "default priority level must be in range [1, 3] for m",
    ),
    (
        dynamic(priority_levels=3, default_priority_level=4),
        "dynamic_batching.default_priority_level",
        "in range [1, 3]",
    ),
    (
        dynamic(priority_levels=1, default_priority_level=1, priority_queue_policy={2: DELAY}),
        "dynamic_batching.priority_queue_policy",
        "priority queue policy must have priority level in range [1, 1] for m",
    ),
    (
        dynamic(preserve_ordering=True, priority_levels=2, default_priority_level=1),
        "dynamic_batching.preserve_ordering",
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    ),
    (
        dynamic(preserve_ordering=True, default_queue_policy=DELAY),
        "dynamic_batching.preserve_ordering",
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        sequence(strategy=DirectStrategy(minimum_slot_utilization=1.5)),
        "sequence_batching.direct",
        "must be in range [0.0, 1.0] for m",
    ),
    (
        sequence(strategy=OldestStrategy(preferred_batch_size=(9,))),
        "sequence_batching.oldest",
        "sequence batching preferred size must be <= max batch size for m",
    ),
    (
        sequence(controls=(flag("A", "START"), flag("B", "START"))),
        "sequence_batching.control_input",
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
    ),
    (
        sequence(controls=(flag("START", "START"), flag("START", "END"))),
        "sequence_batching.control_input",
        "sequence batching control tensor 'START' is specified for multiple control kinds for m",
    ),
    (sequence(controls=(flag("", "START"),)), "sequence_batching.control_input", "must have a name"),
    (
        sequence(controls=(SequenceControl("C", "CORRID", "FP32"),)),
        "sequence_batching.control_input",
        "unexpected data type for control CONTROL_SEQUENCE_CORRID",
    ),
    (
        sequence(states=(SequenceState("a", "", "FP32", (1,)),)),
        "sequence_batching.state",
        "sequence batching state must specify",
    ),
    (replace(sequence(), response_cache=True), "response_cache", "response caching does not support sequence batching"),
    (replace(GOOD, decoupled=True, response_cache=True), "response_cache", "a decoupled transaction policy"),
    (
        replace(GOOD, ensemble=Ensemble((STEP,))),
        "ensemble_scheduling",
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
    ),
    (
        replace(GOOD, platform="ensemble", instance_groups=()),
        "platform",
        "ensemble scheduling must be set for ensemble m whose platform is ensemble",
    ),
    (
        replace(GOOD, platform="ensemble", ensemble=Ensemble((STEP,))),
        "instance_group",
        "instance group should not be specified for ensemble 'm'",
    ),
    (
        replace(GOOD, platform="ensemble", ensemble=Ensemble(()), instance_groups=()),
        "ensemble_scheduling",
        "must specify 'step' for ensemble 'm'",
    ),
    (
        replace(GOOD, platform="ensemble", ensemble=Ensemble((replace(STEP, input_map={}),)), instance_groups=()),
        "ensemble_scheduling.step[0]",
        "must specify 'input_map' in step 0 of ensemble 'm'",
    ),
    (
        ensemble(STEP, through("i", "o")),
        "ensemble_scheduling.step[1].output_map",
        "ensemble tensor 'o' can appear in an output map only once for ensemble 'm' step 1",
    ),
    (ensemble(through("o", "o")), "input[0]", "ensemble input 'i' for ensemble 'm' is not used"),
    (ensemble(through("i", "x")), "output[0]", "ensemble output 'o' for ensemble 'm' is not used"),
    (ensemble(through("i", "x"), through("y", "o")), "output[0]", "output 'o' for ensemble 'm' is not written"),
    (ensemble(STEP, through("y", "z"), through("z", "y")), "ensemble_scheduling.step", "ensemble tensor 'y' is unused"),
    (ensemble(STEP, through("i", "z")), "ensemble_scheduling.step", "ensemble tensor 'z' is unused in ensemble 'm'"),
    (
        ensemble(STEP, optimization=Optimization(graph_level=1)),
        "optimization",
        "optimization should not be specified for ensemble 'm'",
    ),
    (
        ensemble(STEP, warmup=(Warmup("w", 1, {}),)),
        "model_warmup",
        "model_warmup can not be specified for ensemble 'm'",
    ),
    (
        replace(GOOD, batch_inputs=(BatchInput("BATCH_ELEMENT_COUNT", ("b",), "FP32", ()),)),
        "batch_input[0]",
        "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0",
    ),
    (
        replace(GOOD, batch_inputs=(BatchInput("BATCH_ELEMENT_COUNT", ("b",), "INT64", ("i",)),)),
        "batch_input[0]",
        "must have 'data_type' TYPE_INT32 or TYPE_FP32",
    ),
    (
        replace(GOOD, batch_inputs=(BatchInput("BATCH_ELEMENT_COUNT", (), "FP32", ("i",)),)),
        "batch_input[0]",
        "expects 1 target name, got 0",
    ),
    (
        replace(GOOD, batch_inputs=(BatchInput("BATCH_ELEMENT_COUNT", ("b",), "FP32", ("zz",)),)),
        "batch_input[0]",
        "unknown source input 'zz'",
    ),
    (
        replace(GOOD, batch_outputs=(BatchOutput("BATCH_SCATTER_WITH_INPUT_SHAPE", ("zz",), ("i",)),)),
        "batch_output[0]",
        "'zz' is not an output of m",
    ),
    (warmup(batch_size=9), "model_warmup[0].batch_size", "has 'batch_size' 9 > 8"),
    (warmup(datatype=""), "model_warmup[0].inputs", "must specify 'data_type' for input 'i'"),
    (warmup(source=""), "model_warmup[0].inputs", "must specify 'zero_data', 'random_data' or 'input_data_file'"),
    (warmup(source="../x"), "model_warmup[0].inputs", "must be a path inside the folder"),
    (warmup(dims=(-1,)), "model_warmup[0].inputs", "must have fixed dims for input 'i', got [-1]"),
]


@pytest.mark.parametrize(("config", "path", "text"), WRONG)
def test_a_wrong_config_is_told_by_field_and_reason(config: ModelConfig, path: str, text: str) -> None:
    found = [(problem.path, problem.message) for problem in problems(config, completed=True)]
    assert [message for place, message in found if place == path and text in message], found


@pytest.mark.parametrize(
    "config",
    [
        GOOD,
        with_input(dims=(1,), reshape=()),
        with_input(dims=(2, -1, 3), reshape=(2, -1, 3, 1)),
        with_input(dims=(-1, 6), reshape=(-1, 2, 3)),
        with_input(dims=(3, 2, 2), format="FORMAT_NCHW"),
        dynamic(preferred_batch_size=(4, 8), priority_levels=2, default_priority_level=1),
        dynamic(preserve_ordering=True, default_queue_policy=QueuePolicy(TimeoutAction.DELAY)),
        sequence(controls=(flag("A", "START"), flag("B", "END"), SequenceControl("C", "CORRID", "UINT64"))),
        replace(GOOD, max_batch_size=0, dynamic_batching=DynamicBatching()),
        ensemble(STEP),
        ensemble(through("i", "x"), through("x", "o")),
        warmup(source="random_data"),
        with_output(label_filename="labels/imagenet.txt"),
    ],
)
def test_a_good_config_has_no_problems(config: ModelConfig) -> None:
    assert list(problems(config, completed=True)) == []


@pytest.mark.parametrize("config", [with_input(datatype="", dims=()), replace(GOOD, inputs=(), outputs=())])
def test_what_a_backend_may_fill_in_is_not_asked_for_before_it_did(config: ModelConfig) -> None:
    assert list(problems(config, completed=False)) == []


def test_check_raises_the_first_problem() -> None:
    with pytest.raises(ServingError, match="non-negative") as raised:
        check(replace(GOOD, max_batch_size=-1), completed=True)
    assert (raised.value.code, raised.value.param) == (Code.INVALID, "max_batch_size")
    check(GOOD, completed=True)


def test_a_backend_may_fill_in_tensors_and_batching_and_nothing_else() -> None:
    bare = replace(GOOD, inputs=(), outputs=(), max_batch_size=0)
    check_reported(bare, replace(GOOD, dynamic_batching=DynamicBatching()))
    with pytest.raises(ServingError, match="changed 'parameters' of model 'm'") as raised:
        check_reported(GOOD, replace(GOOD, parameters={"a": "b"}))
    assert raised.value.code is Code.INTERNAL
    with pytest.raises(ServingError, match="must specify 'data_type'"):
        check_reported(GOOD, with_input(datatype=""))
