"""The interface that a backend implements."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch

from switchrail.errors import ArgumentError
from switchrail.ops.batch import Bounds, Phase, SequenceBatch, VerifyBatch
from switchrail.ops.call import CallT

BatchT = TypeVar("BatchT", bound=SequenceBatch)

_MADE_BY = {"plan": "`plan`", "record": "`run` in verify"}


def foreign(argument: Literal["plan", "record"], found: object) -> ArgumentError:
    """The error for a plan or a record that is none of the backend's own."""
    name = type(found).__name__
    return ArgumentError(
        f"{argument}: got {name}, expected what the backend's {_MADE_BY[argument]} returned",
        argument=argument,
        found=name,
    )


class Planned(Protocol):
    """A plan that knows the lengths it was made for."""

    @property
    def seqlens(self) -> tuple[int, ...]:
        """The lengths of its batch's sequences."""


def check_plan(
    plan: object,
    batch: SequenceBatch,
    made: tuple[type[Planned], ...],
    verify: type[Planned] | None = None,
) -> None:
    """Refuses a plan that was made by another backend, or for another phase or other lengths.

    Args:
        plan: The plan.
        batch: The batch.
        made: What the backend's plans are but for a `VerifyBatch`.
        verify: What those are; None where the backend makes none.

    Raises:
        ArgumentError: It is not the batch's.
    """
    kinds = made
    if isinstance(batch, VerifyBatch):
        kinds = () if verify is None else (verify,)
    if not isinstance(plan, kinds) or plan.seqlens != batch.seqlens:
        raise foreign("plan", plan)


class Backend(Generic[CallT, BatchT]):
    """An implementation of one op; one instance serves one route plan.

    A backend is constructed with its validated configuration (the object of the type given at registration,
    or None) once per route plan that uses it. It derives from its op's class, such as
    `switchrail.ops.GatedDeltaBackend`, whose description says what is computed.

    What a call may be given is the op's contract, `switchrail.ops.CONTRACTS[op]`, and what breaks it must be
    refused before anything is written: `check_batch(phase, batch)` in `plan` looks at a batch once a step,
    `check_call(call, batch)` in `run` at the rest.
    """

    op: ClassVar[str]
    has_state: ClassVar[bool] = False
    """Whether the op has a recurrent state, which a verification must commit."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def plan(self, phase: Phase, batch: BatchT, bounds: Bounds | None = None) -> Any:
        """Prepares what all layers of a step share, once a step and phase; each call is given the result.

        A backend that runs its phases differently tells by it which one a call belongs to.

        Args:
            phase: `prefill`, `decode` or `verify`.
            batch: The step's sequences.
            bounds: How large the batches are that the plan is refreshed for; None: this one alone.
        """
        return None

    def refresh(self, plan: Any, batch: BatchT) -> None:
        """Fills a plan that was made within bounds for another batch, in place and without waiting.

        A backend without it is never captured in a graph.
        """
        raise NotImplementedError

    def run(self, call: CallT, batch: BatchT, plan: Any) -> Any:
        """Runs a call: writes its outputs, and the state of its layer in place.

        It modifies nothing else, and never waits for the device. In verify, of whose drafted tokens it isn't
        known yet which are accepted, it leaves the state as it is; what softmax attention is given is a chain
        unless its batch says otherwise.

        Args:
            call: The layer, and tensors with a row a token.
            batch: The sequences that the rows belong to.
            plan: What `plan` returned for them.

        Returns:
            In verify, what `commit` needs: a state for each token, or what it takes to run them again. None
            in other phases.
        """
        raise NotImplementedError

    def commit(self, call: CallT, batch: Any, plan: Any, record: Any, accepted: torch.Tensor) -> None:
        """Writes the state after the accepted tokens into each sequence's write slot.

        Args:
            call: The call that was verified.
            batch: Its batch, a `VerifyBatch`.
            plan: Its plan.
            record: What `run` returned for it.
            accepted: [N] int64 on the device, the last accepted row of each sequence, counted within it; -1
                where none is, so that the initial state is written. Of padding and of sequences of length
                zero it is not looked at.
        """
        raise NotImplementedError


AnyBackend = Backend[Any, Any]
"""A backend of any op."""

__all__ = ["AnyBackend", "Backend", "Planned", "check_plan", "foreign"]
