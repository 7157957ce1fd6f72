"""What a Llama file says when transformers runs it, in float32 on the file's dequantised values."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from backends.lm.checkpoint import Checkpoint
from backends.lm.load import open_checkpoint

NEAR = 1e-3  # logits closer than this are a tie, which either side may break


def reference_llama(location: Path) -> Any:
    """transformers' model of a Llama with tied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    checkpoint = open_checkpoint(location)
    assert checkpoint is not None
    config = checkpoint.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            intermediate_size=config.ffn,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.max_positions,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.ropes[0].theta},
            tie_word_embeddings=True,
            eos_token_id=2,
            pad_token_id=2,
        )
    )
    model.load_state_dict(dict(_tensors_of(checkpoint)), strict=True)
    return model.eval()


@torch.inference_mode()
def greedy(
    model: Any, prompts: Sequence[list[int]], num_tokens: int, eos: int | None = None
) -> tuple[list[list[int]], list[list[float]]]:
    """transformers' greedy answers, up to `eos` if given, and by how much each token's logit leads the second best."""
    texts, margins = [], []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=num_tokens,
            eos_token_id=eos,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
        best = torch.cat(out.logits).topk(2).values
        texts.append(out.sequences[0, len(prompt) :].tolist())
        margins.append((best[:, 0] - best[:, 1]).tolist())
    return texts, margins


def _tensors_of(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    embed = checkpoint.matrix("embed").dequantize(torch.float32)
    yield "model.embed_tokens.weight", embed
    yield "lm_head.weight", embed
    yield "model.norm.weight", checkpoint.norm("final_norm")
    places = {"q": "self_attn", "k": "self_attn", "v": "self_attn", "o": "self_attn"}
    places |= dict.fromkeys(("gate", "up", "down"), "mlp")
    for i in range(checkpoint.config.num_layers):
        for name, place in places.items():
            values = checkpoint.matrix(name, i).dequantize(torch.float32)
            yield f"model.layers.{i}.{place}.{name}_proj.weight", values
        yield f"model.layers.{i}.input_layernorm.weight", checkpoint.norm("attn_norm", i)
        yield f"model.layers.{i}.post_attention_layernorm.weight", checkpoint.norm("ffn_norm", i)
