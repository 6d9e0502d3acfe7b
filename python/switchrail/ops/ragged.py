"""Softmax attention over keys and values that are packed like the queries, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from switchrail.errors import ArgumentError
from switchrail.ops.softmax import attend

ROWS = 256
"""Query rows per product. Bounds the memory for logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBatch:
    """Sequences whose queries, keys and values are packed in one tensor each.

    Attributes:
        cu_seqlens: [N + 1] int32, the first query row of each sequence, and the number of all rows.
        cu_seqlens_k: [N + 1] int32, each sequence's first row of keys, and the number of all keys.
        seqlens: The number of query rows of each sequence.
        seqlens_k: The number of keys of each sequence.
    """

    cu_seqlens: torch.Tensor
    cu_seqlens_k: torch.Tensor
    seqlens: tuple[int, ...]
    seqlens_k: tuple[int, ...]


def ragged_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: RaggedBatch, *, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention; see `switchrail.platforms.operations.RaggedAttention`.

    Raises:
        ArgumentError: See `check_ragged`.
    """
    check_ragged(q, k, v, batch)
    compute = torch.promote_types(q.dtype, torch.float32)
    heads, kv_heads, value_size = q.shape[1], k.shape[1], v.shape[2]
    out = torch.zeros(len(q), heads, value_size, dtype=q.dtype, device=q.device)
    lse = torch.full((len(q), heads), -torch.inf, dtype=compute, device=q.device)
    row = first = 0
    for length, keys in zip(batch.seqlens, batch.seqlens_k, strict=True):
        own_k = k[first : first + keys].transpose(0, 1)[:, None].to(compute)
        own_v = v[first : first + keys].transpose(0, 1)[:, None].to(compute)
        for low in range(0, length if keys else 0, ROWS):
            high = min(low + ROWS, length)
            rows = slice(row + low, row + high)
            queries = q[rows].to(compute).view(high - low, kv_heads, -1, q.shape[2]).permute(1, 2, 0, 3)
            mask = None
            if causal:
                position = torch.arange(low, high, device=q.device)[:, None] + (keys - length)
                mask = torch.arange(keys, device=q.device) <= position
            result, total = attend(queries, own_k, own_v, scale=scale, mask=mask)
            out[rows] = result.permute(2, 0, 1, 3).flatten(1, 2).to(out.dtype)
            lse[rows] = total.permute(2, 0, 1).flatten(1, 2)
        row, first = row + length, first + keys
    return out, lse


def check_ragged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: RaggedBatch) -> None:
    """Check dtypes, devices, strides, shapes and lengths. Tensor contents are not read.

    Raises:
        ArgumentError: A tensor or a length doesn't fit the others.
    """
    seqlens, seqlens_k = batch.seqlens, batch.seqlens_k
    starts = {"cu_seqlens": batch.cu_seqlens, "cu_seqlens_k": batch.cu_seqlens_k}
    for name, tensor, dtype, ndim in (
        ("q", q, q.dtype, 3),
        ("k", k, q.dtype, 3),
        ("v", v, q.dtype, 3),
        *((name, tensor, torch.int32, 1) for name, tensor in starts.items()),
    ):
        stride = 1 if tensor.ndim == 0 or tensor.numel() == 0 or tensor.shape[-1] == 1 else tensor.stride(-1)
        form = {
            "dtype": (tensor.dtype, dtype),
            "device": (tensor.device, q.device),
            "number of axes": (tensor.ndim, ndim),
            "stride along the last axis": (stride, 1),
        }
        for about, (own, valid) in form.items():
            if own != valid:
                raise _error(name, f"{about} {own}", valid, own)
    for name, found, wanted, axes in (
        ("q", q.shape, (sum(seqlens), q.shape[1], k.shape[2]), "[sum(seqlens), H, D]"),
        ("k", k.shape, (sum(seqlens_k), k.shape[1], k.shape[2]), "[sum(seqlens_k), HKV, D]"),
        ("v", v.shape, (sum(seqlens_k), k.shape[1], v.shape[2]), "[sum(seqlens_k), HKV, V]"),
    ):
        if tuple(found) != wanted:
            raise _error(name, f"shape {list(found)}", f"{axes} = {list(wanted)}", list(found))
    count = len(seqlens_k)
    if len(seqlens) != count:
        raise _error("seqlens_k", f"{count} sequences", f"{len(seqlens)}, as in seqlens", count)
    for name, tensor in starts.items():
        if len(tensor) != count + 1:
            raise _error(name, f"shape {list(tensor.shape)}", f"[{count + 1}]", list(tensor.shape))
    heads, kv_heads = q.shape[1], k.shape[1]
    if kv_heads == 0 or heads % kv_heads:
        raise _error("q", f"H = {heads}", f"a multiple of HKV = {kv_heads}", heads)


def _error(name: str, got: str, valid: object, found: object) -> ArgumentError:
    return ArgumentError(f"{name}: got {got}, expected {valid}", argument=name, found=found)
