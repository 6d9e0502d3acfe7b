"""The base classes of the Triton backends over a paged cache, and of their plans."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, ClassVar

from switchrail.ops.adapter import Adapted, dense_call, is_plain, owned, plain
from switchrail.ops.backend import Backend, check_plan, foreign
from switchrail.ops.batch import Bounds, PagedBatch, Phase
from switchrail.ops.call import CallT
from switchrail.ops.contract import Contract
from switchrail.ops.pages import check_lengths

from switchrail_kernels.plans import check_forms
from switchrail_kernels.replay import Calls, Options, Tensors, calls_of


class PagedPlan:
    """A plan of one step. It caches the launch arguments for each kind of layer.

    Attributes:
        batch: The step's batch, which has passed the contract's check.
    """

    def __init__(self, batch: PagedBatch) -> None:
        self.batch = batch
        self._known: dict[tuple[Any, ...], tuple[Tensors, Options]] = {}

    @property
    def seqlens(self) -> tuple[int, ...]:
        """The lengths of the batch's sequences."""
        return self.batch.seqlens

    def known(self, calls: Calls, call: Any, batch: PagedBatch) -> tuple[Tensors, Options] | None:
        """The launch arguments cached for a call with these shapes, or None; validates nothing."""
        if batch is not self.batch:
            return None
        try:
            return self._known.get((calls.kind, call[1].shape, call[2].shape))
        except (AttributeError, TypeError):
            return None

    def keep(self, calls: Calls, call: Any, batch: PagedBatch, planned: Tensors, options: Options) -> None:
        """Cache the arguments of a call's launches. Does nothing for a batch other than the plan's."""
        if batch is self.batch:
            self._known[calls.kind, call[1].shape, call[2].shape] = planned, options


class TritonPaged(Backend[CallT, PagedBatch]):
    """A Triton backend over a paged cache, for compute capability 8.0 and later."""

    contract: ClassVar[Contract]
    features: ClassVar[tuple[str, ...]]
    """The features that calls of the backend may use."""
    decode_plan: ClassVar[Any]
    """The type of plans for decode."""
    rows_plan: ClassVar[type[PagedPlan]]
    """The type of plans for prefill and verification."""

    def plan(self, phase: Phase, batch: PagedBatch, bounds: Bounds | None = None) -> Any:
        """Check the batch. Rows and caches are split at the first call of each kind of layer."""
        self.contract.check_batch(phase, batch, self.features)
        check_lengths(self.contract, batch)
        own = batch
        if not is_plain(batch, wide=_WIDE):
            own = owned(plain(batch, wide=_WIDE), batch, bounds)
        if phase == "decode":
            plan = self.decode_plan(own, bounds)
        else:
            plan = self.rows_plan(_bounded(own, bounds) if phase == "verify" else own)
        return plan if own is batch else Adapted(own, plan, bounds)

    def refresh(self, plan: Any, batch: PagedBatch) -> None:
        """Update a plan for another batch within the bounds.

        Raises:
            ArgumentError: Another backend made the plan.
            ContractError: The plan has no bounds; the batch is not within them; its tables have forms other
                than those of the planned batch; or, in a verification, its `seqlens` differ from the plan's.
        """
        if isinstance(plan, self.decode_plan) and _has_tables_of(plan.batch, batch):
            plan.check_refresh(batch)
            plan.batch = batch
            return
        own = plan.plan if isinstance(plan, Adapted) else plan
        is_decode = isinstance(own, self.decode_plan)
        if not is_decode and not isinstance(own, self.rows_plan):
            raise foreign("plan", plan)
        self.contract.check_batch("decode" if is_decode else "verify", batch, self.features)
        if is_decode:
            own.check_refresh(batch)
        else:
            self._check_rows(own, batch)
        if isinstance(plan, Adapted):
            batch = plan.update(self.contract, batch)
        else:
            check_forms(self.contract, batch, wide=_WIDE)
        if is_decode:
            own.batch = batch

    def _check_rows(self, plan: PagedPlan, batch: PagedBatch) -> None:
        longest, most = (max(each.kv_seqlens, default=0) for each in (batch, plan.batch))
        if not plan.batch.kv_bounds:
            raise self.contract.error("plan", "a plan without bounds", "a plan with bounds")
        if plan.seqlens != batch.seqlens:
            lengths = f"the lengths of the plan, {list(plan.seqlens)}"
            raise self.contract.error("batch.seqlens", str(list(batch.seqlens)), lengths)
        if longest > most:
            raise self.contract.error(
                "batch.kv_seqlens", f"{longest} tokens", f"at most {most}, the plan's bound"
            )

    @abstractmethod
    def prepare(
        self, call: CallT, batch: PagedBatch, plan: Any
    ) -> tuple[Tensors, Options, Callable[[], None]]:
        """Return the launch arguments that are not in the call or its batch, and a function that launches."""

    def run(self, call: CallT, batch: PagedBatch, plan: Any) -> None:
        """Compute attention for T packed query rows of N sequences of any length; one row each in decode."""
        if plan.__class__ is Adapted:
            if plan.seqlens != batch.seqlens:
                raise foreign("plan", plan)
            plan.reread(self.contract, batch, call[0])
            batch, plan = plan.batch, plan.plan
            if isinstance(plan, self.decode_plan):
                plan.batch = batch
        layer = call[0]
        brought: Tensors = (*call[1:], batch.cu_seqlens, batch.page_table, batch.kv_lens)
        count = (len(batch.seqlens),)
        calls = layer.kept.get(type(self))
        known = None
        if calls is not None and isinstance(plan, PagedPlan):
            known = plan.known(calls, call, batch)
            if known is not None and calls.again(brought + known[0], count + known[1]):
                return
        check_forms(self.contract, batch, wide=_WIDE)
        self.contract.check_call(call, batch, self.features)
        check_plan(plan, batch, (self.decode_plan, self.rows_plan))
        *_, out, _ = call
        if out.numel() == 0:
            return
        own, results = dense_call(self.contract, call)
        if own is not call:
            self.run(own, batch, plan)
            for result, dense in results:
                result.copy_(dense)
            return
        planned, options, launch = self.prepare(call, batch, plan)
        calls = calls_of(layer, type(self))
        plan.keep(calls, call, batch, planned, options)
        if known is None and calls.again(brought + planned, count + options):  # first layer of a new step
            return
        with calls.record(layer, brought + planned, count + options):
            launch()


def _bounded(batch: PagedBatch, bounds: Bounds | None) -> PagedBatch:
    """The batch with all caches at the maximum length that the bounds allow."""
    if bounds is None:
        return batch
    return replace(batch, kv_seqlens=(bounds.tokens,) * len(batch.seqlens), kv_bounds=True)


def _has_tables_of(checked: PagedBatch, batch: PagedBatch) -> bool:
    """Whether a batch differs from a checked batch in nothing but the host's cache lengths."""
    return type(batch) is type(checked) and all(getattr(batch, n) is getattr(checked, n) for n in _SHARED)


_SHARED = tuple(field.name for field in fields(PagedBatch) if field.name != "kv_seqlens")
"""The fields that the batches of a captured decode share."""

_WIDE = ("page_table",)
"""The names of tables whose rows may have gaps."""
