"""The adapter kit: the parts that bridges to engines and vendors' plugins share.

A bridge describes an engine's own memory as layers, calls and batches. `needed_features` determines the
features that such a call needs. `Served` chooses backends that have these features or can be adapted, and
constructs each backend once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchrail.ops.adapter import ADAPTED, Adapter, adapted, dense_call, plain, sequences
from switchrail.ops.catalog import CONTRACTS

if TYPE_CHECKING:
    import torch

    from switchrail._core import Decision, Registration
    from switchrail.ops.backend import AnyBackend
    from switchrail.ops.batch import Bounds, Phase, SequenceBatch
    from switchrail.platforms import Platform
    from switchrail.runtime import Runtime


def needed_features(phase: Phase, call: Any, batch: SequenceBatch) -> frozenset[str]:
    """The features that a backend needs for a call on this memory.

    The contents of tensors are not read, so calls on uninitialised memory of the same form will do.

    Args:
        phase: The phase.
        call: A call of any op.
        batch: Its batch.

    Raises:
        ContractError: The call breaks the contract, whatever a backend's features are.
    """
    return CONTRACTS[_op_of(call)].needed_features(phase, call, batch)


def features_of(registration: Registration) -> frozenset[str]:
    """The features of a registration, without those that an `Adapter` adds."""
    features: list[str] = registration.capabilities["features"]
    return frozenset(features)


@dataclass(slots=True)
class Planned:
    """A batch that a backend has planned.

    Attributes:
        backend: The backend.
        batch: The batch.
        plan: The backend's plan.
    """

    backend: AnyBackend
    batch: SequenceBatch
    plan: Any

    def run(self, call: Any) -> Any:
        """Run a layer's call. Returns the record for `commit` in verification, if there is one."""
        return self.backend.run(call, self.batch, self.plan)

    def commit(self, call: Any, record: Any, accepted: torch.Tensor) -> None:
        """Write the states after the accepted rows; see `Backend.commit`."""
        self.backend.commit(call, self.batch, self.plan, record, accepted)

    def refresh(self, batch: SequenceBatch) -> None:
        """Update a plan that was made with bounds for another batch, in place."""
        self.backend.refresh(self.plan, batch)
        self.batch = batch


class Served:
    """The backends of one op for the layers of an engine, one instance each for all phases.

    Attributes:
        decisions: The decision for each phase, with a reason for each rejected backend.
    """

    def __init__(
        self,
        runtime: Runtime,
        op: str,
        needed: Mapping[Phase, Collection[str]],
        *,
        device: Platform | str,
        dtype: str | torch.dtype,
        **query: Any,
    ) -> None:
        """Choose and construct the backends.

        Args:
            runtime: The runtime with the registrations.
            op: The op.
            needed: The phases, and the features that their calls need. Backends that lack features in
                `ADAPTED` are adapted.
            device: As for `Runtime.resolve`.
            dtype: As for `Runtime.resolve`.
            query: Further arguments of `Runtime.resolve`, such as `state_dtype` and `preferences`.

        Raises:
            SwitchrailError: See `Runtime.resolve` and `Runtime.build`.
        """
        self.decisions: dict[Phase, Decision] = {}
        self._needed = {phase: frozenset(features) for phase, features in needed.items()}
        self._backends: dict[tuple[Phase, str], AnyBackend] = {}
        instances: dict[int, AnyBackend] = {}
        for phase, features in self._needed.items():
            decision = runtime.resolve(
                op, phase, device=device, dtype=dtype, features=sorted(features - ADAPTED.keys()), **query
            )
            self.decisions[phase] = decision
            for name, _ in decision.serving:
                registration = runtime.backend(op, name, phase)
                if registration.id not in instances:
                    instances[registration.id] = runtime.build(op, name, phase)
                own = features_of(registration)
                self._backends[phase, name] = adapted(instances[registration.id], own, features)

    def plan(self, phase: Phase, batch: SequenceBatch, bounds: Bounds | None = None) -> Planned:
        """Let the backend that serves a batch plan it, once for all layers of a step.

        Raises:
            ContractError: The batch breaks the contract, or needs a feature that is not in `needed`.
        """
        cached = getattr(batch, "kv_seqlens", None)
        name = self.decisions[phase].at(batch.seqlens, cached)
        backend = self._backends[phase, name]
        return Planned(backend, batch, backend.plan(phase, batch, bounds))

    def explain(self) -> str:
        """A line for each phase: the backend that serves it, and the features that an adapter adds."""
        lines = []
        for phase, decision in self.decisions.items():
            for name, _ in decision.serving:
                backend = self._backends[phase, name]
                text = f"{decision.op} {phase}: {name}"
                if isinstance(backend, Adapter):
                    added = sorted(backend.added & self._needed[phase])
                    text += ", adapted: " + ", ".join(f"{each} ({ADAPTED[each]})" for each in added)
                lines.append(text)
        return "\n".join(lines)


def _op_of(call: Any) -> str:
    for op, contract in CONTRACTS.items():
        if type(call) is contract.call:
            return op
    raise TypeError(f"got {type(call).__name__}, expected a call of an op, such as GatedDeltaCall")


__all__ = [
    "ADAPTED",
    "Adapter",
    "Planned",
    "Served",
    "adapted",
    "dense_call",
    "features_of",
    "needed_features",
    "plain",
    "sequences",
]
