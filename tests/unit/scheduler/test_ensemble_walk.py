"""The way of one request through an ensemble's steps, decided without a clock, a thread or a model."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, TensorSpec
from backends.api.tensor import Tensor
from scheduler.ensemble_graph import EnsembleGraph
from scheduler.ensemble_walk import Answer, Call, Walk
from tests.unit.scheduler.test_ensemble_graph import ensemble, model, step


def tensor(name: str, value: float = 1.0) -> Tensor:
    return Tensor(name, "FP32", (1, 4), np.full((1, 4), value, np.float32))


def value(tensor: Tensor) -> float:
    return float(tensor.as_numpy().flat[0])


def walk(graph: EnsembleGraph, *inputs: Tensor, wanted: tuple[str, ...] = ()) -> Walk:
    return Walk(graph, inputs or (tensor("i"),), ["i", "j"], wanted)


def calls(acts: list[Any]) -> list[Call]:
    return [act for act in acts if isinstance(act, Call)]


def answers(acts: list[Any]) -> list[list[float]]:
    return [[value(output) for output in act.outputs] for act in acts if isinstance(act, Answer)]


DIAMOND = EnsembleGraph.of(
    ensemble(step("x", "i", "s"), step("l", "s", "t"), step("r", "s", "u"), step("z", "t", "o", b="u")),
    [model("x"), model("l"), model("r"), model("z")],
)


def test_steps_that_do_not_need_each_other_run_at_once_and_a_join_waits_for_both() -> None:
    way = walk(DIAMOND)
    (first,) = calls(way.begin())
    left, right = calls(way.answered(first, [tensor("c", 2)]))
    way.ended(first)
    assert [left.step.model, right.step.model] == ["l", "r"]
    assert [each.name for each in left.inputs] == ["a"]
    assert way.answered(right, [tensor("c", 3)]) == []
    (join,) = calls(way.answered(left, [tensor("c", 4)]))
    assert {each.name: value(each) for each in join.inputs} == {"a": 4, "b": 3}
    assert answers(way.answered(join, [tensor("c", 5)])) == [[5]]
    for each in (left, right, join):
        assert not way.is_over
        way.ended(each)
    assert way.is_over


def test_only_what_the_wanted_outputs_need_is_run_and_asked_of_a_step() -> None:
    config = ensemble(step("x", "i", "o"), step("y", "i", "p"), outputs=("o", "p"))
    graph = EnsembleGraph.of(config, [model("x"), model("y")])
    (call,) = calls(walk(graph, wanted=("p",)).begin())
    assert (call.step.model, call.outputs) == ("y", ["c"])


def test_an_optional_input_that_is_absent_is_left_out_of_the_step() -> None:
    config = ensemble(step("x", "i", "s"), step("y", "s", "o", b="j"))
    way = walk(EnsembleGraph.of(config, [model("x"), model("y")]))
    (first,) = calls(way.begin())
    (second,) = calls(way.answered(first, [tensor("c")]))
    assert [each.name for each in second.inputs] == ["a"]


def test_a_required_tensor_that_nobody_gave_is_an_error_that_names_step_and_tensor() -> None:
    config = ensemble(step("x", "i", "s"), step("y", "s", "o"))
    graph = EnsembleGraph.of(config, [model("x"), model("y")])
    way = walk(graph)
    (first,) = calls(way.begin())
    with pytest.raises(ServingError) as failed:
        way.answered(first, [])
    assert failed.value.code is Code.INTERNAL
    assert failed.value.message == (
        "step model 'x' gave no output 'c' for tensor 's', which input 'a' of step model 'y' needs"
    )
    with pytest.raises(
        ServingError, match="the request has no input 'i', which input 'a' of step model 'x'"
    ) as refused:
        walk(graph, tensor("j")).begin()
    assert refused.value.code is Code.INVALID


def test_an_output_that_is_missing_at_the_end_is_an_error() -> None:
    way = walk(EnsembleGraph.of(ensemble(step("x", "i", "o")), [model("x")]))
    (call,) = calls(way.begin())
    with pytest.raises(ServingError, match="'x' gave no output 'c' for tensor 'o', which is asked for"):
        way.answered(call, [])


def test_a_step_that_says_nothing_or_too_much_is_an_error() -> None:
    graph = EnsembleGraph.of(ensemble(step("x", "i", "o")), [model("x")])
    way = walk(graph)
    (call,) = calls(way.begin())
    with pytest.raises(ServingError, match="'x' gave no answer"):
        way.ended(call)
    way.answered(call, [tensor("c")])
    with pytest.raises(ServingError, match="'x' gave more than one answer"):
        way.answered(call, [tensor("c")])


def stream_graph() -> EnsembleGraph:
    """x says many things; y works on each, with z's one tensor beside it."""
    config = ensemble(step("x", "i", "s"), step("z", "i", "u"), step("y", "s", "o", b="u"))
    return EnsembleGraph.of(config, [model("x", decoupled=True), model("z"), model("y")])


def test_what_follows_a_decoupled_step_runs_for_each_of_its_answers() -> None:
    way = walk(stream_graph())
    talker, other = calls(way.begin())
    assert way.answered(talker, [tensor("c", 1)]) == []  # z has not answered yet
    (early,) = calls(way.answered(other, [tensor("c", 9)]))
    way.ended(other)
    (late,) = calls(way.answered(talker, [tensor("c", 2)]))
    way.ended(talker)
    assert [[value(each) for each in call.inputs] for call in (early, late)] == [[1, 9], [2, 9]]
    assert talker.num_inflight == 2
    assert answers(way.answered(late, [tensor("c", 20)])) == [[20]]
    way.ended(late)
    assert talker.num_inflight == 1
    assert answers(way.answered(early, [tensor("c", 10)])) == [[10]]
    way.ended(early)
    assert talker.num_inflight == 0
    assert way.is_over


def test_a_decoupled_step_may_say_nothing() -> None:
    way = walk(stream_graph())
    talker, other = calls(way.begin())
    way.ended(talker)
    assert way.answered(other, [tensor("c")]) == []
    way.ended(other)
    assert way.is_over


@given(num_answers=st.integers(0, 4), seed=st.integers(0, 2**16))
def test_whatever_the_order_of_ends_every_answer_of_nested_streams_comes_out_once(num_answers: int, seed: int) -> None:
    config = ensemble(step("x", "i", "s"), step("y", "s", "t"), step("z", "t", "o", b="i"))
    graph = EnsembleGraph.of(config, [model("x", decoupled=True), model("y", decoupled=True), model("z")])
    order = random.Random(seed)
    way = walk(graph)
    left: dict[Call, int] = dict.fromkeys(calls(way.begin()), num_answers)
    said: list[list[float]] = []
    while left:
        call = order.choice(list(left))
        if not left[call]:
            del left[call]
            way.ended(call)
            continue
        left[call] -= 1
        acts = way.answered(call, [tensor("c", left[call])])
        said += answers(acts)
        left.update({each: num_answers if each.step.is_decoupled else 1 for each in calls(acts)})
    assert way.is_over
    assert len(said) == num_answers**2


def test_an_input_may_be_an_output_as_it_is() -> None:
    config = ModelConfig("E", inputs=(TensorSpec("i", "FP32", (4,)),), outputs=(TensorSpec("i", "FP32", (4,)),))
    graph = EnsembleGraph(config.name, (), {}, ("i",))
    assert answers(walk(graph, tensor("i", 7)).begin()) == [[7]]
