"""Compares the ranks of a distributed job before it begins."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from switchrail.current import current_runtime
from switchrail.errors import RankError
from switchrail.processes.differences import differences, digest
from switchrail.processes.state import State, read

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from switchrail._core import RoutePlan
    from switchrail.runtime import Runtime


@dataclass(frozen=True, slots=True)
class _Report:
    """One rank's report: the state of its runtime, or else the reason why there is no state.

    Reports with equal digests have no differences.
    """

    state: State | None
    digest: str
    problem: str = ""


def check_ranks(
    runtime: Runtime | None = None,
    plan: RoutePlan | None = None,
    group: Any = None,
    *,
    timeout: float = 300.0,
) -> str:
    """Compares the runtimes of all ranks of a distributed job. Each rank must call this at the start.

    If a rank differs or fails to load, all ranks raise the same error. Each rank is compared with the runtime
    that most ranks have. The comparison includes the devices' family and compute capability, but not their
    indices.

    Args:
        runtime: The runtime to compare; None means the current one, with the installed plugins loaded.
        plan: The route plan in use, to be compared too.
        group: The process group of `torch.distributed`; None means all ranks.
        timeout: Seconds to wait for the reports of the other ranks.

    Returns:
        The fingerprint that all ranks have.

    Raises:
        RankError: Ranks differ (the error names each such rank and its differences), a rank did not call this
            in time, the job has no process group yet, or the process that hosts the job's store has ended.
    """
    reports = _exchanged(_report(runtime, plan), group, timeout)
    alike: dict[str, list[int]] = {}
    for rank, report in reports.items():
        if report.state is not None:
            alike.setdefault(report.digest, []).append(rank)
    most = max(alike.values(), key=len, default=[])
    wrong: dict[int, tuple[str, ...]] = {}
    for rank, report in reports.items():
        if report.state is None:
            wrong[rank] = (report.problem,)
        elif rank not in most:
            expected = reports[most[0]].state
            assert expected is not None
            wrong[rank] = differences(report.state, expected)
    if wrong:
        texts = "; ".join(f"rank {rank}: {', '.join(problems)}" for rank, problems in wrong.items())
        raise RankError(f"ranks differ from the others: {texts}", ranks=wrong)
    state = reports[most[0]].state
    assert state is not None
    return state.fingerprint


def _report(runtime: Runtime | None, plan: RoutePlan | None) -> _Report:
    try:
        if runtime is None:
            runtime = current_runtime()
            runtime.load()
        state, _ = read(runtime, () if plan is None else (plan,))
        platform = runtime.platform
        capability = ".".join(map(str, platform.capability or ()))
        state = replace(state, platform=f"{platform.kind} {capability}".strip())
        return _Report(state, digest(state))
    except Exception as error:  # other ranks wait for a report
        problem = f"it failed: {type(error).__name__}: {error}"
        return _Report(None, ascii(problem), problem)


def _exchanged(report: _Report, group: Any, timeout: float) -> dict[int, _Report]:
    """The reports of all ranks, exchanged through the job's key-value store.

    A collective would need a device that the group's backend supports, and could not tell which rank is
    missing. Some supported versions of torch have no public function that returns the store.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    if not dist.is_initialized():
        raise RankError(
            "the job has no process group yet; call torch.distributed.init_process_group first", ranks={}
        )
    ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
    try:
        return _through(_get_default_store(), report, dist.get_rank(), ranks, timeout)
    except dist.DistNetworkError as error:
        raise RankError(
            f"the job's store does not answer; the process that hosts it, usually rank 0, has ended: {error}",
            ranks={},
        ) from error


def _through(
    store: Store, report: _Report, here: int, ranks: Sequence[int], timeout: float
) -> dict[int, _Report]:
    from torch.distributed import DistNetworkError

    name = f"switchrail/ranks/{','.join(map(str, ranks))}"
    name = f"{name}/{store.add(f'{name}/calls of {here}', 1)}"
    end = time.monotonic() + timeout

    def has(key: str) -> bool:
        try:
            store.wait([f"{name}/{key}"], timedelta(seconds=max(end - time.monotonic(), 0.1)))
        except DistNetworkError:
            raise
        except RuntimeError:  # a timeout, whose class depends on torch's version and on the kind of store
            return False
        return True

    store.set(f"{name}/report of {here}", pickle.dumps(report).hex())
    store.set(f"{name}/digest of {here}", report.digest)
    known, reports = {report.digest: report}, {}
    for rank in ranks:
        if not has(f"digest of {rank}"):
            reports[rank] = _Report(None, "", f"it did not report within {timeout:g} s")
            continue
        digest = store.get(f"{name}/digest of {rank}").decode()
        if digest not in known:
            known[digest] = pickle.loads(bytes.fromhex(store.get(f"{name}/report of {rank}").decode()))
        reports[rank] = known[digest]
    store.set(f"{name}/end of {here}", "")
    if here == 0:  # rank 0 usually hosts the store, so it waits until the others have read
        end = time.monotonic() + timeout  # other ranks may have begun later
        for rank in ranks:
            if reports[rank].digest:
                has(f"end of {rank}")
    return reports
