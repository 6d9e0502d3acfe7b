"""FlashInfer's attention to paged latents, or in prefill to expanded keys and values, as a backend."""

from __future__ import annotations

import math
from functools import partial

import torch
from flashinfer import BatchPrefillWithRaggedKVCacheWrapper
from flashinfer.mla import BatchMLAPagedAttentionWrapper
from switchrail.ops.backend import check_plan
from switchrail.ops.batch import Bounds, PagedBatch, Phase
from switchrail.ops.mla.contract import CONTRACT, MlaBackend, MlaCall
from switchrail.ops.mla.prefix import ChunkedPrefix, Piece

from switchrail_kernels.alignment import check_pool, fit, is_aligned
from switchrail_kernels.device import multiprocessors
from switchrail_kernels.mla.project import project
from switchrail_kernels.wrappers import WrapperPlan, Wrappers

FEATURES = ("lse",)

MOST = 16384
"""Maximum number of work items in a plan. The library does not check this limit."""

EXPANDED = (192, 128)
"""Head sizes of expanded keys and values for which the library has ragged Hopper kernels."""


class MlaPlan(WrapperPlan):
    """A step's plan.

    Attributes:
        prefix: The pieces of a prefill that may expand keys; None if only latents are attended to.
    """

    prefix: ChunkedPrefix | None = None


class FlashInferMla(MlaBackend):
    """Latent attention for compute capability 9.0, in bfloat16, with latents of 512 and rotary parts of 64.

    After `plan_chunked_prefix`, a prefill may attend to expanded keys and values, if their head sizes are
    `EXPANDED`. All other calls attend to latents.
    """

    def __init__(self, config: object = None) -> None:
        super().__init__(config)
        self._wrappers = Wrappers(lambda memory: BatchMLAPagedAttentionWrapper(memory, backend="fa3"))
        make = BatchPrefillWithRaggedKVCacheWrapper
        self._ragged = Wrappers(lambda memory: make(memory, "NHD", backend="fa3"))

    def plan(self, phase: Phase, batch: PagedBatch, bounds: Bounds | None = None) -> MlaPlan:
        """Collect the lengths. The library's own plan is made at the first call for layers of each shape."""
        return MlaPlan(CONTRACT, phase, batch)

    def plan_chunked_prefix(self, plan: MlaPlan, batch: PagedBatch, ragged: bool, chunked: bool) -> None:
        """Split a prefill into pieces. The library plans each at the first call for layers of each shape."""
        check_plan(plan, batch, (MlaPlan,))
        plan.prefix = ChunkedPrefix.of(batch, ragged=ragged, chunked=chunked)

    def run(self, call: MlaCall, batch: PagedBatch, plan: MlaPlan) -> None:
        """Compute attention for T packed query rows of N sequences of any length."""
        CONTRACT.check_call(call, batch, FEATURES)
        check_plan(plan, batch, (MlaPlan,))
        layer, q_nope, q_rope, out, lse = call
        kv_cache, w_k, w_v, scale = layer.kv_cache, layer.w_k, layer.w_v, layer.scale
        if plan.is_empty:
            plan.clear_padding(out, lse)
            return
        sizes = q_nope.shape[2] + q_rope.shape[2], out.shape[2]
        if plan.prefix is not None and plan.prefix.serves(layer) and sizes == EXPANDED:
            plan.prefix.run(call, partial(self._attend, plan), q_nope.dtype)
            plan.clear_padding(out, lse)
            return
        check_pool(CONTRACT, "kv_cache", kv_cache)
        rows, heads, _ = q_nope.shape
        _, page, width = kv_cache.shape
        rope_size = q_rope.shape[2]
        latent_size = width - rope_size
        if scale < 0:  # the library assumes that the largest product gives the largest logit
            q_nope, q_rope, scale = -q_nope, -q_rope, -scale
        if w_k is None:
            latent_query = fit(q_nope)
        else:
            latent_query = q_nope.new_empty((rows, heads, latent_size))
            project(q_nope, w_k, latent_query)
        result = out if w_v is None and is_aligned(out) else torch.empty_like(latent_query)
        key = (heads, latent_size, rope_size, page, q_nope.dtype, scale)

        def prepare(wrapper: BatchMLAPagedAttentionWrapper) -> None:
            packed = plan.rows.diff() * heads
            tile = 64 if int(packed.sum()) // len(packed) <= 64 else 128
            pieces = int((-(-packed // tile)).sum()) + multiprocessors(q_nope.device)
            if pieces > MOST:
                found = f"up to {pieces} work items (tiles of {tile} rows times heads)"
                raise CONTRACT.error("q_nope", found, f"at most {MOST} for this backend")
            tables = plan.tables(page)
            wrapper.plan(
                plan.rows,
                tables.starts,
                tables.pages,
                plan.keys,
                heads,
                latent_size,
                rope_size,
                page,
                True,
                scale,
                q_nope.dtype,
                kv_cache.dtype,
            )

        with torch.cuda.device(q_nope.get_device()):
            wrapper = plan.wrapper(self._wrappers, key, prepare)
            wrapper.run(
                latent_query,
                fit(q_rope),
                kv_cache[..., :latent_size],
                kv_cache[..., latent_size:],
                out=result,
                lse=lse,
                return_lse=lse is not None,
                return_lse_base_on_e=True,
            )
        if w_v is not None:
            project(result, w_v, out, values=True)
        elif result is not out:
            out.copy_(result)
        plan.clear_padding(out, lse)

    def _attend(
        self, plan: MlaPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, piece: Piece, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute ragged attention for a piece; return the output and the natural log-sum-exps."""
        if scale < 0:
            q, scale = -q, -scale
        heads, size = q.shape[1:]
        value_size = v.shape[2]
        out = q.new_empty((len(q), heads, value_size))
        lse = q.new_empty((len(q), heads), dtype=torch.float32)

        def prepare(wrapper: BatchPrefillWithRaggedKVCacheWrapper) -> None:
            wrapper.plan(
                piece.starts,
                piece.starts_k,
                heads,
                heads,
                size,
                value_size,
                causal=piece.causal,
                sm_scale=scale,
                q_data_type=q.dtype,
            )

        key = (piece, heads, size, value_size, q.dtype, scale)
        with torch.cuda.device(q.get_device()):
            wrapper = plan.wrapper(self._ragged, key, prepare)
            wrapper.run(q, k, v, out=out, lse=lse, return_lse=True)
        return out, lse.mul_(math.log(2))  # the library's log-sum-exp has base 2
