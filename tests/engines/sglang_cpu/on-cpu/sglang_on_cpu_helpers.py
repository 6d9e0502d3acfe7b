"""Replacements of SGLang's functions that need a GPU or a library of compiled CPU kernels.

SGLang has aliases of functions of `tl`, such as `exp`. Jitted functions replace these aliases, since the
interpreter adapts only `tl` itself. Drafts use the Triton kernels that SGLang has for XPUs.
"""

import sglang.kernels.ops.attention.fla.op as op
import sglang.srt.utils
import torch
import triton
import triton.language as tl


@triton.jit
def _exp(x):
    return tl.exp(x)


@triton.jit
def _exp2(x):
    return tl.math.exp2(x)


@triton.jit
def _log(x):
    return tl.log(x)


@triton.jit
def _log2(x):
    return tl.log2(x)


def adapt():
    """Replace the aliases before the modules that import them are imported."""
    op.exp, op.exp2, op.log, op.log2 = _exp, _exp2, _log, _log2


def adapt_drafts():
    """Let trees of drafts be made and checked by the Triton kernels for XPUs."""
    is_xpu = sglang.srt.utils.is_xpu
    sglang.srt.utils.is_xpu = lambda: True
    try:
        from sglang.kernels.ops.speculative import reconstruct_tree, spec_tree
    finally:
        sglang.srt.utils.is_xpu = is_xpu
    reconstruct_tree._is_xpu = spec_tree._is_xpu = True
    from sglang.kernels.ops.mamba import mamba_state_scatter_triton

    mamba_state_scatter_triton.scatter_mamba_states_after_mtp_verify = commit_states


def adapt_mamba2():
    """Give Mamba2 layers the Triton convolutions that they otherwise import on GPUs only."""
    from sglang.kernels.ops.mamba import causal_conv1d_triton as triton_kernels
    from sglang.srt.layers.attention.mamba import mamba

    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        for alias in (name, f"{name}_triton"):
            setattr(mamba, alias, getattr(triton_kernels, name))


def adapt_attention():
    """Let latent and lightning attention rotate as on a GPU, and count a CPU as one multiprocessor.

    On a CPU, SGLang has rotary embeddings with one kind of scaling only.
    """
    from sglang.kernels.ops.attention.fla import layernorm_gated
    from sglang.srt.layers.rotary_embedding import base, factory

    base.RotaryEmbedding.forward_cuda = base.RotaryEmbedding.forward_native
    factory.get_rope_cpu = lambda *arguments: factory.get_rope(*arguments[:-1])  # without the device
    layernorm_gated._get_sm_count = lambda device: 1


def draft_places(*, req_pool_indices, req_to_token, start_offset, draft_token_num, **_):
    """The places in the cache of each request's drafted tokens."""
    columns = start_offset[:, None] + torch.arange(draft_token_num)
    return req_to_token[req_pool_indices[:, None], columns].flatten().long()


def commit_states(caches, slots, steps, track_slots, track_steps, src_indices_raw=None):
    """Copy the states after the accepted drafted tokens to `slots`, and tracked states to `track_slots`."""
    for states, rows in (
        (caches.temporal, caches.intermediate_ssm),
        (caches.conv[0], caches.intermediate_conv_window[0]),
    ):
        for targets, after in ((slots, steps), (track_slots, track_steps)):
            if targets is None:
                continue
            taken = (after >= 0).nonzero().flatten()
            states[:, targets[taken].long()] = rows[:, taken, after[taken].long()]
