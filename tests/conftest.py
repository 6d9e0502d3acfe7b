"""What must be set before anything is imported.

Without a GPU, Triton's kernels are interpreted. What `switchrail tune` found here decides nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ["SWITCHRAIL_TIMES"] = str(Path(__file__).with_name("none.json"))
