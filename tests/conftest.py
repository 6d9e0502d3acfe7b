"""Without a GPU, Triton's kernels are interpreted: switched on here, before anything imports Triton."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
