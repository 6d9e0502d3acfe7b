"""The base classes of the Triton backends of ops with a state."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from switchrail.ops.adapter import Adapted, dense_call, is_plain, owned, plain
from switchrail.ops.backend import Backend, check_plan, foreign
from switchrail.ops.batch import (
    Bounds,
    CheckpointBatch,
    DeferredBatch,
    Phase,
    RowStatesBatch,
    StateBatch,
    VerifyBatch,
)
from switchrail.ops.call import CallT
from switchrail.ops.contract import Contract

from switchrail_kernels.claims import STATE_FEATURES
from switchrail_kernels.drafts import Drafts, Record, replay, store_rows
from switchrail_kernels.fitted import Walk
from switchrail_kernels.plans import Decode, check_forms, refresh_decode
from switchrail_kernels.replay import Options, Tensors, calls_of
from switchrail_kernels.segments import Chunks


class TritonState(Backend[CallT, StateBatch]):
    """A Triton backend of an op with a state, for compute capability 8.0 and later."""

    contract: ClassVar[Contract]
    features: ClassVar[tuple[str, ...]] = STATE_FEATURES
    """The features that calls of the backend may use."""
    prefill_plan: ClassVar[Any]
    """The type of plans for prefill."""
    verify_plan: ClassVar[Any]
    """The type of plans for verification."""
    record: ClassVar[type]
    """The type of records of verifications."""

    @abstractmethod
    def plan_prefill(self, batch: StateBatch) -> Any:
        """Make the plan of a prefill."""

    @abstractmethod
    def launch_step(self, call: CallT, batch: StateBatch) -> None:
        """Launch a decode."""

    @abstractmethod
    def planned(self, call: CallT, batch: StateBatch, plan: Any) -> tuple[Tensors, Options]:
        """Return a prefill's launch arguments that are neither in the call nor the batch's slots."""

    @abstractmethod
    def launch_walk(self, call: CallT, batch: StateBatch, plan: Any) -> None:
        """Launch a prefill."""

    @abstractmethod
    def launch_verify(self, call: CallT, batch: StateBatch, plan: Any) -> Any:
        """Run drafted rows, and return the record for `launch_replay`."""

    @abstractmethod
    def launch_replay(
        self, call: CallT, batch: VerifyBatch, plan: Any, record: Any, accepted: torch.Tensor
    ) -> None:
        """Write the state after each sequence's last accepted row."""

    @abstractmethod
    def launch_rows(self, call: CallT, batch: RowStatesBatch, plan: Any, record: Any) -> None:
        """Write the state after each row that has a slot."""

    def plan(self, phase: Phase, batch: StateBatch, bounds: Bounds | None = None) -> Any:
        """Check the batch. Split the sequences of a prefill, or find the paths of drafted rows."""
        self.contract.check_batch(phase, batch, self.features)
        own = batch if is_plain(batch) else owned(plain(batch), batch, bounds)
        if isinstance(own, VerifyBatch):
            plan = self.verify_plan.of(own)
        else:
            plan = Decode(own) if phase == "decode" else self.plan_prefill(own)
        return plan if own is batch else Adapted(own, plan, bounds)

    def refresh(self, plan: Any, batch: StateBatch) -> None:
        """Update the plan of a decode, or of drafted rows of the same lengths, for another batch.

        Raises:
            ArgumentError: The plan is a prefill's, or of a type that this backend does not make.
            ContractError: The batch differs from the planned one in the number of sequences, in the
                lengths of rows, or in the forms of its tables.
        """
        if isinstance(plan, Decode) and batch is plan.batch:
            return  # the steps of an engine share the batch of a captured decode
        own = plan.plan if isinstance(plan, Adapted) else plan
        if isinstance(own, self.verify_plan):
            self.contract.check_batch("verify", batch, self.features)
            if own.seqlens != batch.seqlens:
                lengths = f"the lengths of the plan, {list(own.seqlens)}"
                raise self.contract.error("batch.seqlens", str(list(batch.seqlens)), lengths)
        else:
            refresh_decode(self.contract, own, batch, self.features)
        if isinstance(plan, Adapted):
            batch = plan.update(self.contract, batch)
        else:
            check_forms(self.contract, batch)
        if isinstance(own, self.verify_plan):
            own.update(batch)

    def run(self, call: CallT, batch: StateBatch, plan: Any) -> Any:
        """Run T packed tokens of N sequences: any number per sequence, or in decode one."""
        if plan.__class__ is Adapted:
            if plan.seqlens != batch.seqlens:
                raise foreign("plan", plan)
            batch, plan = plan.batch, plan.plan
        elif not batch.null_slot or batch.read_only:
            check_forms(self.contract, batch)
        layer = call[0]
        calls = layer.kept.get(type(self))
        if calls is None:
            self.contract.check_call(call, batch, self.features)
            calls = calls_of(layer, type(self))
        tensors: Tensors = (*call[1:], batch.read_slots, batch.write_slots)
        options: Options = (len(batch.seqlens),)
        if plan.__class__ is Decode and batch.__class__ is StateBatch and calls.again(tensors, options):
            return None
        made = (self.prefill_plan,) if isinstance(batch, CheckpointBatch) else (Decode, self.prefill_plan)
        check_plan(plan, batch, made, self.verify_plan)
        if isinstance(plan, self.prefill_plan):
            planned, more = self.planned(call, batch, plan)
            tensors, options = tensors + planned, options + more
            if calls.again(tensors, options):
                return None
        check_forms(self.contract, batch)
        self.contract.check_call(call, batch, self.features)
        own, results = dense_call(self.contract, call)
        if own is not call:
            record = self.run(own, batch, plan)
            for result, dense in results:
                result.copy_(dense)
            return record
        if isinstance(plan, self.verify_plan):
            record = self.launch_verify(call, batch, plan)
            if isinstance(batch, RowStatesBatch):
                self.launch_rows(call, batch, plan, record)
                return None
            return None if isinstance(batch, DeferredBatch) else record
        if len(call[1]):
            with calls.record(layer, tensors, options):
                if isinstance(plan, Decode):
                    self.launch_step(call, batch)
                else:
                    self.launch_walk(call, batch, plan)
        return None

    def commit(
        self, call: CallT, batch: VerifyBatch, plan: object, record: object, accepted: torch.Tensor
    ) -> None:
        """Write the state after each sequence's last accepted row."""
        self.contract.check_accepted(batch, accepted)
        if isinstance(plan, Adapted):
            batch, plan = plan.batch, plan.plan
        check_forms(self.contract, batch)
        if not isinstance(plan, self.verify_plan):
            raise foreign("plan", plan)
        if not isinstance(record, self.record):
            raise foreign("record", record)
        self.launch_replay(call, batch, plan, record, accepted)


class TritonRecurrent(TritonState[CallT]):
    """A Triton backend of an op with a [V, K] state per head, for any head sizes, groups and strides."""

    features: ClassVar[tuple[str, ...]] = (*STATE_FEATURES, "time_innermost")
    prefill_plan = Chunks
    verify_plan = Drafts
    record = Record
    chunk: ClassVar[int]
    """Tokens per chunk."""
    per_block: ClassVar[int] = 1
    """Chunks prepared per program."""
    costs: ClassVar[Walk]
    """The scan's key in `Fitted.walks`."""

    def plan_prefill(self, batch: StateBatch) -> Chunks:
        """The chunks of all sequences."""
        return Chunks.of(batch, self.chunk, self.per_block)

    def planned(self, call: CallT, batch: StateBatch, plan: Chunks) -> tuple[Tensors, Options]:
        """The tables of the chunks, and how the time axis is split."""
        state = call[0].state
        return plan.arguments(batch, state.shape[1], state.device, self.costs)

    def launch_replay(
        self, call: CallT, batch: VerifyBatch, plan: Drafts, record: Record, accepted: torch.Tensor
    ) -> None:
        """Run the accepted rows again, from the unchanged state."""
        replay(plan, record, accepted, state=call[0].state, batch=batch)

    def launch_rows(self, call: CallT, batch: RowStatesBatch, plan: Drafts, record: Record) -> None:
        """Run the rows again, and store the state after each row."""
        layer = call[0]
        store_rows(plan, record, state=layer.state, row_states=layer.row_states, batch=batch)
