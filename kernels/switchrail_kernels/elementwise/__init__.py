"""Kernels for normalisation, activation, rotary embedding, and the inputs and drafts of captured steps."""

from __future__ import annotations

OPERATIONS = {
    "decode_rows": "switchrail_kernels.elementwise.decode_rows:decode_rows",
    "verify_rows": "switchrail_kernels.elementwise.verify_rows:verify_rows",
    "accept_rows": "switchrail_kernels.elementwise.verify_rows:accept_rows",
    "add_rms_norm": "switchrail_kernels.elementwise.add_rms_norm:add_rms_norm",
    "rms_norm": "switchrail_kernels.elementwise.rms_norm:rms_norm",
    "gated_rms_norm": "switchrail_kernels.elementwise.gated_rms_norm:gated_rms_norm",
    "qk_norm_rope": "switchrail_kernels.elementwise.qk_norm_rope:qk_norm_rope",
    "rotary": "switchrail_kernels.elementwise.rotary:rotary",
    "sigmoid_gate": "switchrail_kernels.elementwise.silu_and_mul:sigmoid_gate",
    "silu_and_mul": "switchrail_kernels.elementwise.silu_and_mul:silu_and_mul",
}
"""For each operation of `switchrail.platforms` with a kernel here: the path of the function that runs it."""

__all__ = ["OPERATIONS"]
