"""Comparing the ranks of a distributed job before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from switchrail.current import current_runtime
from switchrail.errors import RankError
from switchrail.processes.differences import differences
from switchrail.processes.state import RuntimeState, read

if TYPE_CHECKING:
    from switchrail._core import RoutePlan
    from switchrail.runtime import Runtime


@dataclass(frozen=True, slots=True)
class _Report:
    """What one rank has to say: a state, or why it has none."""

    state: RuntimeState | None
    problem: str = ""


def check_ranks(
    runtime: Runtime | None = None,
    plan: RoutePlan | None = None,
    group: Any = None,
    *,
    timeout: float = 300.0,
) -> str:
    """Has the ranks of a distributed job compare their runtimes; each calls it at the start.

    Where one differs, or fails to load, all of them raise the same error. It is compared with what most ranks
    have. The index of a rank's device does not count; its family and compute capability do.

    Args:
        runtime: What is compared; None: the current one, with the installed plugins loaded.
        plan: The route plan in use, to be compared too.
        group: The process group of `torch.distributed`; None: all ranks.
        timeout: How many seconds a rank may let the others wait.

    Returns:
        The fingerprint that all ranks have.

    Raises:
        RankError: Ranks differ; the error names each one, and in what. Or a rank did not come in time.
    """
    reports = _gathered(_report(runtime, plan), group, timeout)
    states = {rank: report.state for rank, report in reports.items() if report.state is not None}
    wrong = {
        rank: (f"it failed: {report.problem}",) for rank, report in reports.items() if rank not in states
    }
    alike: list[list[int]] = []
    for rank, state in states.items():
        for ranks in alike:
            if not differences(state, states[ranks[0]]):
                ranks.append(rank)
                break
        else:
            alike.append([rank])
    most = max(alike, key=len, default=[])
    for rank, state in states.items():
        if rank not in most:
            wrong[rank] = differences(state, states[most[0]])
    if not wrong:
        return states[most[0]].fingerprint
    texts = "; ".join(f"rank {rank}: {', '.join(wrong[rank])}" for rank in sorted(wrong))
    raise RankError(
        f"ranks are not like the others: {texts}", ranks={rank: wrong[rank] for rank in sorted(wrong)}
    )


def _report(runtime: Runtime | None, plan: RoutePlan | None) -> _Report:
    try:
        if runtime is None:
            runtime = current_runtime()
            runtime.load()
        state, _ = read(runtime, () if plan is None else (plan,))
        platform = runtime.platform
        capability = ".".join(map(str, platform.capability or ()))
        return _Report(replace(state, platform=f"{platform.kind} {capability}".strip()))
    except Exception as error:  # the others wait for a report
        return _Report(None, f"{type(error).__name__}: {error}")


def _gathered(report: _Report, group: Any, timeout: float) -> Mapping[int, _Report]:
    import torch.distributed as dist

    ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
    reports: list[Any] = [None] * len(ranks)
    try:
        # On the host, and with a limit of its own, whatever the job's group is for.
        own = dist.new_group(
            ranks, timedelta(seconds=timeout), backend="gloo", use_local_synchronization=True
        )
        try:
            dist.all_gather_object(reports, report, group=own)
        finally:
            dist.destroy_process_group(own)
    except RuntimeError as error:
        raise RankError(
            f"not all of the ranks {', '.join(map(str, ranks))} came within {timeout:g} s to be compared: {error}",
            ranks={},
        ) from error
    return dict(zip(ranks, reports, strict=True))
