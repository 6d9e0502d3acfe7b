"""Functions that convert a sample to the forms that features allow, as in an engine's memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from switchrail.ops.batch import PagedBatch, RowStatesBatch, StateBatch, VerifyBatch, fields_of
from switchrail.ops.samples.sample import Sample, widened

POOLS = ("state", "row_states", "k_cache", "v_cache", "kv_cache")


def strided_pool(sample: Sample, odd: bool) -> Sample:
    """Pools with gaps of NaN after each slot or page, or with keys and values side by side in one buffer."""
    tensors = dict(sample.tensors)
    for name in ("state", "row_states", "kv_cache"):
        pool = tensors.get(name)
        if pool is not None:
            inner_gap = (1 if odd else 16) if sample.op == "short_conv" else 0
            tensors[name] = _spread(pool, 3 if odd else 64, inner_gap, offset=int(odd))
    if "k_cache" in tensors:
        keys, values = (sample.tensor(name) for name in ("k_cache", "v_cache"))
        pages, page, heads, size = keys.shape
        # If odd, each page has the heads as its outer axis, and gaps before the keys and after the values.
        # Otherwise each page has the keys of its tokens, then their values, then a gap.
        shape = (pages, heads, page, 2 * size + 3) if odd else (pages, 2 * page * heads * size + 64)
        both = torch.full(shape, torch.nan, dtype=keys.dtype, device=keys.device)
        if odd:
            views = [both[..., start : start + size].transpose(1, 2) for start in (1, 1 + size)]
        else:
            count = page * heads * size
            views = [both[:, n * count : (n + 1) * count].view(keys.shape) for n in range(2)]
        for view, name, tensor in zip(views, ("k_cache", "v_cache"), (keys, values), strict=True):
            view.copy_(tensor)
            tensors[name] = view
    for name in POOLS:
        pool = tensors.get(name)
        if pool is not None:  # axes of size 1 get stride 0, as in views that add an axis
            strides = [0 if size == 1 else step for size, step in zip(pool.shape, pool.stride(), strict=True)]
            tensors[name] = pool.as_strided(pool.shape, strides)
    return dataclasses.replace(sample, tensors=tensors)


def transposed_state(sample: Sample, odd: bool) -> Sample:
    """States whose last two axes are swapped in memory."""
    tensors = dict(sample.tensors)
    for name in POOLS[:2]:
        pool = tensors.get(name)
        if pool is not None:
            is_last = pool.stride(-1) <= pool.stride(-2)
            tensors[name] = (
                pool.mT.contiguous().mT if is_last else pool.clone(memory_format=torch.contiguous_format)
            )
    return dataclasses.replace(sample, tensors=tensors)


def index_views(sample: Sample, odd: bool) -> Sample:
    """Tables as columns of larger tables, some with int32 in place of int64 or the reverse."""
    other = {torch.int32: torch.int64, torch.int64: torch.int32, torch.bool: torch.bool}
    tables = {}
    for name, table in sample.batch_tensors.items():
        dtype = other[table.dtype] if odd or table.dtype == torch.int64 else table.dtype
        wide = torch.full((*table.shape, 3), -9 if dtype != torch.bool else 1, device=table.device)
        wide = wide.to(dtype)
        wide[..., 0] = table
        tables[name] = wide[..., 0]
    return _with(sample, **tables)


def null_slot(sample: Sample, odd: bool) -> Sample:
    """Slot 0 in place of -1, for padding and for states that are not kept."""
    tables = {
        name: sample.batch_tensors[name].clone()
        for name in ("read_slots", "write_slots", "checkpoint_slots", "row_slots")
        if name in sample.batch_tensors
    }
    for table in tables.values():
        table[table == -1] = 0
    return _with(sample, null_slot=0, **tables)


def read_only_states(sample: Sample, odd: bool) -> Sample:
    """Every other sequence has no slot to write."""
    batch = sample.batch
    assert isinstance(batch, StateBatch)
    write = batch.write_slots.clone()
    write[int(odd) :: 2] = batch.null_slot
    fields: dict[str, Any] = {"write_slots": write, "read_only": True}
    return _with(sample, **fields)


def row_states(sample: Sample, odd: bool) -> Sample:
    """Slots for the states after most drafted rows, in their own pool or in the pool of states."""
    batch, pool = sample.batch, sample.state
    assert isinstance(batch, VerifyBatch)
    count, most = len(batch.seqlens), max(batch.seqlens, default=0)
    slots = torch.arange(count * most, device=pool.device).view(count, most).flip(0)
    tensors = dict(sample.tensors)
    if odd:  # one row of each sequence takes the slot that the sequence reads
        slots += len(pool)
        for n, length in enumerate(batch.seqlens):
            if length and int(batch.read_slots[n]) > batch.null_slot:
                slots[n, length // 2] = batch.read_slots[n]
        tensors["state"] = widened(pool, len(pool) + count * most)
    else:
        tensors["row_states"] = widened(pool[:0], count * most)
    slots[list(sample.padding)] = -1
    slots[:, 1::4] = -1
    by_row = RowStatesBatch(**fields_of(batch, VerifyBatch), row_slots=slots)
    return dataclasses.replace(sample, tensors=tensors, batch=by_row)


def device_parents(sample: Sample, odd: bool) -> Sample:
    """Random trees whose parents only the device has."""
    return _with(sample.with_trees(seed=int(odd)), parent_rows=None)


def kv_bounds(sample: Sample, odd: bool) -> Sample:
    """Upper bounds as `kv_seqlens`, also for padding."""
    batch = sample.batch
    assert isinstance(batch, PagedBatch)
    bounds = tuple(kv + (17 if odd else 64) + n for n, kv in enumerate(batch.kv_seqlens))
    page = next(pool.shape[1] for name in POOLS if (pool := sample.tensors.get(name)) is not None)
    width = -(-max(bounds, default=0) // page)
    table = torch.full((len(bounds), width + 1), 2**30, dtype=torch.int32, device=batch.page_table.device)
    known = min(width + 1, batch.page_table.shape[1])
    table[:, :known] = batch.page_table[:, :known]
    return _with(sample, page_table=table, kv_seqlens=bounds, kv_bounds=True)


def strided_out(sample: Sample, odd: bool) -> Sample:
    """A result tensor with gaps along the last axis."""
    shape = [*sample.out.shape[:-1], sample.out.shape[-1] + (3 if odd else 64)]
    whole = torch.full(shape, torch.nan, dtype=sample.out.dtype, device=sample.out.device)
    out = whole[..., : sample.out.shape[-1]]
    return dataclasses.replace(sample, tensors={**sample.tensors, "out": out})


def time_innermost(sample: Sample, odd: bool) -> Sample:
    """Inputs with a contiguous time axis, as a convolution over [C, T] returns them."""
    specs = sample.contract.tensors
    tensors = dict(sample.tensors)
    for name, tensor in tensors.items():
        if tensor is not None and "time_innermost" in specs[name].features:
            tensors[name] = tensor.movedim(0, -1).contiguous().movedim(-1, 0)
    return dataclasses.replace(sample, tensors=tensors)


def mixed_weights(sample: Sample, odd: bool) -> Sample:
    """Weights of raw gates, each with its own dtype."""
    dtypes = {"A_log": torch.float16, "dt_bias": torch.bfloat16}
    if odd:
        dtypes = {"A_log": torch.bfloat16, "dt_bias": torch.float32}
    tensors = dict(sample.tensors)
    for name, dtype in dtypes.items():
        tensors[name] = sample.tensor(name).to(dtype)
    return dataclasses.replace(sample, tensors=tensors)


FORMS: Mapping[str, Callable[[Sample, bool], Sample]] = {
    form.__name__: form
    for form in (
        *(device_parents, null_slot, read_only_states, row_states, kv_bounds, time_innermost, mixed_weights),
        *(transposed_state, strided_pool, strided_out, index_views),
    )
}
"""By feature, the function that converts a sample to a form that needs the feature, in order of application.

The second argument, `odd`, selects another variant of the form; gaps then have odd sizes, which breaks the
alignment of addresses.
"""


def _with(sample: Sample, **fields: Any) -> Sample:
    return dataclasses.replace(sample, batch=dataclasses.replace(sample.batch, **fields))


def _spread(pool: torch.Tensor, gap: int, inner_gap: int, offset: int) -> torch.Tensor:
    """A copy of a pool with gaps of NaN.

    Args:
        pool: The pool.
        gap: Numbers after each slot or page.
        inner_gap: Unused entries at the end of each axis within a slot or page, except the outermost axis in
            memory.
        offset: Numbers before the first slot or page.
    """
    strides = pool.stride()
    order = sorted(range(pool.ndim), key=lambda axis: (axis > 0, -strides[axis]))
    sizes = [pool.shape[axis] for axis in order[1:]]
    padded = torch.Size([sizes[0], *(size + inner_gap for size in sizes[1:])])
    total = len(pool) * (padded.numel() + gap)
    whole = torch.full((total + 1,), torch.nan, dtype=pool.dtype, device=pool.device)
    slots = whole[offset : offset + total].view(len(pool), padded.numel() + gap)
    view = slots[:, : padded.numel()].view(len(pool), *padded)[tuple(map(slice, (len(pool), *sizes)))]
    view = view.permute([order.index(axis) for axis in range(pool.ndim)])
    view.copy_(pool)
    return view
