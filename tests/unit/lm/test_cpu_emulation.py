"""Processors with AVX-512 but without its bfloat16 instructions: the same kernels, compiled without them."""

import subprocess
import sys
from pathlib import Path

import pytest

from backends.lm.cpu.features import cpu_features

SCRIPT = """
import sys
from pathlib import Path
from backends.lm.cpu import features
without = features.CpuFeatures(avx512=True, vnni=False, bf16=False)
features.cpu_features = lambda: without

import numpy as np
import torch
from backends.lm.attention.reference import ReferenceAttention
from backends.lm.cpu import cpu_ops
from backends.lm.ops import AttentionBatch, AttentionSpec
from backends.lm.weights import Weight

torch.manual_seed(0)
ops = cpu_ops("bfloat16", 2, cache_folder=Path(sys.argv[1]))
matrix, x = torch.randn(40, 96), torch.randn(11, 96)
linear = ops.linear([Weight.from_tensor(matrix)], [None])
assert linear.form.name == "bf16"
wanted = x.bfloat16().double() @ matrix.bfloat16().double().T
together = linear(x).clone()
torch.testing.assert_close(together.double(), wanted, rtol=1e-5, atol=1e-4)
assert torch.equal(linear(x[3:4]), together[3:4])

spec = AttentionSpec(6, 2, 32, 0.2)
at = np.arange(20)
batch = AttentionBatch(
    np.array([0, 20], np.int32), np.array([20], np.int32), np.array([[1, 0]], np.int32), at.astype(np.int32),
    np.where(at < 16, at + 16, at - 16).astype(np.int64), 20, 20,
)
q, k, v = (torch.randn(20, heads, 32).bfloat16().float() for heads in (6, 2, 2))
wanted = ReferenceAttention(spec, 2, 16)(q, k, v, batch)
torch.testing.assert_close(ops.attention(spec, 2, 16)(q, k, v, batch), wanted, rtol=0, atol=0.03)
print("agreed")
"""


@pytest.mark.slow
@pytest.mark.skipif(not cpu_features().avx512, reason="kernels for AVX-512")
def test_kernels_without_bfloat16_instructions_agree(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "agreed\n"
