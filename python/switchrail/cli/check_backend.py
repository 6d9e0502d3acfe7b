"""`switchrail check-backend`: compares a backend's results with those of the float64 oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Annotated

import typer

from switchrail.checks import shown
from switchrail.cli import complete, flags
from switchrail.cli.choices import loaded_runtime, read_choices
from switchrail.cli.show import console, platform_text, print_json, progress_bar, table
from switchrail.errors import BackendImportError, NoCaseError, SwitchrailError
from switchrail.foreign import in_lines, one_line
from switchrail.plugins.place import failing_place

if TYPE_CHECKING:
    from rich.table import Table

    from switchrail.testing.conformance import Case, LeftOut, Measured, Outcome, Subject

FAILED = 1
STATUSES = ("passed", "failed", "skipped")


def check_backend(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The backend's name.", autocompletion=complete.backend_names)
    ],
    op: Annotated[
        str | None, flags.OpOption(help="The op to check; by default all ops with a backend of this name.")
    ] = None,
    phase: flags.Phase = None,
    dtype: Annotated[
        str | None, flags.DtypeOption(help="The dtype to check, such as bfloat16; by default all.")
    ] = None,
    device: flags.Device = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use shorter sequences, and run most cases in one dtype only.")
    ] = False,
    matching: Annotated[
        str | None, typer.Option("-k", metavar="TEXT", help="Run only cases with this text in their id.")
    ] = None,
    config: flags.Config = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print a line for each case, and tracebacks.")
    ] = False,
    as_json: flags.Json = False,
) -> None:
    """Compare a backend with the float64 oracle, over all parts of its op's contract that it claims.

    Exits with 1 if a case fails.
    """
    from switchrail.testing.conformance import select_named
    from switchrail.testing.summary import summarise

    runtime = loaded_runtime(read_choices(config, None))
    platform = runtime.find_platform(device)
    selection = select_named(runtime, name, op=op, phase=phase, dtype=dtype, platform=platform, quick=quick)
    cases, left_out = selection.cases, selection.left_out
    chosen = [case for case in cases if matching is None or matching in case.id]
    if not chosen:
        reasons = "".join(f"\n  left out: {what}: {why}" for why, what in _by_reason(left_out).items())
        problem = f"the conformance suite has no case that backend {name!r} can run"
        if cases:
            problem = f"none of the {len(cases)} cases for backend {name!r} has {matching!r} in its id"
        raise NoCaseError(f"{problem}{reasons}", found=matching)
    for subject in {id(case.setting.subject): case.setting.subject for case in chosen}.values():
        _check_builds(subject)
    outcomes = list(_run(chosen, quiet=as_json))
    if as_json:
        print_json(
            {
                "backend": name,
                "platform": asdict(platform.identity),
                "packages": {
                    "torch": metadata.version("torch"),
                    "switchrail": metadata.version("switchrail"),
                },
                "quick": quick,
                "cases": [outcome.to_dict() for outcome in outcomes],
                "left_out": [asdict(case) for case in left_out],
            }
        )
    else:
        out = console()
        out.print(platform_text(platform))
        out.print()
        title = f"backend {name} (errors: relative norm / worst row)"
        out.print(_by_case(title, outcomes) if verbose else _by_phase(title, outcomes))
        for reason, what in _by_reason(left_out).items():
            out.print(f"left out: {what}: {reason}", highlight=False, markup=False)
        printed = {""}
        for outcome in outcomes:
            if outcome.status != "passed":
                told = f"{outcome.status}: {outcome.case.id}: {in_lines(outcome.message)}"
                out.print(told, highlight=False, markup=False)
            if verbose and outcome.traceback not in printed:
                printed.add(outcome.traceback)
                out.print(in_lines(outcome.traceback), highlight=False, markup=False)
        for line in summarise([outcome.result for outcome in outcomes if outcome.status != "skipped"]):
            out.print(one_line(line), highlight=False, markup=False)
        out.print(_summary(outcomes), highlight=False)
    if any(outcome.status == "failed" for outcome in outcomes):
        raise typer.Exit(FAILED)


def _check_builds(subject: Subject) -> None:
    """Builds a backend, so that an unusable class is reported once instead of for each case."""
    try:
        subject.build()
    except SwitchrailError:
        raise
    except Exception as error:
        raise BackendImportError(
            f"{subject.op} backend {subject.name!r} can't be built: {shown(error, None)} "
            f"({failing_place(error)})",
            backend=subject.name,
            op=subject.op,
        ) from error


def _run(cases: Sequence[Case], *, quiet: bool) -> Iterator[Outcome]:
    from switchrail.testing.conformance import run_case

    with progress_bar(console(stderr=True, quiet=quiet)) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(task, description=case.id)
            yield run_case(case)
            progress.advance(task)


def _by_phase(title: str, outcomes: Sequence[Outcome]) -> Table:
    """A table with a row per op and phase: the number of passed cases and the worst error; see `_worst`."""
    cells = []
    for which, group in _grouped(outcomes, lambda case: (case.setting.op, case.setting.phase)):
        passed, error, bound, _, where = _worst(group)
        cells.append((*which, passed, error, bound, "/".join(where[1:])))
    return table(title, ("op", "phase", "passed", "worst error", "its bound", "where"), cells)


def _by_case(title: str, outcomes: Sequence[Outcome]) -> Table:
    """A table with a row per op and check, with the property that the check is about."""
    cells = []
    for which, group in _grouped(outcomes, lambda case: (case.setting.op, case.check.name)):
        *measured, where = _worst(group)
        cells.append((*which, *measured, "/".join(where[:2]), group[0].case.check.about))
    columns = ("op", "case", "passed", "worst error", "its bound", "note", "where", "property")
    return table(title, columns, cells, fold=columns[-1:])


def _grouped(
    outcomes: Sequence[Outcome], row: Callable[[Case], tuple[str, str]]
) -> Iterator[tuple[tuple[str, str], list[Outcome]]]:
    rows: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(row(outcome.case), []).append(outcome)
    yield from rows.items()


def _worst(group: Sequence[Outcome]) -> tuple[str, str, str, str, list[str]]:
    """The number of passed cases, and the error that is largest relative to its bound.

    Returns:
        "PASSED of RUN", then the error, its bound, its note, and the parts of the case's id after the op. All
        but the first are empty if no error was measured.
    """
    ran = [outcome for outcome in group if outcome.status != "skipped"]
    passed = f"{sum(outcome.status == 'passed' for outcome in ran)} of {len(ran)}"
    measured = [(outcome, outcome.measured) for outcome in ran if outcome.measured is not None]
    if not measured:
        return passed, "", "", "", []
    worst, found = max(measured, key=lambda pair: _share(pair[1]))
    return passed, str(found.error), str(found.bound), found.note, worst.case.id.split("/")[1:]


def _share(measured: Measured) -> float:
    error, bound = measured.error, measured.bound
    return max(error.norm / bound.norm, error.row / bound.row)


def _by_reason(left_out: Sequence[LeftOut]) -> dict[str, str]:
    """The names of the cases that were left out, shortened and joined, by reason."""
    reasons: dict[str, list[str]] = {}
    for case in left_out:
        names = reasons.setdefault(case.reason, [])
        name = case.id if case.id.count("/") < 3 else case.id.rsplit("/", 1)[1]
        if name not in names:
            names.append(name)
    return {reason: ", ".join(names) for reason, names in reasons.items()}


def _summary(outcomes: Sequence[Outcome]) -> str:
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in STATUSES}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    cases = "1 case" if len(outcomes) == 1 else f"{len(outcomes)} cases"
    return f"{cases}: {told}; {sum(outcome.seconds for outcome in outcomes):.1f} s"
