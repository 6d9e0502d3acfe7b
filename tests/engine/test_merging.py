"""Merging weights on the device while a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from switchrail.engine import Engine
from switchrail.engine import checkpoint as loaded
from switchrail.engine.merging import MergedOn

LARGE = [torch.ones(512, 512), torch.zeros(512, 512)]
ELSEWHERE = torch.device("meta")


def test_weights_are_merged_on_the_device() -> None:
    with MergedOn(ELSEWHERE):
        stacked = torch.stack(LARGE, dim=0)
        assert stacked.device == ELSEWHERE
        assert torch.cat([stacked, stacked], dim=1).shape == (2, 1024, 512)
        assert torch.cat((stacked, torch.ones(2, 5, 512)), 1).shape == (2, 517, 512)
    assert torch.stack(LARGE).device.type == "cpu"


def test_small_tensors_and_other_functions_stay_on_the_host() -> None:
    with MergedOn(ELSEWHERE):
        assert torch.cat([torch.ones(3), torch.ones(2)]).tolist() == [1.0] * 5
        assert torch.stack([torch.ones(2)]).device.type == "cpu"
        assert torch.add(*LARGE).device.type == "cpu"


def test_without_memory_on_the_device_weights_are_merged_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: torch.Tensor, *args: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory is left")

    monkeypatch.setattr(torch.Tensor, "to", full)
    with MergedOn(ELSEWHERE):
        assert torch.cat(LARGE).device.type == "cpu"


def test_a_model_on_the_host_is_loaded_without_merging(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded, "MergedOn", None)
    assert make_engine().generate([[1, 2]])
