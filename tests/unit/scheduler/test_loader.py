"""Config and version folder to a live model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.api.errors import Code, ServingError
from backends.api.model_config import (
    DynamicBatching,
    Ensemble,
    EnsembleStep,
    InstanceGroup,
    ModelConfig,
    TensorSpec,
    Warmup,
)
from scheduler.engine_observer import EngineObserver
from scheduler.language_config import check_language_config
from scheduler.loader import ModelLoader

TENSORS = ModelConfig(
    "m",
    backend="identity",
    inputs=(TensorSpec("IN", "FP32", (4,)),),
    outputs=(TensorSpec("OUT", "FP32", (4,), label_filename="labels.txt"),),
)
LLM = ModelConfig("chat", backend="llm", instance_groups=(InstanceGroup("chat_0", "KIND_MODEL"),))


@pytest.fixture
def load() -> ModelLoader:
    return ModelLoader(lambda config, version: EngineObserver())


async def test_a_tensor_model_is_loaded_with_the_labels_beside_its_versions(load: ModelLoader, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    model: Any = await load(TENSORS, "1", tmp_path / "1")
    assert (model.config.name, model.version) == ("m", "1")
    assert model.labels == {"OUT": ("cat", "dog")}
    await model.close()


async def test_a_missing_label_file_fails_the_load_by_name(load: ModelLoader, tmp_path: Path) -> None:
    with pytest.raises(ServingError, match=r"label file 'labels.txt' of output 'OUT' cannot be read: No such file"):
        await load(TENSORS, "1", tmp_path / "1")


async def test_what_no_scheduler_runs_is_refused(load: ModelLoader, tmp_path: Path) -> None:
    step = EnsembleStep("gone", -1, {"a": "i"}, {"b": "o"})
    with pytest.raises(ServingError, match="ensemble 'e' depends on 'gone' which has no loaded version") as raised:
        await load(ModelConfig("e", platform="ensemble", ensemble=Ensemble((step,))), "1", tmp_path)
    assert raised.value.code is Code.INVALID
    with pytest.raises(ServingError, match="unable to find backend library for backend 'nope'"):
        await load(ModelConfig("m", backend="nope"), "1", tmp_path)


async def test_a_language_model_without_weights_says_where_it_looked(load: ModelLoader, tmp_path: Path) -> None:
    config = replace(LLM, parameters={"model": "package:no_such_package"})
    with pytest.raises(ServingError, match="no_such_package"):
        await load(config, "1", tmp_path)


def test_a_plain_language_model_config_is_accepted() -> None:
    check_language_config(LLM)
    check_language_config(replace(LLM, decoupled=True, parameters={"model": "x", "max_num_queued_reqs": "4"}))


@pytest.mark.parametrize(
    ("config", "code", "text"),
    [
        (replace(LLM, parameters={"max_modl_len": "4"}), Code.INVALID, "'max_modl_len', did you mean 'max_model_len'"),
        (replace(LLM, parameters={"zzz": "4"}), Code.INVALID, "unknown parameter 'zzz', known are: .*max_num_seqs"),
        (replace(LLM, max_batch_size=8), Code.UNSUPPORTED, "expected max_batch_size 0, got 8"),
        (replace(LLM, dynamic_batching=DynamicBatching()), Code.UNSUPPORTED, "expected no scheduling choice"),
        (replace(LLM, inputs=TENSORS.inputs), Code.UNSUPPORTED, "expected no input and no output"),
        (replace(LLM, response_cache=True), Code.UNSUPPORTED, "has no response cache"),
        (replace(LLM, warmup=(Warmup("w", 1, {}),)), Code.UNSUPPORTED, "expected no model_warmup"),
        (replace(LLM, instance_groups=(InstanceGroup("a", "KIND_MODEL", 2),)), Code.UNSUPPORTED, "got count 2"),
        (replace(LLM, instance_groups=(InstanceGroup("a", "KIND_GPU"),)), Code.UNSUPPORTED, "kind KIND_GPU"),
        (replace(LLM, instance_groups=LLM.instance_groups * 2), Code.UNSUPPORTED, "expected one instance_group, got 2"),
    ],
)
def test_what_a_language_model_does_not_act_on_is_refused(config: ModelConfig, code: Code, text: str) -> None:
    with pytest.raises(ServingError, match=text) as raised:
        check_language_config(config)
    assert raised.value.code is code
