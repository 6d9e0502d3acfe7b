"""The interface of backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch

from switchrail.errors import ArgumentError
from switchrail.ops.batch import Bounds, Phase, SequenceBatch, VerifyBatch
from switchrail.ops.call import CallT
from switchrail.ops.steps import Call, own_steps

BatchT = TypeVar("BatchT", bound=SequenceBatch)

_RESULT_OF = {"plan": "`plan` for this batch", "record": "`run` in verify"}


def foreign(argument: Literal["plan", "record"], found: object) -> ArgumentError:
    """The error for a plan or a record that the backend did not make for the given batch."""
    name = type(found).__name__
    return ArgumentError(
        f"{argument}: got {name}, expected the result of the backend's {_RESULT_OF[argument]}",
        argument=argument,
        found=name,
    )


class Planned(Protocol):
    """A plan that stores the lengths of the sequences it was made for."""

    @property
    def seqlens(self) -> tuple[int, ...]:
        """The lengths of the batch's sequences."""


def check_plan(
    plan: object, batch: SequenceBatch, made: tuple[type[Planned], ...], verify: type[Planned] | None = None
) -> None:
    """Refuse a plan made by another backend, for another kind of batch or for other lengths.

    Args:
        plan: The plan.
        batch: The batch.
        made: The backend's plan types for batches other than a `VerifyBatch`.
        verify: The backend's plan type for a `VerifyBatch`; None if the backend has no such type.

    Raises:
        ArgumentError: The plan doesn't match.
    """
    kinds = made
    if isinstance(batch, VerifyBatch):
        kinds = () if verify is None else (verify,)
    if not isinstance(plan, kinds) or plan.seqlens != batch.seqlens:
        raise foreign("plan", plan)


class Backend(Generic[CallT, BatchT]):
    """An implementation of one op.

    A backend is constructed once for each route plan (the chosen backends of a model's layers) that uses it.
    Its validated configuration is an instance of the type given at registration, or None. A backend derives
    from its op's class, such as `switchrail.ops.GatedDeltaBackend`, whose docstring defines the computation.

    The op's contract, `switchrail.ops.CONTRACTS[op]`, defines the valid calls. A backend must refuse invalid
    calls before it writes anything: `check_batch(phase, batch)` in `plan` checks the batch once a step, and
    `check_call(call, batch)` in `run` checks the rest.
    """

    op: ClassVar[str]

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def plan(self, phase: Phase, batch: BatchT, bounds: Bounds | None = None) -> Any:
        """Prepare the data that all layers of a step share. Called once per step and phase.

        Each call of `run` in this step and phase receives the result. If phases run differently, the plan
        records the phase for `run`.

        Args:
            phase: `prefill`, `decode` or `verify`.
            batch: The step's sequences.
            bounds: The largest batches that the plan can be refreshed for; None if the plan is for this batch
                only.
        """
        return None

    def refresh(self, plan: Any, batch: BatchT) -> None:
        """Update a plan, in place, for another batch within its bounds, without waiting for the device.

        For each step of a captured decode, an engine passes a batch with the same tensors as the plan's
        batch, so a backend needs to check these tensors only once. The batch's lengths on the host are
        already those of the step. Tables such as `page_table` and `kv_lens` must not be read here, only in
        `run`: the graph may write them after `refresh`.

        A backend without this method is never captured in a graph.
        """
        raise NotImplementedError

    def optional_steps(self) -> Mapping[str, Call]:
        """The backend's optional steps (see `switchrail.ops.steps`), each called with all arguments by name.

        A backend has an optional step if it has a method of the step's name. The method may leave out some of
        the step's arguments; the returned function drops them. A wrapper overrides this method to add its
        parts' steps; see `switchrail.ops.delegate`.
        """
        return own_steps(self)

    def run(self, call: CallT, batch: BatchT, plan: Any) -> Any:
        """Run a call: write its outputs, and update its layer's state in place.

        Nothing else is modified, and the host never waits for the device. In verify, the accepted drafts are
        not known yet, so the state is left unchanged, except for a `RowStatesBatch` or a `DeferredBatch`. In
        softmax attention, drafts form a chain unless the batch is a `PagedTreeBatch`.

        Args:
            call: The layer, and tensors with one row per token.
            batch: The sequences that the rows belong to.
            plan: The result of `plan` for this batch.

        Returns:
            For a `VerifyBatch` that is neither a `RowStatesBatch` nor a `DeferredBatch`, a record for
            `commit`: the state after each token, or the inputs to recompute the states. Otherwise None.
        """
        raise NotImplementedError

    def commit(self, call: CallT, batch: Any, plan: Any, record: Any, accepted: torch.Tensor) -> None:
        """Write the state after the accepted tokens into each sequence's write slot.

        Args:
            call: The verified call.
            batch: The batch of the verification, a `VerifyBatch`.
            plan: The plan of that batch.
            record: The record that `run` returned.
            accepted: [N] int64 on the device: the index of each sequence's last accepted row within the
                sequence, or -1 to write the initial state. Ignored for padding and for empty sequences.
        """
        raise NotImplementedError


AnyBackend = Backend[Any, Any]
"""A backend of any op."""
