"""How far a result may lie from what was expected, by what is hard about the inputs and by dtype."""

from __future__ import annotations

import torch

from switchrail.ops.samples.scenario import Hardness
from switchrail.testing.compare import BOUNDS as USUAL
from switchrail.testing.compare import Error

BOUNDS: dict[Hardness, dict[torch.dtype, Error]] = {
    "usual": USUAL,
    "hard": {
        torch.float64: Error(1e-11, 1e-10),
        torch.float32: Error(2e-5, 2e-4),
        torch.float16: Error(6e-3, 3e-2),
        torch.bfloat16: Error(3e-2, 1.5e-1),
    },
    "bfloat16_state": {
        torch.float64: Error(4e-3, 8e-3),
        torch.float32: Error(4e-3, 8e-3),
        torch.float16: Error(5e-3, 2e-2),
        torch.bfloat16: Error(1e-2, 4e-2),
    },
    "company": {
        torch.float64: Error(1e-13, 1e-12),
        torch.float32: Error(2e-6, 2e-5),
        torch.float16: Error(5e-4, 5e-3),
        torch.bfloat16: Error(4e-3, 4e-2),
    },
}
"""The largest errors.

- `usual`: against the float64 oracle on the rounded inputs. In float32 only IEEE products keep them: TF32 has
  errors of 3e-4 and more.
- `hard`: the same with beta up to 2 and keys that point nearly the same way, where the delta rule's system is
  badly conditioned and what was rounded once is multiplied.
- `bfloat16_state`: the same with a state that is kept in bfloat16, and rounded once a call.
- `company`: of a sequence's result alone against its result among others, on the same backend, which may sum
  in another order then but not lose digits.
"""

GROWTH = 4.0
"""How many times larger the error of the last quarter of a long sequence may be than that of the first."""

__all__ = ["BOUNDS", "GROWTH"]
