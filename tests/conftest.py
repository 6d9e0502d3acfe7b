"""What must be set before anything is imported, and the check that no test leaves anything behind.

Without a GPU, Triton's kernels are interpreted. What `switchrail tune` found here decides nothing. What the
tests compute is so small that handing it to a second thread takes longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ["SWITCHRAIL_TIMES"] = str(Path(__file__).with_name("none.json"))

from tests import leftovers


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_by_fixtures() -> Iterator[None]:
    before = leftovers.read()
    yield
    assert not (left := leftovers.put_back(before)), left


@pytest.fixture(autouse=True)
def _nothing_is_left(_nothing_is_left_by_fixtures: None) -> Iterator[None]:
    """The first fixture of each test, so the last to end; what a test draws is the same in any order."""
    before = leftovers.read()
    torch.default_generator.manual_seed(0)
    yield
    leftovers.put_back_triton()
    if left := leftovers.put_back(before):
        pytest.fail("\n".join(["this test left something behind:", *left]), pytrace=False)
