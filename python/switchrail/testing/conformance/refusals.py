"""Checks that calls which break the contract are refused before anything is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from switchrail.checks import shown
from switchrail.errors import ContractError
from switchrail.ops.backend import AnyBackend
from switchrail.testing.compare import same_bits
from switchrail.testing.conformance.one_layer import on_one_layer
from switchrail.testing.conformance.setting import Setting
from switchrail.testing.diagnosis import Finding, Mismatch, Problem
from switchrail.testing.inputs import Sample


def refusals(setting: Setting) -> None:
    """Checks that each invalid call raises a `ContractError` and writes nothing.

    Each call is tried with a new layer, and with a layer that has had valid calls: a backend's caches must
    not let an invalid call pass.
    """
    call, another = (setting.call(rows, strided=False) for rows in ((5, 3), (4, 3, 2)))
    layers = {"": setting.backend, " of a layer that was called before": on_one_layer(setting).backend}
    for right in (call, call, another):
        for backend in layers.values():
            right.clone().run(backend)
    tried = 0
    for what, broken in _broken(call, another):
        try:
            _check(broken)
        except ContractError:
            pass
        else:
            continue  # the contract allows it
        tried += 1
        for whose, backend in layers.items():
            _refused(what + whose, broken, backend)
    assert tried > len(call.tensors), f"only {tried} inputs were tried"


def _refused(what: str, broken: Sample, backend: AnyBackend) -> None:
    copy = dataclasses.replace(broken.clone(), batch=broken.batch)  # copied tables lose strides
    try:
        copy.run(backend)
    except ContractError:
        pass
    except Exception as error:
        cause = f"an input that breaks the contract raises {type(error).__name__}, not ContractError"
        headline = f"{what}: got {shown(error, None)}, expected a ContractError"
        raise Mismatch([Problem(headline, (Finding(cause),))]) from error
    else:
        finding = Finding("an input that breaks the contract is not refused", "CONTRACT.check refuses it")
        raise Mismatch([Problem(f"{what}: it was not refused", (finding,))])
    for name in broken.contract.mutated:
        before, after = broken.tensors.get(name), copy.tensors.get(name)
        if before is not None and after is not None:
            assert same_bits(before, after), f"{what}: {name} was written before the call was refused"


def _check(call: Sample) -> None:
    call.contract.check(call.phase, call.made, call.batch)


def _broken(call: Sample, another: Sample) -> Iterator[tuple[str, Sample]]:
    for name, tensor in call.tensors.items():
        if tensor is None:
            continue
        for what, other in _broken_tensors(tensor):
            yield f"{name} {what}", dataclasses.replace(call, tensors={**call.tensors, name: other})
    for name, spec in call.contract.options.items():
        if name in call.options:
            odd = object() if str in spec.types else "text"
            yield f"{name} = {odd!r}", dataclasses.replace(call, options={**call.options, name: odd})
            if spec.finite_nonzero:
                yield f"{name} = 0", dataclasses.replace(call, options={**call.options, name: 0.0})
    for name in call.contract.batch:
        for what, other in _broken_tensors(getattr(call.batch, name)):
            fields: dict[str, Any] = {name: other}
            batch = dataclasses.replace(call.batch, **fields)
            yield f"batch.{name} {what}", dataclasses.replace(call, batch=batch)
    negative = dataclasses.replace(call.batch, seqlens=(-1, *call.batch.seqlens[1:]))
    yield "a length of -1", dataclasses.replace(call, batch=negative)
    yield "fewer rows than the batch has", dataclasses.replace(call, batch=another.batch)
    yield "more rows than the batch has", dataclasses.replace(another, batch=call.batch)


def _broken_tensors(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    yield "of dtype int16", tensor.nan_to_num().to(torch.int16)
    yield "with another axis", tensor[None]
    for axis in range(tensor.ndim):
        longer = torch.cat([tensor, tensor.narrow(axis, 0, 1)], dim=axis)
        yield f"with a longer axis {axis}", longer
    spread = torch.stack([tensor, tensor], dim=-1)[..., 0]
    yield "with stride 2 along its last axis", spread
