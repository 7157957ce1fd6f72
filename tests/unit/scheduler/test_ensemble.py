"""A running ensemble over models that answer at once, later, on other threads, or never."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from backends.api.errors import Code, ServingError
from backends.api.model_config import Ensemble, EnsembleStep, ModelConfig, TensorSpec
from backends.api.request import InferenceRequest, InferenceResponse, RequestedOutput
from backends.api.statistics import Failure
from backends.api.tensor import Tensor
from scheduler.ensemble import EnsembleModel, load_ensemble
from scheduler.response_cache import LocalCache
from tests.unit.scheduler.test_ensemble_graph import ensemble, model, step

Behaviour = Callable[[InferenceRequest], None]


def out(value: float, rows: int = 1) -> list[Tensor]:
    return [Tensor("c", "FP32", (rows, 4), np.full((rows, 4), value, np.float32))]


def add_one(request: InferenceRequest) -> None:
    array = sum(np.asarray(given.data) for given in request.inputs) + np.float32(1)
    request.stream.finish(InferenceResponse(request.model, "1", [Tensor("c", "FP32", array.shape, array)]))


def on_a_thread(behaviour: Behaviour) -> Behaviour:
    return lambda request: threading.Thread(target=behaviour, args=(request,)).start()


def fails(code: Code, text: str) -> Behaviour:
    return lambda request: request.stream.fail(ServingError(code, text))


def refuses(code: Code, text: str) -> Behaviour:
    def infer(request: InferenceRequest) -> None:
        raise ServingError(code, text)

    return infer


def says(*values: float) -> Behaviour:
    """A decoupled model: one answer a value."""

    def infer(request: InferenceRequest) -> None:
        for value in values:
            request.stream.put(InferenceResponse(request.model, "1", out(value), final=False))
        request.stream.finish()

    return infer


@dataclass
class Model:
    """A live model that keeps what it was asked."""

    config: ModelConfig
    behaviour: Behaviour = add_one
    version: str = "1"
    requests: list[InferenceRequest] = field(default_factory=list)

    def infer(self, request: InferenceRequest) -> None:
        self.requests.append(request)
        self.behaviour(request)

    async def close(self) -> None: ...


def serve(config: ModelConfig, *models: Model, **more: Any) -> EnsembleModel:
    by_name = {each.config.name: each for each in models}

    def find(name: str, version: str, *, namespace: str) -> Model:
        if name not in by_name:
            raise ServingError(Code.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        return by_name[name]

    return load_ensemble(config, "1", find, **more)


def ask(value: float = 0, outputs: Sequence[str] = (), rows: int = 1, **more: Any) -> InferenceRequest:
    given = Tensor("i", "FP32", (rows, 4), np.full((rows, 4), value, np.float32))
    return InferenceRequest("E", "", [given], [RequestedOutput(name) for name in outputs], **more)


async def answers(served: EnsembleModel, request: InferenceRequest) -> list[dict[str, float]]:
    served.infer(request)
    return [
        {output.name: float(np.asarray(output.data).flat[0]) for output in response.outputs}
        async for response in request.stream
    ]


CHAIN = ensemble(step("x", "i", "mid"), step("y", "mid", "o"))


@pytest.mark.parametrize("behaviour", [add_one, on_a_thread(add_one)])
async def test_a_request_goes_through_its_steps(behaviour: Behaviour) -> None:
    served = serve(CHAIN, Model(model("x"), behaviour), Model(model("y"), behaviour))
    assert await answers(served, ask(5)) == [{"o": 7}]
    counts = served.statistics.snapshot()
    assert (counts.success.count, counts.inference_count, counts.execution_count) == (1, 1, 1)
    await served.close()


async def test_many_requests_at_once_each_get_their_own_answer() -> None:
    served = serve(CHAIN, Model(model("x"), on_a_thread(add_one)), Model(model("y"), on_a_thread(add_one)))
    found = await asyncio.gather(*(answers(served, ask(value, rows=2)) for value in range(64)))
    assert found == [[{"o": value + 2}] for value in range(64)]
    assert served.statistics.snapshot().inference_count == 128


async def test_a_step_is_asked_with_what_the_request_said() -> None:
    x, y = Model(model("x")), Model(model("y"))
    served = serve(CHAIN, x, y)
    said: dict[str, Any] = {"id": "r1", "sequence_id": 7, "sequence_start": True, "sequence_end": True, "priority": 2}
    said["cache_salt"] = "salt"
    await answers(served, ask(parameters={"k": "v"}, deadline=1e9, timeout_us=5, **said))
    for request in (*x.requests, *y.requests):
        assert {name: getattr(request, name) for name in said} == said
        assert (request.parameters, request.deadline) == ({"k": "v"}, 1e9)
        assert request.timeout_us == 0  # a step waits as its own queue policy says
        assert [output.name for output in request.outputs] == ["c"]


async def test_only_the_steps_that_are_needed_run() -> None:
    config = ensemble(step("x", "i", "o"), step("y", "i", "p"), outputs=("o", "p"))
    x, y = Model(model("x")), Model(model("y"))
    served = serve(config, x, y)
    assert await answers(served, ask(outputs=["p"])) == [{"p": 1}]
    assert (len(x.requests), len(y.requests)) == (0, 1)
    assert await answers(served, ask(outputs=["p", "o"])) == [{"p": 1, "o": 1}]
    with pytest.raises(ServingError, match="unexpected inference output 'q' for model 'E'"):
        await answers(served, ask(outputs=["q"]))
    assert (len(x.requests), len(y.requests)) == (1, 2)


@pytest.mark.parametrize(
    ("behaviour", "code", "reason"),
    [
        (fails(Code.UNAVAILABLE, "boom"), Code.UNAVAILABLE, Failure.REJECTED),
        (refuses(Code.OVERLOADED, "boom"), Code.OVERLOADED, Failure.REJECTED),
        (on_a_thread(fails(Code.INTERNAL, "boom")), Code.INTERNAL, Failure.BACKEND),
    ],
)
async def test_a_steps_error_ends_the_request_as_the_ensembles_and_frees_its_other_branches(
    behaviour: Behaviour, code: Code, reason: Failure
) -> None:
    config = ensemble(step("slow", "i", "s"), step("bad", "i", "t"), step("z", "s", "o", b="t"))
    slow = Model(model("slow"), lambda request: None)
    served = serve(config, slow, Model(model("bad"), behaviour), Model(model("z")))
    with pytest.raises(ServingError) as failed:
        await answers(served, ask())
    assert (failed.value.code, failed.value.message) == (code, "in ensemble 'E', boom")
    assert slow.requests[0].stream.cancelled
    counts = served.statistics.snapshot()
    assert {each: count for each, count in counts.failures.items() if count} == {reason: 1}
    await served.close()


async def test_a_tensor_that_a_step_cannot_take_is_an_error_of_that_step() -> None:
    served = serve(CHAIN, Model(model("x", dims=(-1,))), Model(model("y", dims=(-1,))))
    bad = Model(model("y"))
    served = serve(CHAIN, Model(model("x", dims=(-1,)), lambda r: r.stream.finish(_answer_of(3))), bad)
    with pytest.raises(ServingError, match=r"in ensemble 'E', .*unexpected shape for input 'a' for model 'y'"):
        await answers(served, ask())
    assert bad.requests == []


def _answer_of(width: int) -> InferenceResponse:
    return InferenceResponse("x", "1", [Tensor("c", "FP32", (1, width), np.zeros((1, width), np.float32))])


async def test_the_answers_of_a_decoupled_step_stream_through() -> None:
    served = serve(CHAIN, Model(model("x", decoupled=True), says(10, 20, 30)), Model(model("y"), on_a_thread(add_one)))
    assert served.config.decoupled
    found = await answers(served, ask())
    assert sorted(each["o"] for each in found) == [11, 21, 31]
    served = serve(CHAIN, Model(model("x", decoupled=True), says()), Model(model("y")))
    assert await answers(served, ask()) == []


async def test_an_error_in_the_middle_of_a_stream_comes_after_what_went_before() -> None:
    def infer(request: InferenceRequest) -> None:
        request.stream.put(InferenceResponse("x", "1", out(1)))
        request.stream.fail(ServingError(Code.INTERNAL, "no more"))

    served = serve(CHAIN, Model(model("x", decoupled=True), infer), Model(model("y")))
    request = ask()
    served.infer(request)
    assert (await anext(request.stream)).outputs[0].name == "o"
    with pytest.raises(ServingError, match="in ensemble 'E', no more"):
        await anext(request.stream)


async def test_no_more_answers_are_under_way_than_the_limit_says() -> None:
    waiting: list[InferenceRequest] = []
    config = replace(CHAIN, ensemble=Ensemble(CHAIN.ensemble.steps, max_inflight_requests=2))  # type: ignore[union-attr]
    served = serve(config, Model(model("x", decoupled=True), says(*range(6))), Model(model("y"), waiting.append))
    request = ask()
    served.infer(request)
    seen = []
    for _ in range(6):
        assert len(waiting) <= 2
        add_one(waiting.pop(0))
        seen.append(float(np.asarray((await anext(request.stream)).outputs[0].data).flat[0]))
    assert seen == [1, 2, 3, 4, 5, 6]
    assert [response async for response in request.stream] == []


async def test_a_caller_who_does_not_read_holds_back_the_stream() -> None:
    served = serve(CHAIN, Model(model("x", decoupled=True), says(*range(2000))), Model(model("y")))
    request = ask()
    served.infer(request)
    assert request.stream.num_waiting < 300
    assert len([response async for response in request.stream]) == 2000
    await served.close()


async def test_a_caller_who_leaves_cancels_the_steps_under_way() -> None:
    x = Model(model("x"), lambda request: None)
    served = serve(CHAIN, x, Model(model("y")))
    request = ask()
    served.infer(request)
    request.stream.cancel()
    assert x.requests[0].stream.cancelled
    await served.close()
    assert served.statistics.snapshot().failures[Failure.CANCELED] == 1


async def test_it_may_be_asked_and_left_from_other_threads() -> None:
    served = serve(CHAIN, Model(model("x"), on_a_thread(add_one)), Model(model("y"), on_a_thread(add_one)))
    request = ask(1)
    await asyncio.to_thread(served.infer, request)
    response = await asyncio.to_thread(request.stream.get, 20)
    assert response is not None
    left = ask()
    served.infer(left)
    await asyncio.to_thread(left.stream.cancel)
    await served.close()


async def test_close_answers_what_was_taken_and_refuses_what_comes() -> None:
    x = Model(model("x"), lambda request: None)
    served = serve(CHAIN, x, Model(model("y")))
    request = ask(3)
    served.infer(request)
    closing = asyncio.create_task(served.close())
    await asyncio.sleep(0)
    with pytest.raises(ServingError, match="stopped accepting new"):
        served.infer(ask())
    assert not closing.done()
    add_one(x.requests[0])
    await closing
    assert (await anext(request.stream)).outputs[0].name == "o"


async def test_a_step_replaced_between_look_up_and_call_is_asked_in_its_new_form() -> None:
    def closing(request: InferenceRequest) -> None:
        by_name["x"] = Model(model("x"))
        raise ServingError(Code.UNAVAILABLE, "closing", reason="closing")

    by_name = {"x": Model(model("x"), closing), "y": Model(model("y"))}
    served = load_ensemble(CHAIN, "1", lambda name, version, *, namespace: by_name[name])
    assert await answers(served, ask(1)) == [{"o": 3}]


async def test_a_request_keeps_which_version_took_each_step() -> None:
    x, y = Model(model("x"), version="4"), Model(model("y"), version="2")
    asked = ask()
    await answers(serve(CHAIN, x, y), asked)
    assert [(run.model, run.version) for run in asked.steps] == [("x", "4"), ("y", "2")]
    assert [run.times for run in asked.steps] == [request.times for request in (*x.requests, *y.requests)]


async def test_it_is_ready_while_all_its_steps_are() -> None:
    by_name = {"x": Model(model("x")), "y": Model(model("y"))}

    def find(name: str, version: str, *, namespace: str) -> Model:
        if name not in by_name:
            raise ServingError(Code.NOT_FOUND, f"no '{name}'")
        return by_name[name]

    served = load_ensemble(CHAIN, "1", find)
    assert served.is_ready
    del by_name["y"]
    assert not served.is_ready
    with pytest.raises(ServingError, match="in ensemble 'E', no 'y'"):
        await answers(served, ask())


async def test_a_step_of_a_version_that_is_not_there_fails_the_load() -> None:
    config = ensemble(EnsembleStep("x", 3, {"a": "i"}, {"c": "o"}))
    with pytest.raises(ServingError, match="ensemble 'E' depends on 'x' whose required version 3 is not loaded"):
        serve(config)


async def test_the_response_cache_answers_a_whole_ensemble() -> None:
    x = Model(model("x"))
    config = replace(ensemble(step("x", "i", "o")), response_cache=True)
    served = serve(config, x, cache=LocalCache(1 << 20))
    assert await answers(served, ask(1)) == [{"o": 2}]
    assert await answers(served, ask(1)) == [{"o": 2}]
    assert len(x.requests) == 1
    counts = served.statistics.snapshot()
    assert (counts.success.count, counts.cache_hit.count, counts.cache_miss.count) == (2, 1, 1)
    with pytest.raises(ServingError, match="response caching does not support"):
        serve(config, Model(model("x", decoupled=True)), cache=LocalCache(1 << 20))


async def test_reshaped_tensors_are_the_steps_inside_and_the_callers_outside() -> None:
    config = replace(
        ensemble(step("x", "i", "o")),
        inputs=(TensorSpec("i", "FP32", (2, 2), reshape=(4,)),),
        outputs=(TensorSpec("o", "FP32", (2, 2), reshape=(4,)),),
    )
    served = serve(config, Model(model("x")))
    array = np.zeros((1, 2, 2), np.float32)
    request = InferenceRequest("E", "", [Tensor("i", "FP32", array.shape, array)])
    served.infer(request)
    assert (await anext(request.stream)).outputs[0].shape == (1, 2, 2)
