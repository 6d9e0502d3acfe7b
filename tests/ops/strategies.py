"""Inputs that hypothesis draws for several ops."""

import torch
from hypothesis import strategies as st

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
CACHED = st.lists(
    st.tuples(st.one_of(st.integers(0, 2), st.integers(0, 70)), st.integers(0, 100)), max_size=6
)
"""The numbers of new and of cached tokens of each sequence."""
