"""What an ensemble's steps must agree on, and what is derived from them. Texts are Triton's."""

from dataclasses import replace
from typing import Any

import pytest

from backends.api.errors import Code, ServingError
from backends.api.model_config import Ensemble, EnsembleStep, ModelConfig, TensorSpec
from scheduler.ensemble_graph import ROOT, EnsembleGraph


def model(
    name: str, *, dims: tuple[int, ...] = (4,), datatype: str = "FP32", batch: int = 8, **more: Any
) -> ModelConfig:
    """One input `a` (and optional `b`), one output `c`."""
    inputs = (TensorSpec("a", datatype, dims), TensorSpec("b", datatype, dims, optional=True))
    return ModelConfig(name, max_batch_size=batch, inputs=inputs, outputs=(TensorSpec("c", datatype, dims),), **more)


def step(name: str, source: str, target: str, **more: str) -> EnsembleStep:
    return EnsembleStep(name, -1, {"a": source, **more}, {"c": target})


def ensemble(*steps: EnsembleStep, outputs: tuple[str, ...] = ("o",), batch: int = 8) -> ModelConfig:
    return ModelConfig(
        "E",
        platform="ensemble",
        max_batch_size=batch,
        inputs=(TensorSpec("i", "FP32", (4,)),),
        outputs=tuple(TensorSpec(name, "FP32", (4,)) for name in outputs),
        ensemble=Ensemble(steps),
    )


CHAIN = ensemble(step("x", "i", "mid"), step("y", "mid", "o"))


def test_only_the_steps_before_an_output_are_needed_for_it() -> None:
    config = ensemble(step("x", "i", "mid"), step("y", "mid", "o"), step("z", "i", "p"), outputs=("o", "p"))
    graph = EnsembleGraph.of(config, [model("x"), model("y"), model("z")])
    assert graph.needed(("o",)) == {0, 1}
    assert graph.needed(("p",)) == {2}
    assert graph.needed(graph.outputs) == {0, 1, 2}
    assert not graph.is_decoupled


def test_a_step_runs_in_the_flow_of_the_last_decoupled_step_before_it() -> None:
    config = ensemble(step("x", "i", "t"), step("y", "t", "u"), step("z", "u", "v", b="i"), step("w", "v", "o"))
    models = [model("x"), model("y", decoupled=True), model("z"), model("w", decoupled=True)]
    graph = EnsembleGraph.of(config, models)
    assert [each.flow for each in graph.steps] == [ROOT, ROOT, 1, 1]
    assert graph.flow_of(("o",)) == 3
    assert graph.flow_of(("t", "v")) == 1
    assert graph.is_decoupled


@pytest.mark.parametrize(
    ("models", "text"),
    [
        (
            [model("x", datatype="INT32"), model("y")],
            (
                "in ensemble E, ensemble tensor i: inconsistent data type: TYPE_FP32 is inferred from model E "
                "while TYPE_INT32 is inferred from model x"
            ),
        ),
        (
            [model("x"), model("y", dims=(5,))],
            (
                "in ensemble E, ensemble tensor mid: inconsistent shape: [-1,4] is inferred from model x "
                "while [-1,5] is inferred from model y"
            ),
        ),
        (
            [model("x"), model("y", batch=4)],
            "ensemble E allows maximum batch size 8, but it contains model y which only allows maximum batch size to be 4",
        ),
        (
            [replace(model("x"), inputs=(TensorSpec("q", "FP32", (4,)),)), model("y")],
            "in ensemble E, ensemble tensor i is mapping to non-existing input a in model x",
        ),
        (
            [model("x"), replace(model("y"), outputs=())],
            "in ensemble E, ensemble tensor o is mapped from non-existing output c in model y",
        ),
        (
            [replace(model("x"), inputs=(*model("x").inputs, TensorSpec("d", "FP32", (4,)))), model("y")],
            "in ensemble E, input d in model x is not mapped to any ensemble tensors",
        ),
    ],
)
def test_models_that_do_not_fit_are_refused(models: list[ModelConfig], text: str) -> None:
    with pytest.raises(ServingError) as refused:
        EnsembleGraph.of(CHAIN, models)
    assert (refused.value.code, refused.value.message) == (Code.INVALID, text)


@pytest.mark.parametrize(
    "models",
    [
        [model("x", dims=(-1,)), model("y")],
        [model("x", batch=0, dims=(-1, 4)), model("y")],  # without batching, and given whole batches
        [model("x", batch=16), model("y", dims=(4,))],
    ],
)
def test_variable_dimensions_and_unbatched_models_of_the_full_shape_fit(models: list[ModelConfig]) -> None:
    EnsembleGraph.of(CHAIN, models)


def test_what_two_decoupled_steps_say_side_by_side_cannot_be_joined() -> None:
    two = step("x", "i", "s"), step("y", "i", "t")
    models = [model("x", decoupled=True), model("y", decoupled=True), model("z")]
    with pytest.raises(ServingError, match="step of model 'z' receives inputs originated from different decoupled"):
        EnsembleGraph.of(ensemble(*two, step("z", "s", "o", b="t")), models)
    with pytest.raises(ServingError, match="its outputs originate from different decoupled models"):
        EnsembleGraph.of(ensemble(*two, outputs=("s", "t")), models[:2])
