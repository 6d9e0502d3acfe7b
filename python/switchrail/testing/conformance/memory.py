"""Checks of memory accesses: guards around outputs, offsets of more than 2^31 elements, strides."""

from __future__ import annotations

import dataclasses
import mmap
from typing import Any

import torch

from switchrail.ops.batch import PagedBatch, StateBatch
from switchrail.testing.conformance.parts import caches, require_same_bits
from switchrail.testing.conformance.setting import RECURRENT, Measured, Setting
from switchrail.testing.diagnosis import Finding, Mismatch, Problem, count
from switchrail.testing.inputs import UNDEFINED_PAGE, run_reference

_GUARD = 4096
"""Number of guard elements before and after a tensor."""

_NO_RESERVE = 0x4000
"""A flag of Linux's mmap: memory is allocated only when it is accessed."""


class Unavailable(Exception):
    """Raised by a case that can't be run here; the message gives the reason."""


def guards(setting: Setting) -> None:
    """Checks that nothing is written directly before or after the outputs and the pool of states."""
    call = setting.call((33, 1, 0, 70))
    tensors = dict(call.tensors)
    buffers = {}
    for name, tensor in call.tensors.items():
        if tensor is None or not call.contract.tensors[name].mutated:
            continue
        buffer = torch.full((tensor.numel() + 2 * _GUARD,), 7.0, dtype=tensor.dtype, device=tensor.device)
        moved = buffer.as_strided(tensor.shape, tensor.stride(), _GUARD)
        moved.copy_(tensor)
        buffers[name] = buffer
        tensors[name] = moved
    dataclasses.replace(call, tensors=tensors).run(setting.backend)
    for name, buffer in buffers.items():
        changed = (buffer != 7.0).cpu()
        # nearest numbers first
        for where, guard in (("before", changed[:_GUARD].flip(0)), ("after", changed[-_GUARD:])):
            if guard.any():
                steps = int(guard.nonzero()[0]) + 1
                detail = (
                    f"{count(int(guard.sum()), 'number')}, the nearest {count(steps, 'number')} {where} it"
                )
                finding = Finding(f"memory outside {name} is written", detail)
                raise Mismatch([Problem(f"something was written {where} {name}", (finding,))])


def time_innermost(setting: Setting) -> Measured:
    """Checks inputs with a different contiguous axis, if the contract allows a choice."""
    call = setting.call((70, 9))
    for name, spec in call.contract.tensors.items():
        tensor = call.tensors.get(name)
        if tensor is not None and len(spec.unit_stride) > 1:
            last, other = (spec.axes.index(axis) for axis in (spec.unit_stride[-1], spec.unit_stride[0]))
            call.tensors[name] = tensor.transpose(last, other).contiguous().transpose(last, other)
    return setting.verify(call)


def far_slots(setting: Setting) -> None:
    """Checks that slots or pages more than 2^31 elements into their pool give the same bits as near ones.

    The pool is in the middle of an allocation, so accesses with an overflowed offset stay inside the
    allocation.
    """
    arguments: dict[str, Any] = {"initial": "all"} if setting.op in RECURRENT else {}
    call = setting.call((70, 64, 2), **arguments)
    near = setting.run(call)
    pools = {
        name: call.tensor(name)
        for name in (["state"] if isinstance(call.batch, StateBatch) else caches(call))
    }
    shift = max(2**31 // pool[0].numel() + 1 for pool in pools.values())
    tensors = dict(call.clone().tensors)
    for name, pool in pools.items():
        slots = shift + len(pool)
        memory = _memory(2**31 + slots * pool[0].numel(), pool.dtype, setting.device)
        far = memory.as_strided((slots, *pool.shape[1:]), pool.stride(), 2**31)
        far[shift:] = pool
        tensors[name] = far
    moved: dict[str, Any] = {}
    if isinstance(call.batch, PagedBatch):
        table = call.batch.page_table
        moved["page_table"] = torch.where(table < UNDEFINED_PAGE, table + shift, table)
    else:
        for name in ("read_slots", "write_slots"):
            moved[name] = getattr(call.batch, name) + shift
    batch = dataclasses.replace(call.batch, **moved)
    done = dataclasses.replace(call, tensors=tensors, batch=batch)
    done.run(setting.backend)
    require_same_bits(done, near, "slots more than 2^31 elements into a pool give other results")


def far_rows(setting: Setting) -> Measured:
    """Checks an input whose rows are more than 2^31 elements apart."""
    call = setting.call((1,) * 66 if setting.phase == "decode" else (40, 26))
    rows = sum(call.batch.seqlens)
    expected = run_reference(call)
    name = call.contract.inputs[0]
    tensor = call.tensor(name)
    step = 2**31 // (rows - 4)
    memory = _memory(2**31 + rows * step + tensor[0].numel(), tensor.dtype, setting.device)
    far = memory.as_strided(tensor.shape, (step, *tensor[0].contiguous().stride()), 2**31)
    far.copy_(tensor)
    done = dataclasses.replace(call, tensors={**call.clone().tensors, name: far})
    done.run(setting.backend)
    return setting.compare(done, expected)


def _memory(elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    size = elements * dtype.itemsize
    if device.type == "cuda":
        torch.cuda.empty_cache()  # frees the memory that torch caches
        free, _ = torch.cuda.mem_get_info(device)
        if size + 2**30 > free:
            raise Unavailable(f"it needs {size / 2**30:.0f} GiB on the device, {free / 2**30:.0f} are free")
        return torch.empty(elements, dtype=dtype, device=device)
    if device.type != "cpu":
        raise Unavailable(f"it needs {size / 2**30:.0f} GiB on cpu or cuda, this is {device.type}")
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, AttributeError) as error:
        raise Unavailable(f"it needs {size / 2**30:.0f} GiB of addresses: {error}") from error
    return torch.frombuffer(pages, dtype=dtype)
