"""Checks that call one layer repeatedly, as an engine does; most other checks make new layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from switchrail.checks import shown
from switchrail.ops.backend import AnyBackend, Backend
from switchrail.ops.batch import Bounds, Phase, SequenceBatch
from switchrail.ops.call import Layer
from switchrail.ops.contract import dtype_name
from switchrail.ops.samples.sample import widened
from switchrail.testing.conformance.setting import PAGED, Measured, Setting
from switchrail.testing.diagnosis import Finding, Mismatch, Problem
from switchrail.testing.inputs import Sample, run_reference

_ROWS: dict[Phase, tuple[tuple[int, ...], ...]] = {
    "prefill": ((70, 9, 0, 2), (70, 9, 0, 2), (5, 3), (1,), (33, 9, 1, 5)),
    "decode": ((1,) * 4, (1,) * 4, (1,) * 7, (1,), (1,) * 4),
    "verify": ((3, 5, 0, 1), (3, 5, 0, 1), (2,), (1,) * 3, (1, 5, 3, 0)),
}
"""The rows per sequence of each call. Two calls are alike; the others have other sequences or lengths."""

_CAUSE = "a layer that was called before gives a different result than a new layer"


class OneLayer(Backend[Any, Any]):
    """A backend that makes the calls of all layers of a kind through the first layer of that kind.

    Before a call, the layer's tensors are copied into the first layer; after the call, they are copied back.
    Layers are of one kind if their tensors have equal shapes, strides, dtypes and devices, and if their
    options are equal.
    """

    def __init__(self, backend: AnyBackend) -> None:
        super().__init__(backend.config)
        self._backend = backend
        self._layers: dict[tuple[object, ...], Layer] = {}
        self._past: list[object] = []
        """Keeps all calls alive, so that no call reuses the memory of an earlier one."""

    def plan(self, phase: Phase, batch: SequenceBatch, bounds: Bounds | None = None) -> Any:
        """The plan of the wrapped backend."""
        return self._backend.plan(phase, batch, bounds)

    def run(self, call: Any, batch: SequenceBatch, plan: Any) -> Any:
        """Runs a call through the first layer of its kind."""
        self._past.append((call, batch, plan))
        with self._first(call.layer) as layer:
            return self._backend.run(call._replace(layer=layer), batch, plan)

    def commit(self, call: Any, batch: Any, plan: Any, record: Any, accepted: torch.Tensor) -> None:
        """Commits through the first layer of its kind."""
        with self._first(call.layer) as layer:
            self._backend.commit(call._replace(layer=layer), batch, plan, record, accepted)

    @contextmanager
    def _first(self, layer: Layer) -> Iterator[Layer]:
        """The first layer of the same kind, filled with the numbers of `layer`."""
        values = {field.name: getattr(layer, field.name) for field in dataclasses.fields(layer) if field.init}
        kind = tuple(
            (value.shape, value.stride(), value.dtype, value.device)
            if isinstance(value, torch.Tensor)
            else repr(value)
            for value in values.values()
        )
        first = self._layers.setdefault((type(layer), *kind), layer)
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        for name, tensor in tensors.items():
            getattr(first, name).copy_(tensor)
        try:
            yield first
        finally:
            for name, tensor in tensors.items():
                tensor.copy_(getattr(first, name))


def on_one_layer(setting: Setting) -> Setting:
    """The same setting with a `OneLayer` backend."""
    subject = setting.subject
    return dataclasses.replace(
        setting, subject=dataclasses.replace(subject, build=lambda: OneLayer(subject.build()))
    )


def one_layer(setting: Setting) -> Measured:
    """Checks repeated calls of a layer with new values and batches, also between calls of other phases.

    As in an engine, the layer's weights and options do not change.
    """
    called_before = on_one_layer(setting)
    first, *calls = _of_one_size([*_calls(setting, setting.phase), *_others(setting)])
    second = calls[0]
    calls.sort(key=lambda call: call.phase == setting.phase)
    measured = called_before.verify(first)
    for number, call in enumerate(calls, 2):
        with _right_with_a_new_layer(setting, call, f"call {number} of a layer"):
            if call.phase == setting.phase:
                measured |= called_before.verify(call)
            else:
                called_before.run(call)
    with _right_with_a_new_layer(setting, second, "a call with the same tensors but new values"):
        measured |= _refilled(setting, first, second)
    return measured


@contextmanager
def _right_with_a_new_layer(setting: Setting, call: Sample, which: str) -> Iterator[None]:
    """If a call fails but succeeds with a new layer, adds a finding that says so."""
    try:
        yield
    except Exception as failure:
        setting.verify(call)  # if this fails too, other checks report the failure
        headline = f"{setting.op}: {which} is wrong, but the same call with a new layer is right"
        if not isinstance(failure, AssertionError):
            headline += f": {shown(failure, None)}"
        problems = failure.problems if isinstance(failure, Mismatch) else ()
        raise Mismatch([Problem(headline, (Finding(_CAUSE),)), *problems]) from failure


def _refilled(setting: Setting, first: Sample, second: Sample) -> Measured:
    """Makes a call twice, the second time with new values in the same memory."""
    done = first.clone()
    call = done.made
    for sample in (first, second):
        for name, tensor in sample.tensors.items():
            own = done.tensors[name]
            if tensor is not None and own is not None:
                own.copy_(tensor)
        setting.backend.run(call, sample.batch, setting.backend.plan(setting.phase, sample.batch))
    return setting.compare(dataclasses.replace(done, batch=second.batch), run_reference(second))


def _calls(setting: Setting, phase: Phase) -> Iterator[Sample]:
    for seed, lengths in enumerate(_ROWS[phase]):
        arguments: dict[str, Any] = {"phase": phase, "seed": seed}
        if setting.op in PAGED:
            arguments["kv_lengths"] = [length + 13 * (n + seed) for n, length in enumerate(lengths)]
        if seed == len(_ROWS[phase]) - 1:
            arguments["padding"] = (1,)
        yield setting.call(lengths, **arguments)


def _others(setting: Setting) -> Iterator[Sample]:
    """One call for each other phase that the backend serves."""
    for phase in _ROWS:
        is_other = phase != setting.phase and phase in setting.subject.phases
        if is_other and setting.subject.misfit(phase, dtype_name(setting.dtype)) is None:
            yield next(_calls(setting, phase))


def _of_one_size(calls: list[Sample]) -> list[Sample]:
    """The calls with the weights of the first call, and with pools as large as the largest."""
    first = calls[0]
    specs = first.contract.tensors
    weights, pools = {}, []
    for name in first.contract.kept:
        if (tensor := first.tensors.get(name)) is not None:
            if specs[name].axes[0] in ("slots", "pages"):
                pools.append(name)
            else:
                weights[name] = tensor
    found = [{name: tensor for name in pools if (tensor := call.tensors[name]) is not None} for call in calls]
    most = max(len(tensor) for tensors in found for tensor in tensors.values())
    return [
        dataclasses.replace(
            call,
            tensors=call.tensors | weights | {name: widened(pool, most) for name, pool in tensors.items()},
        )
        for call, tensors in zip(calls, found, strict=True)
    ]
