"""A small Qwen3-Next with random weights, and transformers' greedy tokens of it."""

import json
from pathlib import Path

import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

LINEAR, FULL = "linear_attention", "full_attention"
NEAR = 0.1
"""If the two largest logits differ by less than this (a near tie), rounding may choose either token."""


def make(folder: Path) -> Qwen3NextForCausalLM:
    """Save the checkpoint, with the configuration names that SGLang reads."""
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        layer_types=[LINEAR, LINEAR, LINEAR, FULL],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_conv_kernel_dim=4,
        num_experts=4,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        initializer_range=0.2,
        dtype="float16",
    )
    model = Qwen3NextForCausalLM(config).to(torch.float16)
    model.save_pretrained(folder)
    file = folder / "config.json"
    names = {
        "architectures": ["Qwen3NextForCausalLM"],
        "full_attention_interval": 4,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "rope_scaling": None,
        "torch_dtype": "float16",
    }
    file.write_text(json.dumps({**json.loads(file.read_text()), **names}))
    return model.float()


def greedy(model: Qwen3NextForCausalLM, prompt: list[int], new_tokens: int) -> tuple[list[int], int]:
    """The greedy tokens, and the number of tokens before the first near tie."""
    done = model.generate(
        torch.tensor([prompt]),
        do_sample=False,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        eos_token_id=None,
        pad_token_id=1,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack(done.logits)[:, 0].topk(2).values
    near = (best[:, 0] - best[:, 1] < NEAR).tolist()
    return done.sequences[0, len(prompt) :].tolist(), near.index(True) if True in near else new_tokens
