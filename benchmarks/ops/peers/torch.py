"""torch functions: softmax attention without pages, and a scaling of the states as a floor for decodes."""

from __future__ import annotations

from functools import partial

import torch
from switchrail._core import LINEAR_OPS
from switchrail.ops.batch import PagedBatch
from switchrail.testing.inputs import Sample

from benchmarks.ops.cases import Case
from benchmarks.ops.clock import Run


def peers(case: Case, call: Sample) -> dict[str, Run]:
    """`SDPA bare` for prefills of equal length without cached tokens; `mul_ bare` for decodes of states."""
    if call.phase == "decode" and case.op in LINEAR_OPS:
        state = call.state[1:]
        return {"mul_ bare": lambda: _nothing(state.mul_(0.999))}
    if case.op != "attention" or call.phase != "prefill" or case.past or len(set(case.lengths)) > 1:
        return {}
    assert isinstance(call.batch, PagedBatch)
    q, k, v = call.tensors["q"], *dense_cache(call)
    shape = (len(case.lengths), case.lengths[0])
    heads_first = [t.unflatten(0, shape).transpose(1, 2).contiguous() for t in (q, k, v)]
    run = partial(
        torch.nn.functional.scaled_dot_product_attention,
        *heads_first,
        is_causal=True,
        scale=call.options["scale"],
        enable_gqa=True,
    )
    return {"SDPA bare": lambda: run().transpose(1, 2).flatten(0, 1)}


def dense_cache(call: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of all sequences, one after another: [sum of lengths, HKV, D]."""
    batch = call.batch
    assert isinstance(batch, PagedBatch)
    dense = []
    for name in ("k_cache", "v_cache"):
        cache = call.tensors[name]
        page = cache.shape[1]
        parts = []
        for n, length in enumerate(batch.kv_seqlens):
            pages = batch.page_table[n, : -(-length // page)].long()
            parts.append(cache[pages].flatten(0, 1)[:length])
        dense.append(torch.cat(parts))
    return dense[0], dense[1]


def _nothing(_: torch.Tensor) -> None:
    """Discards a result that is not the op's."""
