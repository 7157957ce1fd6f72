"""Custom models that ask for other models, for metrics and for the repository."""

import asyncio
import time
from pathlib import Path

import pytest

from backends.api.errors import Code
from backends.api.statistics import Failure
from gateway.custom_metrics import custom_families
from tests.fakes.kserve import echo, identity, silent
from tests.unit.backends.python_models import DECOUPLED, ONE_INT, PATIENCE, ask, failure, loaded, request

pytestmark = pytest.mark.slow  # starts processes

DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            x = r.inputs()[0].as_numpy()
            if (x < 0).any():
                out.append(pb.InferenceResponse(error=pb.TritonError("negative", pb.TritonError.INVALID_ARG)))
            else:
                out.append(pb.InferenceResponse([pb.Tensor("OUT", x * 2)]))
        return out
"""
CALLER = """
import asyncio
def call(model, x, outputs=("OUT",), **more):
    return pb.InferenceRequest(model_name=model, inputs=[pb.Tensor("IN", x)], requested_output_names=list(outputs), **more)
def answer(response):
    if response.has_error():
        return pb.InferenceResponse(error=pb.TritonError("nested: " + response.error().message(), response.error().code()))
    return pb.InferenceResponse([pb.Tensor("OUT", pb.get_output_tensor_by_name(response, "OUT").as_numpy())])
"""
FORWARD = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(call("{target}", r.inputs()[0].as_numpy() {change}).exec()) for r in requests]
"""
COUNT_UP = """
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            for x in range(int(r.inputs()[0].as_numpy().flat[0])):
                sender.send(pb.InferenceResponse([pb.Tensor("OUT", np.array([[x]], np.int32))]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
UNTIL_CANCELLED = """
import time
class TritonPythonModel:
    def execute(self, requests):
        while not requests[0].is_cancelled():
            time.sleep(0.001)
        return [pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""


def forward(target: str, change: str = "") -> str:
    return CALLER + FORWARD.format(target=target, change=change)


async def test_a_model_asks_another(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        await models.load("double", DOUBLE)
        caller = await models.load("caller", forward("double"))
        assert await ask(caller, [3]) == [[6]]
        large = list(range(50_000))
        assert await ask(caller, large) == [[2 * value for value in large]]
        error = await failure(caller, [-1])
        assert (error.code, error.message) == (Code.INVALID, "nested: negative")


@pytest.mark.parametrize(
    ("target", "code", "text"),
    [
        ("nobody", Code.NOT_FOUND, "unknown model: 'nobody'"),
        ("many", Code.INVALID, "Please use 'decoupled=True'"),
    ],
)
async def test_a_call_that_cannot_be_is_the_response_s_error(
    tmp_path: Path, target: str, code: Code, text: str
) -> None:
    async with loaded(tmp_path) as models:
        await models.load("many", COUNT_UP, DECOUPLED)
        error = await failure(await models.load("caller", forward(target)))
        assert (error.code, text in error.message) == (code, True), error


async def test_wrong_inputs_and_outputs_of_a_call_are_found_before_the_model_sees_them(tmp_path: Path) -> None:
    source = (
        CALLER
        + """
class TritonPythonModel:
    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        texts = [call("double", x.astype(np.float32)).exec().error().message(),
                 call("double", x, ["NOPE"]).exec().error().message()]
        return [pb.InferenceResponse([pb.Tensor("OUT", np.array([texts], dtype=object))])]
"""
    )
    config = ONE_INT.replace('"OUT" data_type: TYPE_INT32', '"OUT" data_type: TYPE_STRING')
    async with loaded(tmp_path) as models:
        await models.load("double", DOUBLE)
        ((first, second),) = await ask(await models.load("caller", source, config))
        assert b"data-type is 'FP32', but model 'double' expects 'INT32'" in first
        assert b"unexpected inference output 'NOPE' for model 'double'" in second


async def test_many_calls_at_once_with_async_exec(tmp_path: Path) -> None:
    source = (
        CALLER
        + """
class TritonPythonModel:
    async def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        parts = await asyncio.gather(*[call("double", x + n).async_exec() for n in range(10)])
        total = sum(pb.get_output_tensor_by_name(part, "OUT").as_numpy() for part in parts)
        return [pb.InferenceResponse([pb.Tensor("OUT", total)])]
"""
    )
    async with loaded(tmp_path) as models:
        await models.load("double", DOUBLE)
        caller = await models.load("caller", source)
        answers = await asyncio.gather(*(ask(caller, [value]) for value in range(20)))
        assert answers == [[[2 * (10 * value + 45)]] for value in range(20)]


async def test_async_exec_works_on_a_loop_of_the_model_s_own(tmp_path: Path) -> None:
    source = (
        CALLER
        + """
class TritonPythonModel:
    def execute(self, requests):
        async def both(x):
            return await asyncio.gather(call("double", x).async_exec(), call("double", x + 1).async_exec())
        out = []
        for r in requests:
            one, two = asyncio.run(both(r.inputs()[0].as_numpy()))
            total = one.output_tensors()[0].as_numpy() + two.output_tensors()[0].as_numpy()
            out.append(pb.InferenceResponse([pb.Tensor("OUT", total)]))
        return out
"""
    )
    async with loaded(tmp_path) as models:
        await models.load("double", DOUBLE)
        caller = await models.load("caller", source)
        assert await ask(caller, [5]) == [[22]]
        assert await ask(caller, [6]) == [[26]]


@pytest.mark.parametrize("keyword", ["sync", "async"])
async def test_the_responses_of_a_decoupled_call_come_one_by_one(tmp_path: Path, keyword: str) -> None:
    body = {
        "sync": "for part in call('many', x).exec(decoupled=True):",
        "async": "async for part in await call('many', x).async_exec(decoupled=True):",
    }[keyword]
    source = (
        CALLER
        + f"""
class TritonPythonModel:
    {"async " if keyword == "async" else ""}def execute(self, requests):
        for r in requests:
            x, sender = r.inputs()[0].as_numpy(), r.get_response_sender()
            {body}
                sender.send(pb.InferenceResponse([pb.Tensor("OUT", part.output_tensors()[0].as_numpy() * 10)]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    )
    async with loaded(tmp_path) as models:
        await models.load("many", COUNT_UP, DECOUPLED)
        caller = await models.load("caller", source, DECOUPLED)
        assert await ask(caller, [3]) == [[0], [10], [20]]
        assert await ask(caller, [0]) == []
        assert len(await ask(caller, [300])) == 300


async def test_a_cancel_goes_down_to_the_models_that_were_called(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        inner = await models.load("inner", UNTIL_CANCELLED)
        outer = await models.load("outer", forward("inner"))
        asked = request()
        outer.infer(asked)
        while not inner.backend.instances[0].num_open:
            await asyncio.sleep(0.001)
        asked.stream.cancel()
        while not inner.statistics.snapshot().failures[Failure.CANCELED]:
            await asyncio.sleep(0.001)
        asked = request()
        outer.infer(asked)  # both instances are free again
        while not inner.backend.instances[0].num_open:
            await asyncio.sleep(0.001)
        asked.stream.cancel()


async def test_a_deadline_goes_down_to_the_models_that_were_called(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        inner = await models.load("inner", UNTIL_CANCELLED)
        outer = await models.load("outer", forward("inner"))
        error = await failure(outer, deadline=time.monotonic() + 0.1)
        assert error.code is Code.DEADLINE
        while not inner.statistics.snapshot().fail.count:
            await asyncio.sleep(0.001)


async def test_the_caller_s_cache_salt_goes_down_to_the_models_that_were_called(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        inner = identity("inner", "INT32", behaviour=silent)
        models.repository.models["inner"] = inner
        outer = await models.load("outer", forward("inner"))
        asked = request((1,), cache_salt="salt")
        outer.infer(asked)
        nested = await asyncio.to_thread(inner.silenced.get, timeout=PATIENCE)
        assert nested.cache_salt == "salt"
        echo(inner, nested)
        assert await anext(asked.stream)


async def test_a_call_that_would_wait_for_itself_is_refused(tmp_path: Path) -> None:
    source = (
        CALLER
        + """
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            x = r.inputs()[0].as_numpy()
            out.append(answer(call("me", x - 1).exec()) if x.flat[0] > 0 else pb.InferenceResponse([pb.Tensor("OUT", x)]))
        return out
"""
    )
    async with loaded(tmp_path) as models:
        me = await models.load("me", source)
        error = await failure(me, [1])
        assert error.code is Code.UNAVAILABLE
        assert "every instance waits for this call to end" in error.message
        assert await ask(me, [0]) == [[0]]


ON_THE_LOOP = (
    CALLER
    + """
class TritonPythonModel:
    async def execute(self, requests):
        out = []
        for r in requests:
            x = r.inputs()[0].as_numpy()
            if x.flat[0] <= 0:
                out.append(pb.InferenceResponse([pb.Tensor("OUT", x)]))
                continue
            asked = call("%s", x - 1)
            out.append(answer(%s))
        return out
"""
)


@pytest.mark.parametrize("count", [1, 2])
async def test_exec_on_the_event_loop_of_the_model_it_asks_is_refused(tmp_path: Path, count: int) -> None:
    async with loaded(tmp_path) as models:
        config = ONE_INT + f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]"
        me = await models.load("me", ON_THE_LOOP % ("me", "asked.exec()"), config)
        outcomes = await asyncio.gather(*(failure(me, [1]) for _ in range(5)))
        assert {error.code for error in outcomes} == {Code.UNAVAILABLE}
        assert "await async_exec() in place of exec()" in outcomes[0].message
        assert await ask(me, [0]) == [[0]]


async def test_a_call_back_to_a_model_whose_event_loop_waits_for_it_is_refused(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        me = await models.load("me", ON_THE_LOOP % ("other", "asked.exec()"))
        await models.load("other", forward("me"))
        error = await failure(me, [1])
        assert (error.code, "'other' calls model 'me'" in error.message) == (Code.UNAVAILABLE, True)
        assert await ask(me, [0]) == [[0]]


@pytest.mark.parametrize("way", ["await asked.async_exec()", "await asyncio.to_thread(asked.exec)"])
async def test_a_model_may_call_itself_beside_its_event_loop(tmp_path: Path, way: str) -> None:
    async with loaded(tmp_path) as models:
        me = await models.load("me", ON_THE_LOOP % ("me", way))
        assert await asyncio.gather(ask(me, [2]), ask(me, [1])) == [[[0]], [[0]]]


async def test_a_model_with_a_second_instance_may_call_itself(tmp_path: Path) -> None:
    source = (
        CALLER
        + """
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            x = r.inputs()[0].as_numpy()
            out.append(answer(call("me", x - 1).exec()) if x.flat[0] > 0 else pb.InferenceResponse([pb.Tensor("OUT", x)]))
        return out
"""
    )
    async with loaded(tmp_path) as models:
        me = await models.load("me", source, ONE_INT + "instance_group [ { kind: KIND_CPU count: 2 } ]")
        assert await ask(me, [1]) == [[0]]
        outcomes = await asyncio.gather(*(ask(me, [1]) for _ in range(20)), return_exceptions=True)
        assert all(each == [[0]] or getattr(each, "code", None) is Code.UNAVAILABLE for each in outcomes)


async def test_two_models_that_call_each_other_never_wait_for_ever(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        one = await models.load("one", forward("two"))
        two = await models.load("two", forward("one"))
        outcomes = await asyncio.gather(*(ask(model) for model in (one, two) * 10), return_exceptions=True)
        assert all(getattr(each, "code", None) is Code.UNAVAILABLE for each in outcomes)


async def test_the_death_of_a_called_model_is_an_error_of_the_call(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        await models.load("dies", "import os\nclass TritonPythonModel:\n    def execute(self, r): os._exit(1)\n")
        caller = await models.load("caller", forward("dies"))
        assert "nested: Stub process 'dies_0_0' is not healthy." in (await failure(caller)).message


async def test_the_death_of_a_caller_cancels_what_it_called(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        inner = await models.load("inner", UNTIL_CANCELLED)
        outer = await models.load("outer", forward("inner"))
        asked = asyncio.create_task(failure(outer))
        while not inner.backend.instances[0].num_open:
            await asyncio.sleep(0.001)
        process = outer.backend.instances[0]._process
        assert process is not None
        process._process.kill()
        assert "is not healthy" in (await asyncio.wait_for(asked, PATIENCE)).message
        while not inner.statistics.snapshot().failures[Failure.CANCELED]:
            await asyncio.sleep(0.001)


async def test_metrics_of_a_model_are_shared_by_its_instances_and_outlive_a_process(tmp_path: Path) -> None:
    source = """
import os
class TritonPythonModel:
    def initialize(self, args):
        family = pb.MetricFamily(name="seen", description="Requests seen", kind=pb.MetricFamily.COUNTER)
        self.seen = family.Metric(labels={"kind": "all"})
        self.size = pb.MetricFamily(name="size", description="Size", kind=pb.MetricFamily.HISTOGRAM).Metric(
            labels={}, buckets=[1.0, 10.0])
        self.level = pb.MetricFamily(name="level", description="Level", kind=pb.MetricFamily.GAUGE).Metric(labels={})
    def execute(self, requests):
        out = []
        for r in requests:
            x = r.inputs()[0].as_numpy()
            if x.flat[0] < 0: os._exit(1)
            self.seen.increment(1); self.size.observe(float(x.flat[0])); self.level.set(float(x.flat[0]) / 2)
            out.append(pb.InferenceResponse([pb.Tensor("OUT", np.full((1, 1), self.seen.value(), np.int32))]))
        return out
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, ONE_INT + "instance_group [ { kind: KIND_CPU count: 2 } ]")
        assert sorted([await ask(model, [value]) for value in (1, 5, 50)]) == [[[1]], [[2]], [[3]]]
        await failure(model, [-1])
        assert await ask(model, [5]) == [[4]]
        text = "".join(custom_families([model]))
        assert '# HELP seen Requests seen\n# TYPE seen counter\nseen{kind="all"} 4\n' in text
        assert "level 2.5\n" in text
        assert (
            'size_bucket{le="1"} 1\nsize_bucket{le="10"} 3\nsize_bucket{le="+Inf"} 4\nsize_sum 61\nsize_count 4\n'
            in text
        )


async def test_misused_metrics_are_an_exception_of_the_model(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        counter = pb.MetricFamily(name="c", description="", kind=pb.MetricFamily.COUNTER).Metric(labels={})
        histogram = pb.MetricFamily(name="h", description="", kind=pb.MetricFamily.HISTOGRAM)
        texts = []
        for act in (lambda: counter.increment(-1), lambda: counter.set(1), lambda: counter.observe(1),
                    lambda: pb.MetricFamily(name="c", description="", kind=pb.MetricFamily.GAUGE),
                    lambda: pb.MetricFamily(name="no name", description="", kind=pb.MetricFamily.GAUGE),
                    lambda: pb.MetricFamily(name="nv_inference_count", description="", kind=pb.MetricFamily.COUNTER),
                    *(lambda bounds=bounds: histogram.Metric(labels={}, buckets=bounds)
                      for bounds in ([], [3, 1], [1, 1], [float("nan")], [1, float("inf")]))):
            try:
                act()
                texts.append("")
            except pb.TritonModelException as error:
                texts.append(str(error))
        return [pb.InferenceResponse([pb.Tensor("OUT", np.array([texts], dtype=object))])]
"""
    config = ONE_INT.replace('"OUT" data_type: TYPE_INT32', '"OUT" data_type: TYPE_STRING')
    async with loaded(tmp_path) as models:
        (texts,) = await ask(await models.load("m", source, config))
        assert all(texts), texts


async def test_a_model_controls_the_repository(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        pb.load_model("other", config='{"max_batch_size": 2}', files={"file:1/model.py": b"x"})
        pb.unload_model("other")
        try:
            pb.load_model("missing")
        except pb.TritonModelException as error:
            texts = [str(error), str(pb.is_model_ready("m")), str(pb.is_model_ready("missing", "3"))]
        return [pb.InferenceResponse([pb.Tensor("OUT", np.array([texts], dtype=object))])]
"""
    config = ONE_INT.replace('"OUT" data_type: TYPE_INT32', '"OUT" data_type: TYPE_STRING')
    async with loaded(tmp_path) as models:
        (texts,) = await ask(await models.load("m", source, config))
        assert texts == [b"failed to load 'missing', no such model", b"True", b"False"]
        assert models.repository.log == [
            ("load", "other", '{"max_batch_size": 2}', {"file:1/model.py": b"x"}),
            ("unload", "other", False),
            ("load", "missing", None, None),
        ]


async def test_a_model_that_unloads_itself_answers_first(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        pb.unload_model("me")
        return [pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
    async with loaded(tmp_path) as models:
        me = await models.load("me", source)
        assert await ask(me, [7]) == [[7]]
        await asyncio.wait_for(me.close(), PATIENCE)
        assert (await failure(me)).code is Code.UNAVAILABLE
