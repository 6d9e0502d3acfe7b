"""The largest allowed errors, by difficulty of the inputs and by dtype."""

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
"""The largest allowed errors.

- `usual`: compared with the float64 oracle on the rounded inputs. In float32 this requires IEEE products:
  TF32 has errors of 3e-4 and more.
- `hard`: like `usual`, with beta up to 2 and nearly parallel keys. The delta rule's linear system is then
  ill-conditioned and amplifies rounding errors.
- `bfloat16_state`: like `usual`, with a bfloat16 or float16 state, which is rounded once per call.
- `company`: a sequence's result alone, compared with its result in a batch, from the same backend. The order
  of sums may differ, but not the precision.
"""

GROWTH = 4.0
"""The largest allowed ratio of the error of the last quarter of a long sequence to that of the first."""
