"""Every contract, by its op."""

from __future__ import annotations

from collections.abc import Mapping

from switchrail.ops.attention.contract import CONTRACT as ATTENTION
from switchrail.ops.contract import Contract
from switchrail.ops.gated_delta.contract import CONTRACT as GATED_DELTA
from switchrail.ops.kda.contract import CONTRACT as KDA
from switchrail.ops.lightning.contract import CONTRACT as LIGHTNING
from switchrail.ops.mamba2.contract import CONTRACT as MAMBA2
from switchrail.ops.mla.contract import CONTRACT as MLA
from switchrail.ops.short_conv.contract import CONTRACT as SHORT_CONV

CONTRACTS: Mapping[str, Contract] = {
    contract.op: contract for contract in (ATTENTION, MLA, GATED_DELTA, KDA, LIGHTNING, MAMBA2, SHORT_CONV)
}

__all__ = ["CONTRACTS"]
