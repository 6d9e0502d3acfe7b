"""Collects the findings about a difference."""

from __future__ import annotations

from collections.abc import Callable

import torch

from switchrail.checks import shown
from switchrail.testing.diagnosis.difference import Difference, count
from switchrail.testing.diagnosis.findings import Finding
from switchrail.testing.diagnosis.hypotheses import explained
from switchrail.testing.diagnosis.places import columns_in_common, heads_in_common, rows_in_common
from switchrail.testing.diagnosis.values import EXACT, VAGUE
from switchrail.testing.inputs import Sample

Diagnoser = Callable[[Difference], Finding | None]


def diagnose(d: Difference) -> tuple[Finding, ...]:
    """The first finding of each group of diagnosers, until a finding explains the whole failure.

    An exception in a diagnoser becomes a finding, so that it does not hide the original failure.
    """
    findings = []
    for group in _GROUPS:
        for diagnoser in group:
            try:
                found = diagnoser(d)
            except Exception as error:
                found = Finding("", f"{diagnoser.__name__} can't tell: {shown(error, None)}")
            if found is not None:
                findings.append(found)
                break
        if findings and findings[-1].is_whole:
            break
    return tuple(findings)


def first_wrong(d: Difference) -> Finding:
    """The first wrong number, and how many are wrong."""
    places = d.wrong.nonzero()
    if not len(places):
        return Finding("", "only the signs of zeros or the bits of NaN differ")
    at = places[0].tolist()
    got, expected = (float(tensor[tuple(at)]) for tensor in (d.got, d.expected))
    rows = f"{int(d.wrong_rows.sum()):,} of {count(len(d.owners), 'slot' if d.is_state else 'row')}"
    counted = f"wrong: {len(places):,} of {count(d.wrong.numel(), 'number')}, in {rows}"
    return Finding(
        "", f"first wrong: {d.name} at {d.place(at)}: got {got:.6g}, expected {expected:.6g}; {counted}"
    )


def never_written(d: Difference) -> Finding | None:
    """Numbers that the call did not write."""
    left = d.unwritten
    if not left.any():
        return None
    if d.is_state:
        rows = left.flatten(1).any(1).nonzero().flatten().tolist()
        told = ", ".join(map(d.row_name, rows[:_MOST_TOLD]))
        return Finding("states are never written", told + (", ..." if len(rows) > _MOST_TOLD else ""))
    rows = left.flatten(1).all(1).nonzero().flatten().tolist()
    whole = f", including {count(len(rows), 'whole row')}" if rows else ""
    first = d.place(left.nonzero()[0].tolist())
    return Finding(
        "numbers are never written", f"{int(left.sum()):,} of {left.numel():,}{whole}, first at {first}"
    )


def not_finite(d: Difference) -> Finding | None:
    """NaN or infinity that the call wrote."""
    bad = ~d.got.isfinite() & d.expected.isfinite() & ~d.unwritten
    if not bad.any():
        return None
    what = "NaN" if d.got[bad].isnan().all() else "infinity"
    counted = f"{count(int(bad.sum()), 'number')}, first at {d.place(bad.nonzero()[0].tolist())}"
    if d.rerun is None:
        return Finding(f"{what} is written or left", counted)
    if d.result(d.rerun(d.call.clone()))[bad].isfinite().any():
        return Finding(f"{what} is written in one run and not in the next", counted)
    for about, names in _unreadable(d.call).items():
        cleaned = d.call.clone()
        for name in names:
            tensor = cleaned.tensor(name)
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
            whole.nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
        if d.result(d.rerun(cleaned)).isfinite()[bad].all():
            return Finding(f"{about} is read", f"it must not be read and holds NaN; {counted}")
    return Finding(f"{what} is written", counted)


def _unreadable(call: Sample) -> dict[str, list[str]]:
    """Memory that must not be read, by kind; for each kind the names of its tensors."""
    found: dict[str, list[str]] = {}
    for name, tensor in call.tensors.items():
        spec = call.contract.tensors[name]
        if tensor is None or (spec.mutated and spec.axes[0] != "slots"):
            continue
        if spec.axes[0] == "slots":
            found["a slot that no sequence starts from"] = [name]
        elif spec.axes[0] == "pages":
            found.setdefault("a cache position that no row may see", []).append(name)
        elif tensor.untyped_storage().nbytes() > tensor.numel() * tensor.itemsize:
            found.setdefault("memory between the rows of inputs", []).append(name)
    return found


_MOST_TOLD = 4

_GROUPS: tuple[tuple[Diagnoser, ...], ...] = (
    (first_wrong,),
    (never_written,),
    (not_finite,),
    (*EXACT, explained, *VAGUE),
    (rows_in_common,),
    (heads_in_common,),
    (columns_in_common,),
)
