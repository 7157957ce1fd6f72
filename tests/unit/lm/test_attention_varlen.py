"""torch's paged kernel on CUDA, and its refusals anywhere."""

import pytest
import torch

from backends.api.errors import Code, ServingError
from backends.lm.attention.varlen import check_varlen
from backends.lm.ops import AttentionSpec

PLAIN = AttentionSpec(8, 2, 64, 0.125)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("spec", [PLAIN, AttentionSpec(9, 3, 64, 0.125, window=7), AttentionSpec(4, 4, 128, 0.1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_kernel_agrees_with_the_reference_on_cuda(spec: AttentionSpec, dtype: torch.dtype) -> None:
    check_varlen(spec, 256, dtype, torch.device("cuda"))


@pytest.mark.parametrize(
    ("spec", "dtype", "device", "named"),
    [
        (PLAIN, torch.bfloat16, "cpu", "cpu"),
        (PLAIN, torch.float32, "cuda", "float32"),
        (AttentionSpec(8, 2, 64, 0.125, softcap=30.0), torch.bfloat16, "cuda", "soft cap"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused_with_the_reason(
    spec: AttentionSpec, dtype: torch.dtype, device: str, named: str
) -> None:
    with pytest.raises(ServingError, match=named) as refusal:
        check_varlen(spec, 16, dtype, torch.device(device))
    assert refusal.value.code is Code.UNSUPPORTED
