"""Creates large calls on the device from small ones."""

from __future__ import annotations

import dataclasses

import torch

from switchrail.ops.batch import PagedBatch, SequenceBatch, StateBatch, VerifyBatch, sequences
from switchrail.testing.inputs import Sample
from switchrail.tune.grid import Batch


def enlarged(call: Sample, size: Batch) -> Sample:
    """A call like the given one, with the rows and the cached tokens of the batch `size`.

    The rows of the small call are repeated. Its buffers may have unused elements before and after each row,
    which a model's buffers don't have. They are left out where they would move addresses off multiples of 16
    bytes, since kernels then take up to three times as long (docs/tune.md). Pools are filled with new random
    numbers. Each sequence has a state or cached tokens.
    """
    rows = sum(size.lengths)
    batch, places = _batch(call, size)
    tensors: dict[str, torch.Tensor | None] = {}
    storages: dict[int, tuple[torch.Tensor, int]] = {}
    for name, tensor in call.tensors.items():
        if tensor is None:
            tensors[name] = None
            continue
        first = call.contract.tensors[name].axes[0]
        if first == "T":
            tensors[name] = _repeated(tensor, rows, storages)
        elif first in ("slots", "pages"):
            tensors[name] = _pool(tensor, places)
        elif tensor.data_ptr() % 16:
            tensors[name] = _repeated(tensor, tensor.shape[0], storages)
        else:
            tensors[name] = tensor
    return dataclasses.replace(call, tensors=tensors, batch=batch, padding=frozenset())


def copies(call: Sample, count: int) -> list[Sample]:
    """The call and `count` - 1 copies of it, each with its own memory."""
    return [call, *(dataclasses.replace(call.clone(), batch=call.batch) for _ in range(count - 1))]


def bytes_of(call: Sample) -> int:
    """The memory of a call's tensors, in bytes."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in call.tensors.values()
        if tensor is not None
    }
    return sum(storages.values())


def _repeated(tensor: torch.Tensor, rows: int, storages: dict[int, tuple[torch.Tensor, int]]) -> torch.Tensor:
    storage = tensor.untyped_storage()
    numbers = storage.nbytes() // tensor.element_size()
    width = tensor.stride(0)
    if width * tensor.shape[0] != numbers:  # the tensor is a view of a larger buffer
        count = -(-rows // tensor.shape[0])
        return tensor.repeat(count, *[1] * (tensor.dim() - 1))[:rows].contiguous()
    key = storage.data_ptr()
    if key not in storages:
        gap = int(tensor.storage_offset()) % (16 // tensor.element_size())  # to cut at both ends of a row
        whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage).view(-1, width)
        index = torch.arange(rows, device=tensor.device) % tensor.shape[0]
        storages[key] = whole[index, gap : width - gap], gap
    memory, gap = storages[key]
    strides = (memory.shape[1], *tensor.stride()[1:])
    return memory.as_strided((rows, *tensor.shape[1:]), strides, tensor.storage_offset() - gap)


def _pool(tensor: torch.Tensor, places: int) -> torch.Tensor:
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    shape = (places, *tensor.shape[1:])
    memory = torch.empty([shape[axis] for axis in order], dtype=tensor.dtype, device=tensor.device)
    return memory.normal_(0, 0.5).permute([order.index(axis) for axis in range(tensor.dim())])


def _batch(call: Sample, size: Batch) -> tuple[SequenceBatch, int]:
    """The batch, and the number of slots or pages that it needs."""
    device, lengths = call.out.device, size.lengths
    common = sequences(lengths, device)
    shuffle = torch.Generator().manual_seed(0)
    if size.cached is not None:
        page = next(
            tensor.shape[1]
            for name, tensor in call.tensors.items()
            if tensor is not None and call.contract.tensors[name].axes[0] == "pages"
        )
        counts = [-(-cached // page) for cached in size.cached]
        order = torch.randperm(sum(counts), generator=shuffle).int() + 1
        table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        first = 0
        for n, count in enumerate(counts):
            table[n, :count] = order[first : first + count]
            first += count
        kv_lens = torch.tensor(size.cached, dtype=torch.int32).to(device)
        batch = PagedBatch(**common, page_table=table.to(device), kv_lens=kv_lens, kv_seqlens=size.cached)
        return batch, sum(counts) + 1
    slots = (torch.randperm(len(lengths), generator=shuffle) + 1).to(device)
    common |= {
        "read_slots": slots,
        "write_slots": slots,
        "has_initial_state": torch.ones(len(lengths), dtype=torch.bool, device=device),
    }
    if call.phase != "verify":
        return StateBatch(**common), len(lengths) + 1
    chain = tuple(i - 1 for length in lengths for i in range(length))
    parents = torch.tensor(chain, dtype=torch.int32).to(device)
    return VerifyBatch(**common, parents=parents, parent_rows=chain), len(lengths) + 1
