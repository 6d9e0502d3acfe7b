"""A phase of the delta rule as adapters to libraries implement it: with a call that holds to the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from switchrail.ops.backend import foreign
from switchrail.ops.batch import StateBatch
from switchrail.ops.contract import Contract
from switchrail.ops.gates import GateKind

from switchrail_kernels.delta.gates import Gates


@dataclass(frozen=True, slots=True)
class DeltaCall:
    """The arguments of a phase under their names, those about gates together."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    gates: Gates
    state: torch.Tensor
    out: torch.Tensor
    batch: StateBatch
    scale: float
    qk_l2norm: bool

    @property
    def strides(self) -> tuple[int, ...]:
        """Those of q, k, v, g and beta along their first two axes."""
        return tuple(
            s for t in (self.q, self.k, self.v, self.gates.g, self.gates.beta) for s in t.stride()[:2]
        )


def checked(
    contract: Contract, planned: type
) -> Callable[[Callable[[Any, DeltaCall, Any], None]], Callable[..., None]]:
    """Makes a phase of a method that is given a call with rows, on its device, and a plan.

    Args:
        contract: What the call is held to.
        planned: What the backend's plans are.
    """

    def decorate(run: Callable[[Any, DeltaCall, Any], None]) -> Callable[..., None]:
        def phase(
            self: object,
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            *,
            g: torch.Tensor,
            beta: torch.Tensor,
            state: torch.Tensor,
            out: torch.Tensor,
            batch: StateBatch,
            plan: object,
            scale: float,
            qk_l2norm: bool,
            gate: GateKind | None = None,
            A_log: torch.Tensor | None = None,
            dt_bias: torch.Tensor | None = None,
            lower_bound: float | None = None,
            beta_scale: float | None = None,
        ) -> None:
            gates = Gates(g, beta, A_log, dt_bias, gate, lower_bound, beta_scale)
            named = {"q": q, "k": k, "v": v, "state": state, "out": out, **gates._asdict()}
            contract.check_arguments(batch, {**named, "scale": scale, "qk_l2norm": qk_l2norm})
            if not isinstance(plan, planned):
                raise foreign("plan", plan)
            if q.shape[0]:
                with torch.cuda.device(q.get_device()):
                    run(self, DeltaCall(q, k, v, gates, state, out, batch, scale, qk_l2norm), plan)

        phase.__name__, phase.__doc__ = run.__name__, run.__doc__
        return phase

    return decorate


__all__ = ["DeltaCall", "checked"]
