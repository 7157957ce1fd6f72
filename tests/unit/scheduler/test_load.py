"""Loading: what is refused, where instances go, warm-up, and that a failed load leaves nothing behind."""

from dataclasses import replace

import numpy as np
import pytest

from backends.api.errors import Code, ServingError
from backends.api.model_config import BatchInput, InstanceGroup, ModelConfig, TensorSpec, Warmup, WarmupInput
from scheduler.instances import placements
from scheduler.load import load_tensor_model, start_tensor_model
from tests.unit.scheduler.tensor_fakes import ALARM, FakeBackend, Gate, answer, ask, config, echo, serving


def sample(
    source: str = "zero_data", *, datatype: str = "FP32", dims=(1,), batch_size: int = 1, count: int = 0
) -> Warmup:
    return Warmup("warm", batch_size, {"IN": WarmupInput(datatype, dims, source)}, count)


async def test_every_instance_is_warmed_up_before_the_model_serves():
    gate = Gate()
    gate.open(100)
    async with serving(gate, config(count=3, warmup=(sample(batch_size=4, count=2),))) as model:
        assert gate.batches == [[0.0] * 4] * 6
        assert model.statistics.snapshot().execution_count == 0


async def test_warm_up_reads_its_data_file_and_repeats_it_for_each_row(tmp_path):
    (tmp_path / "seven").write_bytes(np.float32(7).tobytes())
    gate = Gate()
    gate.open(100)
    settings = config(warmup=(sample("seven", batch_size=2),))
    model = await start_tensor_model(FakeBackend(gate), settings, "1", tmp_path, alarm=ALARM)
    await model.close()
    assert gate.batches == [[7.0, 7.0]]


@pytest.mark.parametrize(
    ("warmup", "text"),
    [
        (sample("absent"), "cannot read data file 'absent'"),
        (sample("short"), "has 2 bytes, expected 4"),
        (sample("short", datatype="BYTES"), "must hold 1 strings"),
        (sample(dims=(-1,)), "must have fixed dims"),
        (sample(batch_size=9), "more than max_batch_size 8"),
        (
            replace(sample(), inputs={"other": sample().inputs["IN"]}),
            "has input 'other', the inputs of the model are: IN",
        ),
        (replace(sample(), inputs={}), "lacks input 'IN', which the model needs"),
    ],
)
async def test_a_warm_up_that_cannot_be_made_fails_the_load(tmp_path, warmup, text):
    (tmp_path / "short").write_bytes(b"ab")
    backend = FakeBackend()
    with pytest.raises(ServingError, match=text) as caught:
        await start_tensor_model(backend, config(warmup=(warmup,), count=2), "1", tmp_path, alarm=ALARM)
    assert caught.value.code is Code.INVALID
    assert (backend.num_open, backend.closed) == (0, 1)


async def test_a_warm_up_that_fails_fails_the_load_and_closes_every_instance(tmp_path):
    calls = []

    def second_fails(inputs, outputs):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("cold")
        return echo(inputs, outputs)

    backend = FakeBackend(second_fails)
    with pytest.raises(ServingError, match="failed to run warmup sample 'warm': cold"):
        await start_tensor_model(backend, config(count=4, warmup=(sample(),)), "1", tmp_path, alarm=ALARM)
    assert (backend.num_open, backend.closed) == (0, 1)


@pytest.mark.parametrize("source", ["zero_data", "random_data"])
@pytest.mark.parametrize("datatype", ["FP32", "INT8", "BOOL", "BYTES", "FP16", "UINT64"])
async def test_warm_up_makes_data_of_every_kind(tmp_path, source, datatype):
    seen = []

    def look(inputs, outputs):
        seen.append(inputs["IN"])
        return echo(inputs, outputs)

    settings = config(warmup=(sample(source, datatype=datatype, dims=(2, 3)),))
    model = await start_tensor_model(FakeBackend(look), settings, "1", tmp_path, alarm=ALARM)
    await model.close()
    (tensor,) = seen
    assert (tensor.datatype, tensor.shape, tensor.as_numpy().shape) == (datatype, (1, 2, 3), (1, 2, 3))


@pytest.mark.parametrize(
    "changes",
    [
        {"decoupled": True},
        {"inputs": (TensorSpec("IN", "INT32", (1,), is_shape_tensor=True),)},
        {"outputs": (TensorSpec("OUT", "FP32", (1,), is_non_linear_format_io=True),)},
    ],
)
async def test_what_tensor_backends_cannot_do_is_refused_by_name(tmp_path, changes):
    with pytest.raises(ServingError, match="model 'fake'") as caught:
        await load_tensor_model(replace(config(), **changes), "1", tmp_path, alarm=ALARM)
    assert caught.value.code is Code.UNSUPPORTED


async def test_a_batch_input_wants_one_source(tmp_path):
    settings = config(batch_inputs=(BatchInput("BATCH_ELEMENT_COUNT", ("N",), "INT32", ()),))
    with pytest.raises(ServingError, match="batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0"):
        await load_tensor_model(settings, "1", tmp_path, alarm=ALARM)


async def test_a_passive_instance_is_made_and_never_used():
    passive = InstanceGroup(kind="KIND_CPU", count=2, passive=True)
    settings = config()
    settings = replace(settings, instance_groups=(*settings.instance_groups, passive))
    async with serving(model_config=settings) as model:
        request = ask(1)
        model.infer(request)
        assert answer(request) == [1]


def groups(*items: InstanceGroup, num_gpus: int = 0) -> list[tuple[str, str, int]]:
    placed = placements(ModelConfig("m", instance_groups=items), num_gpus)
    return [(where.name, where.kind, where.device) for _, where in placed]


def test_instances_are_counted_in_all_on_the_cpu_and_for_each_gpu():
    assert groups() == [("m_0_0", "CPU", 0)]
    assert groups(InstanceGroup(kind="KIND_CPU", count=2), num_gpus=2) == [("m_0_0", "CPU", 0), ("m_0_1", "CPU", 0)]
    assert groups(InstanceGroup(count=2), num_gpus=2) == [
        ("m_0_0", "GPU", 0),
        ("m_0_1", "GPU", 0),
        ("m_0_2", "GPU", 1),
        ("m_0_3", "GPU", 1),
    ]
    assert groups(InstanceGroup(name="g", kind="KIND_GPU", gpus=(1,)), num_gpus=2) == [("g_0", "GPU", 1)]
    assert groups(InstanceGroup(kind="KIND_MODEL")) == [("m_0_0", "MODEL", 0)]


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ServingError, match="instance group m_0 of model m specifies invalid or unsupported gpu id 3"):
        groups(InstanceGroup(kind="KIND_GPU", gpus=(3,)), num_gpus=1)
    with pytest.raises(ServingError, match="no GPUs are available"):
        groups(InstanceGroup(kind="KIND_GPU"))
