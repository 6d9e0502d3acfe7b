"""Mamba 2 in Triton, using the kernels of `switchrail_kernels.linear`."""

from __future__ import annotations

from switchrail.ops.mamba2.contract import CONTRACT, Mamba2Backend, Mamba2Call

from switchrail_kernels.linear.backend import TritonLinear
from switchrail_kernels.linear.operands import Operands

_MOST = 3e38
"""Upper bound of the time step where the layer has none or a larger one: nearly the largest float32."""


class TritonMamba2(TritonLinear[Mamba2Call], Mamba2Backend):
    """Mamba 2."""

    contract = CONTRACT
    costs = "mamba2"

    @staticmethod
    def operands(call: Mamba2Call) -> Operands:
        """The call, with C, B and x as queries, keys and values."""
        layer, x, B, C, dt, out = call
        bias, skip = layer.dt_bias, layer.D
        return Operands(
            *(C, B, x, layer.A, dt),
            *(dt if bias is None else bias, dt if skip is None else skip),
            *(layer.state, out),
            limits=(layer.dt_min, min(layer.dt_max, _MOST)),
            flags=(True, bias is not None, layer.dt_softplus, skip is not None),
        )
