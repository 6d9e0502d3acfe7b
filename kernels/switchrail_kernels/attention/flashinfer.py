"""FlashInfer's paged attention as a backend."""

from __future__ import annotations

import math

import torch
from flashinfer import BatchPrefillWithPagedKVCacheWrapper
from switchrail.ops.attention.contract import CONTRACT, AttentionBackend, AttentionCall
from switchrail.ops.backend import check_plan
from switchrail.ops.batch import Bounds, PagedBatch, Phase

from switchrail_kernels.alignment import check_pool, fit, is_aligned
from switchrail_kernels.device import multiprocessors
from switchrail_kernels.wrappers import WrapperPlan, Wrappers

FEATURES = ("lse",)

DECODE_WORKSPACE = 288 << 20
"""Bytes for partial results in decode and verify.

They suffice for 16 query heads of size 256 per key-value head on 132 multiprocessors.
"""


def _partial_bytes(rows: int, group: int, head_size: int, device: torch.device) -> int:
    """Upper bound of the bytes that the library needs for partial results if it splits caches over programs.

    Args:
        rows: Maximum rows per sequence.
        group: Query heads per key-value head.
        head_size: D.
        device: The device.
    """
    packed = rows * group
    tile = 16 if packed <= 16 else 64 if packed <= 64 or head_size >= 256 else 128
    return 2 * multiprocessors(device) * group * tile * (head_size + 1) * 4


class FlashInferAttention(AttentionBackend):
    """Paged attention for compute capability 9.0, in bfloat16.

    Prefill runs the library's Hopper kernels. Decode and verify run its Ampere kernels, which can split a
    cache over several programs.
    """

    def __init__(self, config: object = None) -> None:
        super().__init__(config)
        make = BatchPrefillWithPagedKVCacheWrapper
        self._prefill = Wrappers(lambda memory: make(memory, "NHD", backend="fa3"))
        self._decode = Wrappers(lambda memory: make(memory, "NHD", backend="fa2"), DECODE_WORKSPACE)

    def plan(self, phase: Phase, batch: PagedBatch, bounds: Bounds | None = None) -> WrapperPlan:
        """Collect the lengths. The library's own plan is made at the first call for layers of each shape."""
        return WrapperPlan(CONTRACT, phase, batch)

    def run(self, call: AttentionCall, batch: PagedBatch, plan: WrapperPlan) -> None:
        """Compute attention for T packed query rows of N sequences of any length."""
        CONTRACT.check_call(call, batch, FEATURES)
        check_plan(plan, batch, (WrapperPlan,))
        layer, q, out, lse = call
        k_cache, v_cache, scale = layer.k_cache, layer.v_cache, layer.scale
        if plan.is_empty:
            plan.clear_padding(out, lse)
            return
        check_pool(CONTRACT, "k_cache", k_cache)
        check_pool(CONTRACT, "v_cache", v_cache)
        if scale < 0:  # the library assumes that the largest product gives the largest logit
            q, scale = -q, -scale
        q = fit(q)
        result = out if is_aligned(out) else torch.empty_like(out)
        wrappers = self._prefill if plan.phase == "prefill" else self._decode
        heads, head_size = q.shape[1:]
        page, kv_heads = k_cache.shape[1:3]
        key = (heads, kv_heads, head_size, page, q.dtype, scale)

        def prepare(wrapper: BatchPrefillWithPagedKVCacheWrapper) -> None:
            tables = plan.tables(page)
            needed = _partial_bytes(plan.longest, heads // kv_heads, head_size, q.device)
            wrapper.plan(
                plan.rows,
                tables.starts,
                tables.pages,
                tables.last,
                heads,
                kv_heads,
                head_size,
                page,
                causal=True,
                sm_scale=scale,
                q_data_type=q.dtype,
                disable_split_kv=needed > DECODE_WORKSPACE,
                max_token_per_sequence=plan.longest,
            )

        with torch.cuda.device(q.get_device()):
            wrapper = plan.wrapper(wrappers, key, prepare)
            wrapper.run(q, (k_cache, v_cache), out=result, lse=lse, return_lse=lse is not None)
        if lse is not None:
            lse.mul_(math.log(2))  # the library's log-sum-exp has base 2
        if result is not out:
            out.copy_(result)
        plan.clear_padding(out, lse)
