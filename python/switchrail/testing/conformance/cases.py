"""Which checks a backend is put through: those that its registration claims; the rest with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from switchrail.ops.batch import Phase
from switchrail.testing.conformance.checks import (
    CHECKS,
    Check,
    head_size_check,
    head_size_pair,
    page_size_check,
    state_dtype_check,
)
from switchrail.testing.conformance.setting import GATED, PAGED, Measured, Setting
from switchrail.testing.conformance.subject import Subject
from switchrail.testing.inputs import CONTRACTS

_PHASES: tuple[Phase, ...] = ("prefill", "decode")
_HEAD_SIZES = ((24, 24), (32, 64), (64, 64), (128, 128), (192, 128), (256, 256))
"""Of a backend that restricts none."""
_QUICK_HEAD_SIZES = 2
_PAGE_SIZES = (1, 16, 33, 64)
"""Of a backend that restricts none."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One check in one setting."""

    check: Check
    setting: Setting

    @property
    def id(self) -> str:
        """Its name: `gated_delta/prefill/float32/ragged`."""
        setting = self.setting
        return f"{setting.op}/{setting.phase}/{dtype_name(setting.dtype)}/{self.check.name}"

    def __call__(self) -> Measured | None:
        """Runs it.

        Raises:
            AssertionError: What must hold does not.
            Unavailable: It can't be run here.
        """
        return self.check.run(self.setting)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A check that is not run, and why not."""

    id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a backend is put through, and what not."""

    cases: list[Case] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def select(
    subject: Subject,
    *,
    device: torch.device | str = "cpu",
    phases: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = (),
    quick: bool = False,
) -> Selection:
    """Derives the cases of a backend from what it claims.

    Args:
        subject: The backend.
        device: Where the cases run.
        phases: Only these; all when empty.
        dtypes: Only these, by name; all when empty.
        quick: Whether long cases are made short, and most are run in the first dtype only.
    """
    device = torch.device(device)
    selection = Selection()
    reason = _unserved(subject, device)
    if reason is not None:
        selection.left_out.append(LeftOut(id=subject.op, reason=reason))
        return selection
    for phase in _PHASES:
        if phase not in subject.phases:
            selection.left_out.append(LeftOut(id=f"{subject.op}/{phase}", reason=f"it does not serve {phase}"))
            continue
        if phases and phase not in phases:
            continue
        claimed = sorted(subject.dtypes, key=_DTYPE_ORDER.index)
        for number, dtype in enumerate(d for d in claimed if not dtypes or d in dtypes):
            setting = Setting(
                subject=subject, phase=phase, dtype=getattr(torch, dtype), device=device, quick=quick
            )
            for check in _checks(subject):
                case = Case(check=check, setting=setting)
                if subject.op not in check.ops or phase not in check.phases:
                    continue
                if quick and not (check.quick and (check.core or number == 0)):
                    continue
                reason = _unclaimed(check, setting)
                if reason is None:
                    selection.cases.append(case)
                else:
                    selection.left_out.append(LeftOut(id=case.id, reason=reason))
    return selection


_DTYPE_ORDER = ("float32", "bfloat16", "float16", "float64")


def _checks(subject: Subject) -> Iterator[Check]:
    yield from CHECKS
    if subject.op != "short_conv":
        sizes = [head_size_pair(size) for size in subject.claims("head_sizes")] or _HEAD_SIZES
        if subject.op == "attention":
            sizes = [(k, v) for k, v in sizes if k == v]
        if subject.op == "mla":
            sizes = [(k, v) for k, v in sizes if k > v]
        for number, size in enumerate(sizes):
            yield head_size_check(size, quick=number < _QUICK_HEAD_SIZES)
    if subject.op in PAGED:
        for page in subject.claims("page_sizes") or _PAGE_SIZES:
            yield page_size_check(page)
    if subject.op in GATED:
        for name in subject.claims("state_dtypes"):
            if name == "bfloat16":
                yield state_dtype_check(name)


def _unserved(subject: Subject, device: torch.device) -> str | None:
    if subject.devices and device.type not in subject.devices:
        return f"it runs on {', '.join(subject.devices)}, not on {device.type}"
    layout, claimed = CONTRACTS[subject.op].state_layout, subject.claims("state_layouts")
    if layout is not None and claimed and layout not in claimed:
        return f"its states are laid out as {', '.join(claimed)}, those of the contract as {layout}"
    return None


def _unclaimed(check: Check, setting: Setting) -> str | None:
    missing = sorted(set(check.features) - setting.subject.features)
    if missing:
        return f"it does not claim {', '.join(missing)}"
    if check.device is not None and setting.device.type != check.device:
        return f"it needs {check.device}, this is {setting.device.type}"
    return None


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` and the like."""
    return str(dtype).removeprefix("torch.")


__all__ = ["Case", "LeftOut", "Selection", "dtype_name", "select"]
