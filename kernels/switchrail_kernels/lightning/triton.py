"""Lightning attention in Triton, by the kernels of `switchrail_kernels.linear`."""

from __future__ import annotations

from switchrail.ops.lightning.call import LightningBackend, LightningCall
from switchrail.ops.lightning.contract import CONTRACT

from switchrail_kernels.linear.backend import TritonLinear
from switchrail_kernels.linear.operands import Operands
from switchrail_kernels.segments import Costs


class TritonLightning(TritonLinear[LightningCall], LightningBackend):
    """Lightning attention."""

    contract = CONTRACT
    costs = Costs(
        pace=lambda load: max(0.88, 0.66 * load),
        end=0.5,
        compose=1.0,
        parts=2,
        end_parts=2,
        first=0.5,
        resident=2.0,
        least=96,
    )

    @staticmethod
    def operands(call: LightningCall) -> Operands:
        """Those of a call, which has no time steps."""
        layer, q, k, v, out = call
        return Operands(q, k, v, layer.g, layer.g, layer.g, layer.g, layer.state, out, layer.scale)


__all__ = ["TritonLightning"]
