"""A pooling model asked through tensors, and what its configuration may say."""

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.api.errors import Code, ServingError
from backends.api.model_config import DynamicBatching, InstanceGroup, ModelConfig, TensorSpec
from backends.api.request import InferenceRequest, InferenceResponse, RequestedOutput
from backends.api.statistics import Failure
from backends.api.tensor import Tensor
from backends.pooling.request import pooling_request
from backends.pooling.runner import Row
from scheduler.pooling_config import check_pooling_config, pooling_spec
from scheduler.pooling_model import PoolingModel
from tests.fakes.pooling_runner import FakePoolingRunner, expected_vector, fake_model, toy_tokenizer

TOKENIZER = toy_tokenizer()
POOLING = ModelConfig("emb", backend="pooling", instance_groups=(InstanceGroup("emb_0", "KIND_MODEL"),))


@asynccontextmanager
async def serving(**changes: Any):
    model = fake_model(**changes)
    yield model
    await model.close()


def ask(*columns: list[bytes], names: tuple[str, ...] = ("text_input",), batched: bool = False, **fields: Any):
    inputs = [
        Tensor(name, "BYTES", (len(texts), 1) if batched else (len(texts),), texts)
        for name, texts in zip(names, columns, strict=True)
    ]
    return InferenceRequest("emb", "", inputs, **fields)


async def answer(model: PoolingModel, request: InferenceRequest) -> dict[str, np.ndarray]:
    model.infer(request)
    responses: list[InferenceResponse] = [response async for response in request.stream]
    assert len(responses) == 1
    return {tensor.name: tensor.as_numpy() for tensor in responses[0].outputs}


async def error(model: PoolingModel, request: InferenceRequest) -> ServingError:
    with pytest.raises(ServingError) as caught:
        await answer(model, request)
    return caught.value


async def test_texts_become_vectors_and_token_counts_of_the_configured_shapes():
    async with serving() as model:
        found = await answer(model, ask([b"a", b"tide"]))
        assert [spec.dims for spec in (*model.config.inputs, *model.config.outputs)] == [(-1,), (-1, 4), (-1,)]
    rows = TOKENIZER.encode(["a", "tide"])
    assert found["embedding"].tolist() == [expected_vector(*row).tolist() for row in rows]
    assert found["num_input_tokens"].tolist() == [3, 6]


async def test_with_batching_a_text_is_a_row():
    async with serving(max_batch_size=8) as model:
        found = await answer(model, ask([b"a", b"tide"], batched=True))
        assert [spec.dims for spec in (*model.config.inputs, *model.config.outputs)] == [(1,), (4,), (1,)]
    assert (found["embedding"].shape, found["num_input_tokens"].tolist()) == ((2, 4), [[3], [6]])


async def test_pairs_become_scores():
    async with serving(task="score") as model:
        found = await answer(model, ask([b"a", b"bb"], [b"c", b"d"], names=("text_1", "text_2")))
        uneven = await error(model, ask([b"a", b"bb"], [b"c"], names=("text_1", "text_2")))
    rows = TOKENIZER.encode_pairs([("a", "c"), ("bb", "d")])
    assert found["score"].tolist() == [expected_vector(*row, 1).tolist() for row in rows]
    assert (uneven.code, "expected 2 texts" in uneven.message) == (Code.INVALID, True)


async def test_only_the_outputs_asked_for_are_given():
    async with serving() as model:
        found = await answer(model, ask([b"a"], outputs=[RequestedOutput("num_input_tokens")]))
    assert found.keys() == {"num_input_tokens"}


@pytest.mark.parametrize(
    ("texts", "text"),
    [([], "at least one text"), ([b"\xff"], "UTF-8"), ([b"a", b"b" * 31], "maximum context length is 32 tokens")],
)
async def test_bad_texts_are_refused_and_counted(texts, text):
    async with serving() as model:
        refused = await error(model, ask(texts))
        counts = model.statistics.snapshot()
    assert (refused.code, text in refused.message) == (Code.INVALID, True)
    assert counts.failures[Failure.OTHER] == counts.fail.count == 1


async def test_statistics_count_texts_requests_and_times():
    async with serving() as model:
        await answer(model, ask([b"a", b"b", b"c"]))
        await answer(model, ask([b"a"]))
        counts = model.statistics.snapshot()
    assert (counts.inference_count, counts.execution_count, counts.success.count) == (4, 2, 2)
    assert counts.batch_stats.keys() == {1, 3}
    assert counts.success.seconds >= counts.queue.seconds + counts.compute_infer.seconds > 0


async def test_a_reader_that_leaves_takes_its_texts_along():
    held, release = threading.Event(), threading.Event()
    seen: list[int] = []

    def hold(rows: Any) -> None:
        seen.extend(len(row.tokens) for row in rows)
        held.set()
        assert release.wait(20)

    async with serving(runner=FakePoolingRunner(hold)) as model:
        first, second = ask([b"a"]), ask([b"bb"])
        model.infer(first)
        await asyncio.to_thread(held.wait, 20)
        model.infer(second)
        while model.engine.load.num_waiting < 2:
            await asyncio.sleep(0)
        second.stream.cancel()
        release.set()
        assert [response async for response in first.stream]
        await model.close()
        assert seen == [3]
        assert model.statistics.snapshot().failures[Failure.CANCELED] == 1


async def test_what_was_taken_is_answered_before_the_model_closes_and_nothing_after():
    async with serving() as model:
        taken = ask([b"a"] * 50)
        model.infer(taken)
        closing = asyncio.create_task(model.close())
        assert [response async for response in taken.stream]
        await closing
        with pytest.raises(ServingError) as caught:
            model.infer(ask([b"a"]))
        assert (caught.value.code, caught.value.reason) == (Code.UNAVAILABLE, "closing")
        with pytest.raises(ServingError, match="being unloaded"):
            model.pool(pooling_request("r", [Row([1], 1)]))


async def test_an_engine_takes_no_row_that_its_model_cannot_run():
    async with serving() as model:
        for row, text in ((Row([], 0), "empty"), (Row([1] * 33, 33), "33 tokens"), (Row([512], 1), "vocabulary")):
            with pytest.raises(ServingError, match=text):
                model.pool(pooling_request("r", [Row([1], 1), row]))


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"parameters": {"poling": "cls"}}, Code.INVALID, "unknown parameter 'poling', did you mean 'pooling'?"),
        ({"parameters": {"block_size": "16"}}, Code.INVALID, "unknown parameter 'block_size'"),
        ({"parameters": {"max_num_batched_tokens": "0"}}, Code.INVALID, "a whole number from 1"),
        ({"parameters": {"dtype": "int8"}}, Code.INVALID, "one of auto, float32"),
        ({"dynamic_batching": DynamicBatching()}, Code.UNSUPPORTED, "backend 'pooling' schedules"),
        ({"inputs": (TensorSpec("x", "FP32", (1,)),)}, Code.UNSUPPORTED, "no input and no output"),
    ],
)
def test_a_configuration_that_is_not_acted_on_is_refused(changes, code, text):
    with pytest.raises(ServingError) as caught:
        check_pooling_config(replace(POOLING, **changes))
    assert caught.value.code is code
    assert text in caught.value.message


def test_the_engine_is_told_what_concerns_it(tmp_path):
    parameters = {"max_num_batched_tokens": "99", "max_num_queued_reqs": "7", "num_threads": "3", "pooling": "cls"}
    spec = pooling_spec(replace(POOLING, parameters=parameters), tmp_path)
    options = spec.options
    assert (options.max_num_batched_tokens, options.max_num_queued_reqs, spec.num_threads) == (99, 7, 3)
    assert (spec.pools, spec.parameters["pooling"]) == (True, "cls")
