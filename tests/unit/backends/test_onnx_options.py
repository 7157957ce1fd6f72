"""Providers by config and by what the library has; no GPU is needed to decide."""

import pytest

from backends.api.base import Placement
from backends.api.errors import Code, ServingError
from backends.api.model_config import Accelerator, InstanceGroup, ModelConfig, Optimization
from backends.onnx_options import check_accelerators, providers

ALL = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "OpenVINOExecutionProvider", "CPUExecutionProvider"]
GPU = Placement("m", "GPU", 1)


def chosen(*gpu: Accelerator, placement: Placement = GPU, available=ALL, **parameters: str):
    config = ModelConfig("m", parameters=parameters, optimization=Optimization(gpu_accelerators=gpu))
    return dict(providers(config, placement, available))


def test_the_cpu_needs_nothing_else():
    assert chosen(placement=Placement("m")) == {"CPUExecutionProvider": {}}


def test_a_gpu_instance_runs_on_its_device_with_the_cpu_behind():
    assert list(chosen()) == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert chosen()["CUDAExecutionProvider"] == {"device_id": "1"}


def test_cuda_options_are_taken_from_parameters_and_accelerator_in_the_librarys_words():
    options = chosen(
        Accelerator("cuda", {"arena_extend_strategy": "1"}), cudnn_conv_algo_search="0", gpu_mem_limit="4294967296"
    )["CUDAExecutionProvider"]
    assert options == {
        "device_id": "1",
        "cudnn_conv_algo_search": "EXHAUSTIVE",
        "gpu_mem_limit": "4294967296",
        "arena_extend_strategy": "kSameAsRequested",
    }


def test_tensorrt_goes_before_cuda_with_its_options_translated():
    parameters = {
        "precision_mode": "FP16",
        "max_workspace_size_bytes": "1073741824",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/tmp/engines",
    }
    selected = chosen(Accelerator("tensorrt", parameters))
    assert list(selected) == ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    assert selected["TensorrtExecutionProvider"] == {
        "device_id": "1",
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1073741824",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/tmp/engines",
    }


@pytest.mark.parametrize(
    ("accelerator", "text"),
    [
        (Accelerator("tensorrt", {"precision_mode": "FP4"}), "precision_mode must be one of FP32, FP16, INT8"),
        (Accelerator("tensorrt", {"speed": "11"}), "has no parameter 'speed'"),
        (Accelerator("openvino"), "unknown gpu_execution_accelerator 'openvino'"),
    ],
)
def test_what_no_accelerator_knows_is_refused(accelerator, text):
    with pytest.raises(ServingError, match=text) as caught:
        chosen(accelerator)
    assert caught.value.code is Code.INVALID


def test_an_absent_provider_is_named_beside_those_there_are():
    with pytest.raises(ServingError, match="has no CUDAExecutionProvider, it has CPUExecutionProvider") as caught:
        chosen(available=["CPUExecutionProvider"])
    assert caught.value.code is Code.UNAVAILABLE


def with_tensorrt(kind: str = "KIND_AUTO", **parameters: str) -> ModelConfig:
    optimization = Optimization(gpu_accelerators=(Accelerator("tensorrt", parameters),))
    return ModelConfig("m", instance_groups=(InstanceGroup("g", kind),), optimization=optimization)


@pytest.mark.parametrize(
    ("config", "num_gpus", "code", "text"),
    [
        (with_tensorrt(), 0, Code.UNAVAILABLE, "'tensorrt' needs a GPU, and onnxruntime finds none here .CPUExec"),
        (with_tensorrt("KIND_CPU"), 1, Code.UNAVAILABLE, "needs a GPU, and its instances are all on the CPU"),
        (with_tensorrt(speed="11"), 0, Code.INVALID, "accelerator 'tensorrt' has no parameter 'speed'"),
    ],
)
def test_accelerators_of_gpus_are_not_ignored_without_one(config, num_gpus, code, text):
    with pytest.raises(ServingError, match=text) as caught:
        check_accelerators(config, num_gpus, ["CPUExecutionProvider"])
    assert caught.value.code is code


def test_with_a_gpu_its_accelerators_are_the_instances_business():
    check_accelerators(with_tensorrt(), 1, ALL)
    check_accelerators(ModelConfig("m"), 0, ALL)
