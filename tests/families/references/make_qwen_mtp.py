"""Writes `qwen_mtp.safetensors`: weights, inputs and logits of Qwen3-Next's MTP head.

    python tests/families/references/make_qwen_mtp.py

SGLang's own class loads the weights, which have the published names, and computes the logits. Softmax
attention is torch's. This needs SGLang 0.5.23 with torch and Triton, but no GPU.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

if not hasattr(torch.cpu, "device"):
    torch.cpu.device = lambda index=None: contextlib.nullcontext()

import one_rank
from qwen_mtp_config import CONFIG
from sglang.srt.configs import Qwen3NextConfig
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models import qwen3_next
from sglang.srt.models.qwen3_next_mtp import Qwen3NextForCausalLMMTP

ROWS = 24


def attend(layer: RadixAttention, q: Any, k: Any, v: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces SGLang's dispatch to a backend: attention of one sequence without cached tokens."""
    heads = (layer.tp_q_head_num, layer.tp_k_head_num, layer.tp_v_head_num)
    q, k, v = (x.reshape(ROWS, n, -1).transpose(0, 1) for x, n in zip((q, k, v), heads, strict=True))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=layer.scaling, enable_gqa=True)
    return out.transpose(0, 1).reshape(ROWS, -1)


def rotary(**arguments: Any) -> Any:
    """SGLang's rotary embedding, computed by its plain torch code."""
    made = get_rope(**arguments)
    made.forward = made.forward_native
    return made


class Batch(SimpleNamespace):
    """A batch; attributes that are not given are None."""

    def __getattr__(self, name: str) -> None:
        return None


def prepare() -> None:
    """Makes this process SGLang's only rank, with attention from torch."""
    one_rank.prepare(tp_rank=0, attn_tp_rank=0, moe_ep_rank=0, moe_tp_rank=0)
    RadixAttention.forward = attend


def weights() -> dict[str, torch.Tensor]:
    """Random weights with the published names. Weights of norms are near 0, since norms add 1 to them."""
    hidden, heads, groups, size = (
        CONFIG[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    inner, shared = CONFIG["moe_intermediate_size"], CONFIG["shared_expert_intermediate_size"]
    layer = "mtp.layers.0"
    shapes = {
        "model.embed_tokens.weight": (CONFIG["vocab_size"], hidden),
        "lm_head.weight": (CONFIG["vocab_size"], hidden),
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (hidden,),
        "mtp.norm.weight": (hidden,),
        f"{layer}.input_layernorm.weight": (hidden,),
        f"{layer}.post_attention_layernorm.weight": (hidden,),
        f"{layer}.self_attn.q_proj.weight": (2 * heads * size, hidden),
        f"{layer}.self_attn.k_proj.weight": (groups * size, hidden),
        f"{layer}.self_attn.v_proj.weight": (groups * size, hidden),
        f"{layer}.self_attn.o_proj.weight": (hidden, heads * size),
        f"{layer}.self_attn.q_norm.weight": (size,),
        f"{layer}.self_attn.k_norm.weight": (size,),
        f"{layer}.mlp.gate.weight": (CONFIG["num_experts"], hidden),
        f"{layer}.mlp.shared_expert_gate.weight": (1, hidden),
    }
    experts = [(f"{layer}.mlp.experts.{i}", inner) for i in range(CONFIG["num_experts"])]
    for name, rows in [*experts, (f"{layer}.mlp.shared_expert", shared)]:
        shapes |= {
            f"{name}.gate_proj.weight": (rows, hidden),
            f"{name}.up_proj.weight": (rows, hidden),
            f"{name}.down_proj.weight": (hidden, rows),
        }
    torch.manual_seed(1)
    return {
        name: torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.1)
        for name, shape in shapes.items()
    }


@torch.no_grad()
def main() -> None:
    """Runs the head on random hidden states and tokens, and writes the file."""
    prepare()
    qwen3_next.get_rope = rotary
    config = Qwen3NextConfig(**CONFIG)
    model = Qwen3NextForCausalLMMTP(config)
    kept = weights()
    model.load_weights(kept.items())
    for part in model.modules():
        if hasattr(part, "forward_native"):
            part._forward_method = part.forward_native
    model.logits_processor.forward = lambda ids, hidden, head, batch: hidden @ kept["lm_head.weight"].T
    tokens, hidden = torch.randint(CONFIG["vocab_size"], (ROWS,)), torch.randn(ROWS, CONFIG["hidden_size"])
    batch = Batch(spec_info=SimpleNamespace(hidden_states=hidden), forward_mode=ForwardMode.EXTEND)
    out = model(tokens, torch.arange(ROWS), batch, input_embeds=kept["model.embed_tokens.weight"][tokens])
    kept |= {"tokens": tokens, "hidden": hidden, "logits": out}
    file = Path(__file__).with_name("qwen_mtp.safetensors")
    save_file({name: value.contiguous() for name, value in kept.items()}, file)
    print(out.shape, out.abs().mean(), file.stat().st_size)


if __name__ == "__main__":
    main()
