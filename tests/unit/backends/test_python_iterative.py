"""Iterative sequences: a model that asks for the same request again, so that long requests share its batches."""

import asyncio
import json
from pathlib import Path
from typing import Any

from backends.api.errors import Code
from backends.api.request import InferenceRequest
from tests.unit.backends.python_models import ONE_INT, PATIENCE, ask, failure, loaded, request, responses

CONFIG = ONE_INT + "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 4 } %s }\n"
CONTROLS = """
control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
                { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]
"""
TEXT = CONFIG.replace('"OUT" data_type: TYPE_INT32', '"OUT" data_type: TYPE_STRING')
# answers with what it was told in each of IN executions
TELLS = """
import json
class TritonPythonModel:
    def initialize(self, args):
        self.told = {}
    def execute(self, requests):
        out = []
        for r in requests:
            told = self.told.setdefault(r.correlation_id(), [])
            told.append([r.flags(), {t.name(): int(t.as_numpy().flat[0]) for t in r.inputs()}])
            if len(told) < int(pb.get_input_tensor_by_name(r, "IN").as_numpy().flat[0]):
                r.set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                out.append(None)
            else:
                text = json.dumps(self.told.pop(r.correlation_id()))
                out.append(pb.InferenceResponse([pb.Tensor("OUT", np.array([[text]], dtype=object))]))
        return out
"""
# 0, 1, 2, ... as one answer an execution; IN of them, and how many requests each execution had
STREAMS = """
class TritonPythonModel:
    def initialize(self, args):
        self.counts = {}
    def execute(self, requests):
        for r in requests:
            count = self.counts.pop(r.correlation_id(), 0)
            sender = r.get_response_sender()
            sender.send(pb.InferenceResponse([pb.Tensor("OUT", np.array([[count, len(requests)]], np.int32))]))
            if count + 1 < int(r.inputs()[0].as_numpy().flat[0]):
                self.counts[r.correlation_id()] = count + 1
                r.set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = CONFIG % "" + "model_transaction_policy { decoupled: true }\n"
ENDLESS = 1_000_000


async def told(model: Any, asked: InferenceRequest) -> Any:
    (answer,) = await responses(model, asked)
    return json.loads(answer.outputs[0].data[0])


async def test_a_request_is_executed_until_the_model_answers_it_and_starts_once(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", TELLS, TEXT % CONTROLS)
        first = await told(model, request([3]))
        second = await told(model, request([2]))
        own = await told(model, request([1], sequence_id=77, sequence_start=True))
        (number,) = {controls["ID"] for _, controls in first}
        assert first == [
            [1, {"IN": 3, "START": 1, "ID": number}],
            [0, {"IN": 3, "START": 0, "ID": number}],
            [0, {"IN": 3, "START": 0, "ID": number}],
        ]
        assert second[0][1]["ID"] not in (0, number)
        assert own == [[1, {"IN": 1, "START": 1, "ID": 77}]]
        counts = model.statistics.snapshot()
        assert (counts.success.count, counts.inference_count, counts.execution_count) == (6, 6, 6)


async def test_a_sequence_id_of_the_caller_s_needs_start_every_time(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", TELLS, TEXT % "")
        await told(model, request([2], sequence_id=7, sequence_start=True))
        error = await failure(model, [2], sequence_id=7)
        assert (error.code, "must specify the START flag" in error.message) == (Code.INVALID, True)


async def test_answers_stream_while_others_join_the_batch(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", STREAMS, DECOUPLED)
        long = request([ENDLESS])
        model.infer(long)
        await asyncio.wait_for(anext(long.stream), PATIENCE)
        short = await asyncio.gather(*(ask(model, [5]) for _ in range(3)))
        long.stream.cancel()
        for answers in short:
            assert [answer[0] for answer in answers] == [0, 1, 2, 3, 4]
        assert max(size for answers in short for _, size in answers) > 1
        assert model.statistics.snapshot().response_stats[4].success.count >= 3


async def test_more_requests_than_slots_all_end(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", STREAMS, DECOUPLED)
        answers = await asyncio.gather(*(ask(model, [1 + number % 7]) for number in range(40)))
        assert [len(each) for each in answers] == [1 + number % 7 for number in range(40)]
        model._scheduler.check()
        assert model.num_waiting == 0


async def test_a_caller_who_leaves_ends_the_iterations(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", STREAMS, DECOUPLED)
        gone = [request([ENDLESS]) for _ in range(4)]
        for each in gone:
            model.infer(each)
            await asyncio.wait_for(anext(each.stream), PATIENCE)
        for each in gone:
            each.stream.cancel()
        assert await ask(model, [1]) == [[0, 1]]  # all slots were taken before


async def test_a_deadline_ends_the_iterations(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", TELLS, TEXT % "")
        late = asyncio.get_running_loop().time() + 0.2  # of the same clock as time.monotonic()
        error = await failure(model, [ENDLESS], deadline=late)
        assert error.code is Code.DEADLINE


async def test_a_reader_who_does_not_read_holds_the_iterations_back(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        config = DECOUPLED + 'parameters { key: "RESPONSE_WINDOW" value { string_value: "4" } }'
        model = await models.load("m", STREAMS, config)
        asked = request([200])
        model.infer(asked)
        while asked.stream.num_waiting < 4:
            await asyncio.sleep(0)
        most, values = 0, []
        async for answer in asked.stream:
            values.append(int(answer.outputs[0].data[0, 0]))
            most = max(most, asked.stream.num_waiting)
            await asyncio.sleep(0)
        assert values == list(range(200))
        assert most <= 6  # a window, and what half a window more had leave for


async def test_the_end_of_the_process_ends_what_iterates(tmp_path: Path) -> None:
    source = TELLS.replace("if len(told) <", "if len(told) == 3: import os; os._exit(1)\n            if len(told) <")
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, TEXT % "")
        error = await failure(model, [5])
        assert (error.code, "is not healthy" in error.message) == (Code.INTERNAL, True)
        assert len(await told(model, request([2]))) == 2


async def test_an_unload_waits_for_the_iterations(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", STREAMS, DECOUPLED)
        asked = request([50])
        model.infer(asked)
        _, values = await asyncio.gather(model.close(), _all(asked))
        assert values == list(range(50))


async def _all(asked: InferenceRequest) -> list[int]:
    return [int(answer.outputs[0].data[0, 0]) async for answer in asked.stream]


async def test_misuse_is_told(tmp_path: Path) -> None:
    again = """
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            r.set_release_flags(%s)
        return [pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
    async with loaded(tmp_path) as models:
        plain = await models.load("plain", again % "pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE")
        assert "iterative_sequence: true" in (await failure(plain)).message
        both = await models.load("both", again % "pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE", CONFIG % "")
        assert "Expected None" in (await failure(both)).message
        unknown = await models.load("unknown", again % "8")
        assert "unknown release flags 8" in (await failure(unknown)).message
        whole = await models.load("whole", again % "pb.TRITONSERVER_REQUEST_RELEASE_ALL")
        assert await ask(whole, [4]) == [[4]]
