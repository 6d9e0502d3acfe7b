from __future__ import annotations

import pytest
import torch


@pytest.fixture
def one_thread():
    """What is computed is so small that handing it to a second thread takes longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
