"""The adapter kit for bridges to other engines and for vendors' plugins.

A bridge describes an engine's own memory as layers, calls and batches. `needed_features` determines which
features a call needs. `Served` chooses backends that have these features or can be adapted, and constructs
each backend once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from switchrail.ops.adapter import ADAPTED, Adapter, adapted, dense_call, plain
from switchrail.ops.batch import sequences
from switchrail.ops.catalog import CONTRACTS
from switchrail.ops.delegate import Delegate, Wrapper
from switchrail.ops.steps import STEPS, Call, checked_flags, complete, completing

if TYPE_CHECKING:
    import torch

    from switchrail._core import Decision, Registration
    from switchrail.ops.backend import AnyBackend
    from switchrail.ops.batch import Bounds, Phase, SequenceBatch
    from switchrail.platforms import Platform
    from switchrail.runtime import Runtime


def needed_features(phase: Phase, call: Any, batch: SequenceBatch) -> frozenset[str]:
    """The features that a backend needs to serve a call.

    The contents of the call's tensors are not read, so they may be uninitialised.

    Args:
        phase: The phase.
        call: A call of any op.
        batch: The call's batch.

    Raises:
        ContractError: The call breaks the contract in a way that no feature allows.
        TypeError: The object is not a call of an op.
    """
    for contract in CONTRACTS.values():
        if type(call) is contract.call:
            return contract.needed_features(phase, call, batch)
    raise TypeError(f"got {type(call).__name__}, expected a call of an op, such as GatedDeltaCall")


def features_of(registration: Registration) -> frozenset[str]:
    """The features of a registration's own backend, without those that an `Adapter` would add."""
    features: list[str] = registration.capabilities["features"]
    return frozenset(features)


@dataclass(slots=True)
class Planned:
    """A batch that a backend has planned.

    Attributes:
        backend: The backend.
        batch: The batch.
        plan: The backend's plan.
        complete: Runs the backend's optional steps that take a plan, such as `fill_verify_buffers`, after
            `plan` or `refresh`.
    """

    backend: AnyBackend
    batch: SequenceBatch
    plan: Any
    complete: Callable[[Any, SequenceBatch], None]

    def run(self, call: Any) -> Any:
        """Runs a layer's call. Returns the record for `commit` in phase `verify`, else None."""
        return self.backend.run(call, self.batch, self.plan)

    def commit(self, call: Any, record: Any, accepted: torch.Tensor) -> None:
        """Writes each sequence's state after its accepted rows into its write slot; see `Backend.commit`."""
        self.backend.commit(call, self.batch, self.plan, record, accepted)

    def refresh(self, batch: SequenceBatch) -> None:
        """Updates the plan in place for another batch. The plan must have been made with bounds."""
        self.backend.refresh(self.plan, batch)
        self.complete(self.plan, batch)
        self.batch = batch


class Served:
    """The backends that serve one op of an engine's layers. A backend has one instance for all its phases.

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
        flags: Mapping[str, bool] | None = None,
        **query: Any,
    ) -> None:
        """Chooses and constructs the backends.

        Args:
            runtime: The runtime with the registrations.
            op: The op.
            needed: For each phase, the features that its calls need. Features in `ADAPTED` are added to
                backends that lack them.
            device: As for `Runtime.resolve`.
            dtype: As for `Runtime.resolve`.
            flags: Flags of optional steps, True by default; see `switchrail.ops.steps`.
            query: Further arguments of `Runtime.resolve`, such as `state_dtype` and `preferences`.

        Raises:
            SwitchrailError: See `Runtime.resolve` and `Runtime.build`.
        """
        self.decisions: dict[Phase, Decision] = {}
        self._needed = {phase: frozenset(features) for phase, features in needed.items()}
        self._backends: dict[tuple[Phase, str], AnyBackend] = {}
        self._flags = checked_flags(flags)
        self._steps: dict[tuple[Phase, str], Mapping[str, Call]] = {}
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
                backend = adapted(instances[registration.id], own, features)
                self._backends[phase, name] = backend
                self._steps[phase, name] = completing(backend, own, phase)

    def plan(self, phase: Phase, batch: SequenceBatch, bounds: Bounds | None = None) -> Planned:
        """Plans a batch with the backend that serves it. The plan is valid for all layers of the op.

        Raises:
            ContractError: The batch breaks the contract, or needs a feature that the backend lacks.
        """
        cached = getattr(batch, "kv_seqlens", None)
        name = self.decisions[phase].at(batch.seqlens, cached)
        backend = self._backends[phase, name]
        completed = partial(complete, self._steps[phase, name], flags=self._flags)
        planned = Planned(backend, batch, backend.plan(phase, batch, bounds), completed)
        planned.complete(planned.plan, batch)
        return planned

    def explain(self) -> str:
        """One line per phase and backend.

        It has the backend's optional steps and the needed features that an adapter adds.
        """
        lines = []
        for phase, decision in self.decisions.items():
            for name, _ in decision.serving:
                backend = self._backends[phase, name]
                text = f"{decision.op} {phase}: {name}"
                if steps := self._steps[phase, name]:
                    text += f", with {', '.join(steps)}"
                if isinstance(backend, Adapter):
                    added = sorted(backend.added & self._needed[phase])
                    text += ", adapted: " + ", ".join(f"{each} ({ADAPTED[each]})" for each in added)
                lines.append(text)
        return "\n".join(lines)


__all__ = [
    "ADAPTED",
    "STEPS",
    "Adapter",
    "Delegate",
    "Planned",
    "Served",
    "Wrapper",
    "adapted",
    "dense_call",
    "features_of",
    "needed_features",
    "plain",
    "sequences",
]
