"""Factors between natural logs, which contracts use, and logs to base 2, which the device computes."""

from __future__ import annotations

import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)
