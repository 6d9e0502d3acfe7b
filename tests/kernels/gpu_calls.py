"""Calls of every op on a GPU, by phase and seed, and the Triton backend that they are for."""

import pytest
import torch
from switchrail.testing.inputs import (
    attention_call,
    gated_delta_call,
    kda_call,
    lightning_call,
    mamba2_call,
    mla_call,
    short_conv_call,
)
from switchrail_kernels.attention.triton import TritonAttention
from switchrail_kernels.gated_delta.triton import TritonGatedDelta
from switchrail_kernels.kda.triton import TritonKda
from switchrail_kernels.lightning.triton import TritonLightning
from switchrail_kernels.mamba2.triton import TritonMamba2
from switchrail_kernels.mla.triton import TritonMla
from switchrail_kernels.short_conv.triton import TritonShortConv


def attention(phase, seed):
    lengths = [1] * 3 if phase == "decode" else [70, 3, 9]
    kv = [900, 3, 257] if seed == 0 else [700, 258, 900]
    return attention_call(lengths, kv_lengths=kv, phase=phase, dtype=torch.bfloat16, device="cuda", seed=seed)


def mla(phase, seed):
    lengths = [1] * 3 if phase == "decode" else [70, 3, 9]
    kv = [900, 3, 257] if seed == 0 else [700, 258, 900]
    sizes = {"heads": 16, "latent_size": 512, "rope_size": 64, "absorbed": True}
    options = {"dtype": torch.bfloat16, "device": "cuda", "seed": seed}
    return mla_call(lengths, kv_lengths=kv, phase=phase, **sizes, **options)


def stateful(make):
    def call(phase, seed):
        lengths = [1] * 3 if phase == "decode" else [70, 3, 9]
        options = {"dtype": torch.bfloat16, "device": "cuda", "seed": seed}
        return make(lengths, phase=phase, initial="all", padding=(seed,), **options)

    return call


OPS = [
    pytest.param(attention, TritonAttention, id="attention"),
    pytest.param(stateful(gated_delta_call), TritonGatedDelta, id="gated_delta"),
    pytest.param(stateful(kda_call), TritonKda, id="kda"),
    pytest.param(stateful(lightning_call), TritonLightning, id="lightning"),
    pytest.param(stateful(mamba2_call), TritonMamba2, id="mamba2"),
    pytest.param(stateful(short_conv_call), TritonShortConv, id="short_conv"),
    pytest.param(mla, TritonMla, id="mla"),
]
