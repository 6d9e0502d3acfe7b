"""Writes `ring.safetensors`: weights, inputs and results of layers of Ring and Ling.

    python tests/families/references/make_ring.py

SGLang's own classes compute the results on a CPU. SGLang's kernels run in Triton's interpreter; softmax
attention is torch's. This needs SGLang 0.5.23 with torch and Triton, but no GPU.

In SGLang, layer 0 has the decays that layer 1 has in the published definition. So layer 2 of the definition
is compared with layer 1 of SGLang.
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
from ring_config import CONFIG, LATENT, LAYER, LAYERS
from sglang.kernels.ops.attention.fla import layernorm_gated
from sglang.kernels.ops.attention.linear.seg_la import SegLaMeta, seg_la_fwd
from sglang.srt.layers.attention.linear.lightning_backend import LightningAttentionBackend
from sglang.srt.layers.layer_boundary.adapters.attention import AttentionInputs, get_attn_tp_context
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.models import bailing_moe_linear, deepseek_v2
from sglang.srt.models.deepseek_common.attention_forward_methods import forward_mha
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod
from transformers import PretrainedConfig

ROWS = 40


def attend(layer: RadixAttention, q: Any, k: Any, v: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces SGLang's dispatch to a backend: softmax or lightning attention of one sequence without cached
    tokens."""
    if batch.slopes is None:
        heads = (layer.tp_q_head_num, layer.tp_k_head_num, layer.tp_v_head_num)
        q, k, v = (x.reshape(ROWS, n, -1).transpose(0, 1) for x, n in zip((q, k, v), heads, strict=True))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=layer.scaling, enable_gqa=True)
        return out.transpose(0, 1).reshape(ROWS, -1)
    lengths = torch.tensor([0, ROWS], dtype=torch.int32)
    state = torch.zeros(1, layer.tp_q_head_num, layer.head_dim, layer.head_dim)
    meta = SegLaMeta(
        batch_size=1,
        q_offsets=lengths,
        s_offsets=torch.zeros(1, dtype=torch.int32),
        q_lengths=lengths.diff(),
        s_scales=torch.zeros(1),
        max_q_length=None,
        mask=None,
    )
    return seg_la_fwd(q, k, v, state, batch.slopes, meta, softmax_scale=layer.scaling).reshape(ROWS, -1)


def rotary(
    head_size: int,
    rotary_dim: int,
    max_position: int,
    base: float,
    is_neox_style: bool = True,
    rope_scaling: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Any:
    """SGLang's rotary embedding, computed by its plain torch code."""
    made = get_rope(head_size, rotary_dim, max_position, base, is_neox_style, rope_scaling, dtype)
    made.forward = made.forward_native
    return made


def prepare() -> None:
    """Makes this process SGLang's only rank, with the attention of `attend`."""
    one_rank.prepare(attn_tp_rank=0, moe_ep_rank=0, moe_tp_rank=0)
    bailing_moe_linear.get_rope_wrapper = deepseek_v2.get_rope_wrapper = rotary
    layernorm_gated._get_sm_count = lambda device: 1
    forward_mha.resolve_attn_backend = lambda batch: None
    RadixAttention.forward = attend


def draw(layer: torch.nn.Module, seed: int) -> None:
    """Set random weights, near 1 for norms, and select SGLang's plain torch code."""
    torch.manual_seed(seed)
    for part in layer.modules():
        if hasattr(part, "forward_native"):
            part._forward_method = part.forward_native
    for weight in layer.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, weight.shape[-1] ** -0.5)
        else:
            weight.data.normal_(0, 0.1).add_(1.0 if weight.numel() != CONFIG["num_experts"] else 0.0)


@torch.no_grad()
def main() -> None:
    """Run each kind of layer on the same rows, and write the file."""
    prepare()
    config = PretrainedConfig(**CONFIG)
    config.rope_scaling = None
    latent = bailing_moe_linear.DsV3MLA(
        config=config,
        hidden_size=CONFIG["hidden_size"],
        num_heads=CONFIG["num_attention_heads"],
        rope_theta=CONFIG["rope_theta"],
        rope_scaling=None,
        max_position_embeddings=CONFIG["max_position_embeddings"],
        layer_id=LAYER,
        reduce_results=False,
        prefix="attention",
        **LATENT,
    )
    latent.dispatch_attn_forward_method = lambda batch: AttnForwardMethod.MHA
    latent._set_mla_kv_buffer = lambda *arguments: None
    latent._use_min_latency_fused_a_gemm = False
    layers = {
        "lightning": bailing_moe_linear.BailingMoELinearAttention(config, layer_id=LAYER - 1),
        "attention": bailing_moe_linear.BailingMoEAttention(config, layer_id=LAYER),
        "latent": latent,
        "experts": bailing_moe_linear.BailingMoE(config, layer_id=LAYER),
    }
    # SGLang's GPU kernels multiply by routed_scaling_factor; its forward for CPUs expects that factor in the
    # experts' weights.
    layers["experts"].topk.topk_config.apply_routed_scaling_factor_on_output = True
    torch.manual_seed(0)
    rows = torch.randn(ROWS, CONFIG["hidden_size"])
    slopes = LightningAttentionBackend._build_slope_tensor(CONFIG["num_attention_heads"], LAYERS, "cpu")
    kept = {"rows": rows, "slopes": slopes[LAYER - 1].flatten()}
    for seed, (name, layer) in enumerate(layers.items()):
        draw(layer, seed)
        decays = slopes[LAYER - 1] if name == "lightning" else None
        batch = SimpleNamespace(slopes=decays, mha_one_shot=False)
        if name == "latent":
            inputs = AttentionInputs(rows, batch, latent.prepare_qkv_latent)
            get_attn_tp_context().set_attn_inputs(inputs)
        if name == "experts":
            out = layer(rows)
        else:
            more = {"zero_allocator": None} if name == "latent" else {}
            out = layer(hidden_states=rows, positions=torch.arange(ROWS), forward_batch=batch, **more)
        kept[f"{name}.out"] = out
        kept.update({f"{name}.{key}": value.data for key, value in layer.named_parameters()})
    file = Path(__file__).with_name("ring.safetensors")
    save_file({name: value.contiguous() for name, value in kept.items()}, file)
    print({name: tuple(value.shape) for name, value in kept.items()}, file.stat().st_size)


if __name__ == "__main__":
    main()
