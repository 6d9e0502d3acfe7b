"""Lightning attention in Triton, using the kernels of `switchrail_kernels.linear`."""

from __future__ import annotations

from switchrail.ops.lightning.contract import CONTRACT, LightningBackend, LightningCall

from switchrail_kernels.linear.backend import TritonLinear
from switchrail_kernels.linear.operands import Operands


class TritonLightning(TritonLinear[LightningCall], LightningBackend):
    """Lightning attention."""

    contract = CONTRACT
    costs = "lightning"

    @staticmethod
    def operands(call: LightningCall) -> Operands:
        """The operands. `layer.g` is passed in place of time steps, which this op does not have."""
        layer, q, k, v, out = call
        return Operands(q, k, v, layer.g, layer.g, layer.g, layer.g, layer.state, out, layer.scale)
