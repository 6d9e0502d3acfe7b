"""Stand-in: the enum of linear backends, and those that the process has chosen."""

from enum import Enum

CHOSEN = {}
"""The chosen members by phase; in SGLang they are globals, set by `initialize_linear_attn_config`."""


class LinearAttnKernelBackend(Enum):
    TRITON = "triton"
    FLASHINFER = "flashinfer"

    def is_triton(self):
        return self == LinearAttnKernelBackend.TRITON


def get_linear_attn_decode_backend():
    return CHOSEN["decode"]


def get_linear_attn_prefill_backend():
    return CHOSEN["prefill"]
