"""Selects a backend's checks by the capabilities that it claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from switchrail.errors import SwitchrailError, UnknownBackendError, UnknownDtypeError, UnknownPhaseError
from switchrail.nearest import unknown
from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.contract import dtype_name
from switchrail.testing.conformance.checks import (
    CHECKS,
    EVERY_PHASE,
    Check,
    head_size_check,
    page_size_check,
    state_dtype_check,
)
from switchrail.testing.conformance.setting import GATED, PAGED, Measured, Setting, head_size_pair
from switchrail.testing.conformance.subject import Subject

if TYPE_CHECKING:
    from switchrail.platforms import Platform
    from switchrail.runtime import Runtime

_HEAD_SIZES = ((24, 24), (32, 64), (64, 64), (128, 128), (192, 128), (256, 256))
"""The checked head sizes (of q and k, of v) if the backend does not restrict them."""
_QUICK_HEAD_SIZES = 2
_PAGE_SIZES = (1, 16, 33, 64)
"""The checked page sizes if the backend does not restrict them."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One check in one setting."""

    check: Check
    setting: Setting

    @property
    def id(self) -> str:
        """The case's id, such as `gated_delta/prefill/float32/ragged`."""
        setting = self.setting
        return f"{setting.op}/{setting.phase}/{dtype_name(setting.dtype)}/{self.check.name}"

    def __call__(self) -> Measured | None:
        """Runs the check.

        Raises:
            AssertionError: The check failed.
            Unavailable: The check can't be run here.
        """
        return self.check.run(self.setting)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A skipped check, phase or dtype, and the reason."""

    id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The cases to run, and the skipped checks, phases and dtypes."""

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
    """Derives the cases of a backend from its claims.

    Args:
        subject: The backend.
        device: The device to run on.
        phases: The phases to check; all if empty.
        dtypes: The names of the dtypes to check; all if empty.
        quick: Whether to shorten long cases and to run most cases in the first dtype only.

    Raises:
        UnknownPhaseError: A phase is unknown.
        UnknownDtypeError: A dtype is unknown.
    """
    device = torch.device(device)
    _check_names("phase", phases, EVERY_PHASE, UnknownPhaseError)
    _check_names("dtype", dtypes, _DTYPE_ORDER, UnknownDtypeError)
    selection = Selection()
    for phase in EVERY_PHASE:
        if phases and phase not in phases:
            continue
        if phase not in subject.phases:
            selection.left_out.append(
                LeftOut(id=f"{subject.op}/{phase}", reason="it does not serve the phase")
            )
            continue
        claimed = sorted(subject.dtypes, key=_DTYPE_ORDER.index)
        for dtype in dtypes:
            if dtype not in claimed:
                why = f"it does not claim {dtype}, only {', '.join(claimed)}"
                selection.left_out.append(LeftOut(id=f"{subject.op}/{phase}/{dtype}", reason=why))
        for number, dtype in enumerate(d for d in claimed if not dtypes or d in dtypes):
            reason = subject.misfit(phase, dtype)
            if reason is not None:
                selection.left_out.append(LeftOut(id=f"{subject.op}/{phase}/{dtype}", reason=reason))
                continue
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


def select_named(
    runtime: Runtime,
    name: str,
    *,
    platform: Platform,
    op: str | None = None,
    phase: str | None = None,
    dtype: str | None = None,
    quick: bool = False,
) -> Selection:
    """The cases of all backends that have the given name, or only of the one for one op.

    Args:
        runtime: The runtime with the backends.
        name: The name.
        platform: The platform to run on.
        op: The op to check; None means all with a backend of that name.
        phase: The phase to check; None means all.
        dtype: The name of the dtype to check; None means all.
        quick: See `select`.

    Raises:
        UnknownBackendError: There is no such backend.
        SwitchrailError: See `select`.
    """
    registered = [backend for backend in runtime.backends(op) if backend.name == name]
    if not registered:
        valid = tuple(sorted({backend.name for backend in runtime.backends(op)}))
        problem = f"there is no {f'{op} ' if op else ''}backend {name!r}"
        raise unknown(UnknownBackendError, problem, name, valid, op=op, found=name)
    selection = Selection()
    for backend in registered:
        active = [each for each in backend.phases if runtime.backend(backend.op, name, each) == backend]
        others = {each for other in registered if other.op == backend.op for each in other.phases}
        if phase in others and phase not in active:
            continue  # another registration of the name serves the phase
        whole = () if active == backend.phases else tuple(active)
        found = select(
            Subject.of(runtime, backend.op, name, platform, active[0]),
            device=platform.device,
            phases=whole if phase is None else (phase,),
            dtypes=() if dtype is None else (dtype,),
            quick=quick,
        )
        selection.cases.extend(found.cases)
        selection.left_out.extend(found.left_out)
    return selection


_DTYPE_ORDER = ("float32", "bfloat16", "float16", "float64")


def _checks(subject: Subject) -> Iterator[Check]:
    yield from CHECKS
    definition = DEFINITIONS[subject.op]
    sizes = [head_size_pair(size) for size in subject.claims("head_sizes")] or _HEAD_SIZES
    for number, size in enumerate(size for size in sizes if definition.has_head_size(*size)):
        yield head_size_check(size, quick=number < _QUICK_HEAD_SIZES)
    if subject.op in PAGED:
        for page in subject.claims("page_sizes") or _PAGE_SIZES:
            yield page_size_check(page)
    if subject.op in GATED:
        for name in subject.claims("state_dtypes"):
            if name in ("bfloat16", "float16"):
                yield state_dtype_check(name)


def _check_names(
    what: str, names: tuple[str, ...], valid: tuple[str, ...], error: type[SwitchrailError]
) -> None:
    for name in names:
        if name not in valid:
            raise unknown(error, f"unknown {what} {name!r}", name, valid, found=name)


def _unclaimed(check: Check, setting: Setting) -> str | None:
    missing = sorted(set(check.features) - setting.subject.features)
    if missing:
        return f"it does not claim {', '.join(missing)}"
    if check.device is not None and setting.device.type != check.device:
        return f"it needs {check.device}, this is {setting.device.type}"
    return None
