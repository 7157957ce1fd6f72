"""Custom models: what `execute` is given, what its answers become, and what its failures do."""

import asyncio
import json
import logging
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest, RequestedOutput
from backends.api.statistics import Failure
from backends.api.tensor import NUMPY_DTYPES, Tensor
from tests.unit.backends.python_models import DECOUPLED, ONE_INT, PATIENCE, ask, failure, loaded, request, responses

pytestmark = pytest.mark.slow  # starts processes

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("OUT", pb.get_input_tensor_by_name(r, "IN").as_numpy())]) for r in requests]
"""
SWITCH = """
import os, signal, ctypes
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            value = pb.get_input_tensor_by_name(r, "IN").as_numpy()
            match int(value.flat[0]):
                case -1: raise RuntimeError("all of them")
                case -2: out.append(pb.InferenceResponse(error=pb.TritonError("this one", pb.TritonError.INVALID_ARG))); continue
                case -3: return []
                case -4: value = np.concatenate([value, value])
                case -5: return 5
                case -6: return ["x"]
                case -7: os._exit(3)
                case -8: ctypes.string_at(0)
                case -9: os.kill(os.getpid(), signal.SIGKILL)
                case -10: raise SystemExit(1)
                case -11: return None
                case -12: [os.write(int(fd), b"garbage" * 100) for fd in os.listdir("/proc/self/fd") if _is_socket(fd)]
                case -13: out.append(pb.InferenceResponse([pb.Tensor("OTHER", value)])); continue
            out.append(pb.InferenceResponse([pb.Tensor("OUT", value)]))
        return out
def _is_socket(fd):
    try: return os.readlink(f"/proc/self/fd/{fd}").startswith("socket")
    except OSError: return False
"""


FAILURES = [
    (-1, Code.INTERNAL, "Failed to process the request(s) for model 'm_0_0', message: RuntimeError: all of them"),
    (-2, Code.INVALID, "this one"),
    (-3, Code.INTERNAL, "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0"),
    (-4, Code.INTERNAL, "output 'OUT' has shape [2, 1], expected 1 rows"),
    (-5, Code.INTERNAL, "Expected a list in the execute return, found type 'int'."),
    (-6, Code.INTERNAL, "Expected an 'InferenceResponse' object in the execute function return list"),
    (-7, Code.INTERNAL, "Stub process 'm_0_0' is not healthy."),
    (-8, Code.INTERNAL, "Stub process 'm_0_0' is not healthy."),
    (-9, Code.INTERNAL, "Stub process 'm_0_0' is not healthy."),
    (-10, Code.INTERNAL, "message: SystemExit: 1"),
    (-11, Code.INTERNAL, "the model dropped a request without a final response"),
    (-12, Code.INTERNAL, "Stub process 'm_0_0' is not healthy."),
    (-13, Code.INTERNAL, "the model gave no output 'OUT'"),
]


async def test_a_failure_is_told_to_its_request_and_the_model_goes_on(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", SWITCH)
        for value, code, text in FAILURES:
            error = await failure(model, [value], outputs=[RequestedOutput("OUT")])
            assert (error.code, text in error.message) == (code, True), (value, error)
            assert await ask(model, [7]) == [[7]]
        counts = model.statistics.snapshot()
        assert (counts.fail.count, counts.success.count) == (len(FAILURES), len(FAILURES))


ENDINGS = {  # of a decoupled request: what is counted of success, inference, fail and execution
    "s.send(out, FINAL)": (1, 1, 0, 1),
    "s.send(out); s.send(flags=FINAL)": (1, 1, 0, 1),
    "s.send(flags=FINAL)": (1, 1, 0, 1),
    "s.send(out)": (0, 0, 1, 1),
    "s.send(out); raise ValueError()": (0, 0, 1, 1),
    "s.send(out, FINAL); raise ValueError()": (1, 1, 0, 1),
    "s.send(pb.InferenceResponse(error=pb.TritonError('no')), FINAL)": (0, 0, 1, 1),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_decoupled_request_is_an_inference_where_it_is_a_success(tmp_path: Path, ending: str) -> None:
    source = f"""
FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
class TritonPythonModel:
    def execute(self, requests):
        s, out = requests[0].get_response_sender(), pb.InferenceResponse([pb.Tensor("OUT", np.array([[1]], np.int32))])
        {ending}
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, DECOUPLED)
        for _ in range(3):
            await asyncio.gather(ask(model), return_exceptions=True)
        await model.close()
        counts = model.statistics.snapshot()
        found = (counts.success.count, counts.inference_count, counts.fail.count, counts.execution_count)
        assert found == tuple(3 * each for each in ENDINGS[ending])


@pytest.mark.parametrize("config", [ONE_INT, DECOUPLED])
async def test_outputs_that_the_configuration_does_not_name_are_dropped(tmp_path: Path, config: str) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            value = r.inputs()[0].as_numpy()
            outputs = [pb.Tensor(name, value) for name in ("OTHER", "OUT")[: int(value.flat[0])]]
            r.get_response_sender().send(pb.InferenceResponse(outputs), 1)
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, config)
        for value, names in ((1, []), (2, ["OUT"])):
            (answer,) = await responses(model, request([value]))
            assert [tensor.name for tensor in answer.outputs] == names


async def test_requests_that_wait_together_are_executed_together_and_each_gets_its_own(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy() * len(requests))]) for r in requests]
"""
    config = ONE_INT + "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 5000000 }"
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, config)
        model._scheduler._num_busy += 1  # as if another instance were at work: the four wait for each other
        answers = await asyncio.gather(*(ask(model, [value]) for value in range(4)))
        model._scheduler._num_busy -= 1
        assert answers == [[[0]], [[4]], [[8]], [[12]]]
        counts = model.statistics.snapshot()
        assert (counts.execution_count, counts.inference_count) == (1, 4)


async def test_a_request_carries_all_that_its_caller_said(tmp_path: Path) -> None:
    source = """
import json
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
    def execute(self, requests):
        (r,) = requests
        told = {"id": r.request_id(), "correlation": r.correlation_id(), "flags": r.flags(), "timeout": r.timeout(),
                "parameters": json.loads(r.parameters()), "outputs": r.requested_output_names(), "args": self.args,
                "cancelled": r.is_cancelled(), "name": __name__}
        return [pb.InferenceResponse([pb.Tensor("OUT", np.array([[json.dumps(told)]], dtype=object))],
                                     parameters={"seen": True, "share": 0.5})]
"""
    config = ONE_INT.replace('"OUT" data_type: TYPE_INT32', '"OUT" data_type: TYPE_STRING')
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, config)
        asked = request(
            id="ü1",
            parameters={"a": 1, "b": "x", "c": True, "d": 2.5},
            sequence_id="seq",
            sequence_start=True,
            sequence_end=True,
            timeout_us=9_000_000,
        )
        (answer,) = await responses(model, asked)
        told = json.loads(answer.outputs[0].data[0])
        args = told.pop("args")
        assert told == {
            "id": "ü1",
            "correlation": "seq",
            "flags": 3,
            "timeout": 9_000_000,
            "parameters": {"a": 1, "b": "x", "c": True, "d": 2.5},
            "outputs": ["OUT"],
            "cancelled": False,
            "name": "1.model",
        }
        assert answer.parameters == {"seen": True, "share": 0.5}
        assert answer.id == "ü1"
        assert set(args) == {
            *("model_config", "model_instance_kind", "model_instance_name", "model_instance_device_id"),
            *("model_repository", "model_version", "model_name"),
        }
        assert (args["model_instance_kind"], args["model_version"], args["model_name"]) == ("CPU", "1", "m")


@pytest.mark.parametrize("size", [3, 200_000], ids=["inline", "in shared memory"])
async def test_every_datatype_passes_unchanged(tmp_path: Path, size: int) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            (x,) = r.inputs()
            same = pb.Tensor.from_dlpack("OUT", x) if x.triton_dtype() == "BF16" else pb.Tensor("OUT", x.as_numpy())
            out.append(pb.InferenceResponse([same]))
        return out
"""
    rng = np.random.default_rng(0)
    async with loaded(tmp_path) as models:
        model = await models.load("m", source)
        for datatype, dtype in NUMPY_DTYPES.items():
            array = rng.integers(0, 2, (1, size)).astype(dtype)
            (answer,) = await responses(model, InferenceRequest("m", "", [Tensor("IN", datatype, (1, size), array)]))
            (got,) = answer.outputs
            assert (got.datatype, got.shape) == (datatype, (1, size))
            assert np.array_equal(got.as_numpy(), array)
        strings = [b"", b"\xff\x00", "ü".encode(), b"x" * size]
        (answer,) = await responses(model, InferenceRequest("m", "", [Tensor("IN", "BYTES", (1, 4), strings)]))
        assert answer.outputs[0].data == strings


async def test_shared_memory_is_given_back_and_used_again(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", ECHO)
        process = model.backend.instances[0]._process
        assert process is not None
        for _ in range(20):
            answer = await ask(model, np.arange(100_000))
            assert len(answer[0]) == 100_000
        assert process.num_held <= 2


async def test_what_a_model_prints_goes_to_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = ECHO.replace(
        "return", 'print("hello from", "execute")\n        pb.Logger.log_warn("careful\\nnow")\n        return'
    )
    caplog.set_level("INFO")
    async with loaded(tmp_path) as models:
        model = await models.load("m", source)
        await ask(model)
    assert "m: hello from execute" in caplog.text
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "m_0_0: careful",
        "m_0_0: now",
    ]


async def test_a_model_that_hangs_past_its_limit_is_started_again(tmp_path: Path) -> None:
    source = """
import time
class TritonPythonModel:
    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy().flat[0] < 0:
            time.sleep(1000)
        return [pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
    config = ONE_INT + 'parameters { key: "EXECUTION_TIMEOUT_SECS" value { string_value: "0.2" } }'
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, config)
        assert "is not healthy" in (await failure(model, [-1])).message
        assert await ask(model, [3]) == [[3]]


async def test_a_request_ends_at_its_deadline_although_the_model_goes_on(tmp_path: Path) -> None:
    source = """
import time
class TritonPythonModel:
    def execute(self, requests):
        end = time.monotonic() + 20
        while time.monotonic() < end and not requests[0].is_cancelled():
            time.sleep(0.001)
        return [pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source)
        error = await failure(model, deadline=time.monotonic() + 0.1)
        assert error.code is Code.DEADLINE


async def test_a_model_that_cannot_come_back_is_down_until_it_can(tmp_path: Path) -> None:
    source = """
import os
class TritonPythonModel:
    def initialize(self, args):
        if os.path.exists(os.path.join(pb.get_model_dir(), "broken")):
            raise ValueError("no weights")
    def execute(self, requests):
        os._exit(1)
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, longest=0.02)
        flag = tmp_path / "m" / "1" / "broken"
        flag.touch()
        assert "is not healthy" in (await failure(model)).message
        error = await failure(model)
        while error.code is not Code.UNAVAILABLE:
            error = await failure(model)
        assert "no weights" in error.message
        flag.unlink()
        while error.code is Code.UNAVAILABLE:
            await asyncio.sleep(0.01)
            error = await failure(model)
        assert error.code is Code.INTERNAL  # it runs again, and dies again


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("raise ImportError('no such library')", "no such library"),
        ("class Other: pass", "no class TritonPythonModel"),
        ("class TritonPythonModel:\n    def initialize(self, args): raise ValueError('bad')", "execute"),
        ("class TritonPythonModel:\n    def initialize(self, args): 1 / 0\n    def execute(self, r): pass", "division"),
        ("import os; os._exit(4)", "exited with status 4 while it was loading"),
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("class TritonPythonModel: (", "SyntaxError"),
    ],
)
async def test_a_model_that_does_not_load_says_why_and_leaves_nothing(tmp_path: Path, source: str, text: str) -> None:
    async with loaded(tmp_path) as models:
        with pytest.raises(ServingError, match=text):
            await models.load("m", source)


async def test_a_model_completes_its_own_configuration(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [-1]})
        return config
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, "")
        assert model.config.max_batch_size == 4
        assert model.config.dynamic_batching is not None
        assert [spec.name for spec in (*model.config.inputs, *model.config.outputs)] == ["IN", "OUT"]
        assert await ask(model, [5]) == [[5]]


async def test_files_beside_the_model_are_imported_first(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "scheduler.py").write_text("FACTOR = 3")
    source = """
from scheduler import FACTOR
class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy() * FACTOR)]) for r in requests]
"""
    async with loaded(tmp_path) as models:
        assert await ask(await models.load("m", source), [2]) == [[6]]


async def test_finalize_is_called_before_the_process_ends(tmp_path: Path) -> None:
    source = ECHO + "    def finalize(self):\n        open(pb.get_model_dir() + '/finalized', 'w').close()\n"
    async with loaded(tmp_path) as models:
        model = await models.load("m", source)
        process = model.backend.instances[0]._process
        assert process is not None
    assert (tmp_path / "m" / "1" / "finalized").exists()
    assert process._process.returncode == 0


async def test_coroutines_run_at_the_same_time(tmp_path: Path) -> None:
    source = """
import asyncio
import json
import time
class TritonPythonModel:
    def initialize(self, args):
        self.waiting, self.all_here = 0, None
    async def execute(self, requests):
        self.all_here = self.all_here or asyncio.Event()
        self.waiting += len(requests)
        if self.waiting == 50:
            self.all_here.set()
        await self.all_here.wait()
        return [pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source)
        answers = await asyncio.gather(*(ask(model, [value]) for value in range(50)))
        assert answers == [[[value]] for value in range(50)]


async def test_coroutines_keep_to_the_limit(tmp_path: Path) -> None:
    source = """
import asyncio
import json
import time
class TritonPythonModel:
    def initialize(self, args):
        self.now = self.most = 0
    async def execute(self, requests):
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(20): await asyncio.sleep(0)
        self.now -= 1
        return [pb.InferenceResponse([pb.Tensor("OUT", np.full((1, 1), self.most, np.int32))]) for r in requests]
"""
    config = ONE_INT + 'parameters { key: "MAX_CONCURRENCY" value { string_value: "3" } }'
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, config)
        answers = await asyncio.gather(*(ask(model) for _ in range(12)))
        assert max(answer[0][0] for answer in answers) <= 3


async def test_a_decoupled_model_gives_any_number_of_answers(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            for x in r.inputs()[0].as_numpy().ravel():
                sender.send(pb.InferenceResponse([pb.Tensor("OUT", np.array([[x]], np.int32))]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, DECOUPLED + "dynamic_batching {}")
        assert await ask(model, [4, 5, 6]) == [[4], [5], [6]]
        assert await ask(model, []) == []
        long = list(range(500))
        assert await ask(model, long) == [[value] for value in long]
        assert model.statistics.snapshot().success.count == 3


async def test_a_slow_reader_holds_the_model_back_and_a_cancel_reaches_it(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender, count = r.get_response_sender(), 0
            if r.inputs()[0].as_numpy().flat[0] == 0:
                sender.send(pb.InferenceResponse([pb.Tensor("OUT", np.full((1, 1), self.count, np.int32))]), 1)
                continue
            while not sender.is_cancelled():
                sender.send(pb.InferenceResponse([pb.Tensor("OUT", np.full((1, 1), count, np.int32))]))
                count += 1
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            self.count = count
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, DECOUPLED)
        asked = request()
        model.infer(asked)
        for _ in range(3):
            await asyncio.wait_for(anext(asked.stream), PATIENCE)
        asked.stream.cancel()
        ((sent,),) = await ask(model, [0])
        assert 3 <= sent <= 3 + 2 * 32 + 1
        assert model.statistics.snapshot().failures[Failure.CANCELED] == 1


async def test_a_frame_that_makes_no_sense_is_taken_for_garbage(tmp_path: Path) -> None:
    source = """
from backends.python.frames import Register, Opened
from backends.python.runtime import runtime
class TritonPythonModel:
    def execute(self, requests):
        value = requests[0].inputs()[0].as_numpy()
        if value.flat[0] == -1:
            runtime().link.send(Register(1, "a family nobody made", "", "counter", {}, []))
        if value.flat[0] == -2:
            runtime().link.send(Opened(True))
        return [pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source)
        assert "is not healthy" in (await failure(model, [-1])).message
        assert "is not healthy" in (await failure(model, [-2])).message
        assert await ask(model, [3]) == [[3]]


async def test_what_a_model_started_ends_with_it(tmp_path: Path) -> None:
    source = """
import subprocess
class TritonPythonModel:
    def initialize(self, args):
        self.helper = subprocess.Popen(["sleep", "1000"])
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("OUT", np.array([[self.helper.pid]], np.int32))]) for r in requests]
"""
    async with loaded(tmp_path) as models:
        ((pid,),) = await ask(await models.load("m", source))
        helper = psutil.Process(pid)
    while helper.is_running() and helper.status() != psutil.STATUS_ZOMBIE:
        await asyncio.sleep(0.01)


async def test_a_forked_child_never_answers_in_its_parent_s_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
import multiprocessing, os
class TritonPythonModel:
    def execute(self, requests):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        worker = multiprocessing.get_context("fork").Process(target=sorted, args=([],))
        worker.start()
        worker.join()
        told = np.array([[os.getpid(), worker.exitcode]], np.int32)
        return [pb.InferenceResponse([pb.Tensor("OUT", told)]) for r in requests]
"""
    caplog.set_level("INFO")
    async with loaded(tmp_path) as models:
        model = await models.load("m", source)
        pid = model.backend.instances[0].pid
        for _ in range(4):
            assert await ask(model) == [[pid, 0]]
    assert "m: a process that the model forked cannot use pb_utils and ends here" in caplog.text


ADDS_UP = """
import os
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
    def execute(self, requests):
        out = []
        for r in requests:
            value = int(pb.get_input_tensor_by_name(r, "IN").as_numpy().flat[0])
            if value < 0: os._exit(1)
            total = value + (0 if r.flags() & 1 else self.sums[r.correlation_id()])
            self.sums[r.correlation_id()] = total
            out.append(pb.InferenceResponse([pb.Tensor("OUT", np.array([[total]], np.int32))]))
        return out
"""


async def test_sequences_that_a_dead_process_knew_are_over(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", ADDS_UP, ONE_INT + "sequence_batching { oldest { } }")
        assert await ask(model, [5], sequence_id=1, sequence_start=True) == [[5]]
        assert await ask(model, [6], sequence_id=1) == [[11]]
        assert (await failure(model, [-1], sequence_id=2, sequence_start=True)).code is Code.INTERNAL
        error = await failure(model, [7], sequence_id=1)
        assert (error.code, "must specify the START flag" in error.message) == (Code.INVALID, True)
        assert await ask(model, [8], sequence_id=1, sequence_start=True) == [[8]]


async def test_an_async_model_runs_the_requests_of_sequences_one_after_the_other(tmp_path: Path) -> None:
    source = ADDS_UP.replace("    def execute", "    async def execute").replace(
        "        return out", "        await asyncio.sleep(0)\n        return out"
    )
    async with loaded(tmp_path) as models:
        model = await models.load("m", "import asyncio\n" + source, ONE_INT + "sequence_batching { direct { } }")
        flags = [{"sequence_start": number == 0, "sequence_end": number == 9} for number in range(10)]
        asked = [request([number], sequence_id=3, **each) for number, each in enumerate(flags)]
        for each in asked:
            model.infer(each)
        answers = [(await asyncio.wait_for(anext(each.stream), PATIENCE)).outputs[0].data.item() for each in asked]
        assert answers == [sum(range(number + 1)) for number in range(10)]


async def test_a_sender_that_outlives_its_model_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
    def execute(self, requests):
        for r in requests:
            self.kept.append(r.get_response_sender())
            self.kept[-1].send(pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy())]))
"""
    caplog.set_level(logging.INFO)  # of what a process prints
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, DECOUPLED)
        asked = request()
        model.infer(asked)
        await asyncio.wait_for(anext(asked.stream), PATIENCE)
        asked.stream.cancel()
        await asyncio.wait_for(model.close(), PATIENCE)
    assert "Exception ignored" not in caplog.text
