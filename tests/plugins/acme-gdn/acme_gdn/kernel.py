"""The kernel: here the plain-torch one that Switchrail brings, with an output of its own scale."""

from __future__ import annotations

from typing import Any

import torch
from switchrail.ops.gated_delta.torch import TorchGatedDelta


class AcmeGatedDelta(TorchGatedDelta):
    """Counts its calls and scales its output."""

    calls = 0

    def prefill(self, *tensors: torch.Tensor, out: torch.Tensor, **rest: Any) -> None:
        """As `GatedDeltaBackend.prefill`."""
        super().prefill(*tensors, out=out, **rest)
        self._finish(out)

    def decode(self, *tensors: torch.Tensor, out: torch.Tensor, **rest: Any) -> None:
        """As `GatedDeltaBackend.decode`."""
        super().decode(*tensors, out=out, **rest)
        self._finish(out)

    def _finish(self, out: torch.Tensor) -> None:
        self.calls += 1
        out.mul_(self.config.scale)
