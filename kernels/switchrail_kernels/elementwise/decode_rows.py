"""The operation `decode_rows` of `switchrail.platforms` in Triton."""

# Triton infers the types of kernel arguments at the call.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from switchrail_kernels.dependent import wait
from switchrail_kernels.launch import Launcher, padded


@triton.jit
def _derive(
    p_rows, p_tokens, p_table, p_ids, p_pages, p_kv_rows, p_kv_lens, p_sequences, p_real,
    N, s_rows, s_table, P,
    PAGE: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    i_n = tl.program_id(0)
    slot = tl.load(p_rows + s_rows + i_n)
    is_real = slot >= 0
    position = tl.load(p_rows + i_n) + tl.where(is_real, tl.load(p_rows + 2 * s_rows + i_n), 0)
    tl.store(p_rows + i_n, position)
    tl.store(p_rows + 2 * s_rows + i_n, is_real.to(tl.int64))
    owner = tl.maximum(slot, 0)
    p_table += owner * s_table
    page = tl.load(p_table + position // PAGE).to(tl.int64)
    tl.store(p_ids + i_n, tl.load(p_tokens + owner))
    tl.store(p_kv_rows + i_n, page * PAGE + position % PAGE)
    tl.store(p_kv_lens + i_n, tl.where(is_real, position + 1, 0).to(tl.int32))
    tl.store(p_sequences + i_n, slot.to(tl.int32))
    for i_p in range(0, P, BP):
        o_p = i_p + tl.arange(0, BP)
        tl.store(p_pages + i_n * P + o_p, tl.load(p_table + o_p, mask=o_p < P, other=0), mask=o_p < P)
    if i_n == 0:
        o_n = tl.arange(0, BN)
        b_slot = tl.load(p_rows + s_rows + o_n, mask=o_n < N, other=-1)
        tl.store(p_real, tl.sum((b_slot >= 0).to(tl.int32), 0))


_launch = Launcher(_derive, early=True)


def decode_rows(
    rows: torch.Tensor,
    last_tokens: torch.Tensor,
    page_table: torch.Tensor,
    *,
    page_size: int,
    out: Sequence[torch.Tensor],
) -> None:
    """Compute the inputs of a captured decode; see `switchrail.engine.inputs.decode_rows`.

    Args:
        rows: [3, N] int64, updated in place.
        last_tokens: [slots] int64.
        page_table: [slots, pages] int32.
        page_size: Page size in tokens.
        out: The six results.
    """
    count, width = out[1].shape
    _launch(
        (count, 1, 1),
        (rows, last_tokens, page_table, *out),
        (count, rows.stride(0), page_table.stride(0), width),
        (page_size, padded(count), min(padded(width), 1024)),
        num_warps=4,
    )
