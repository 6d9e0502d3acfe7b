"""Options and choices that can't be: typed errors that say what can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import switchrail
import torch
from switchrail.engine import Engine, EngineOptions, SamplingParams, memory
from switchrail.engine.pools import ConvShape, DeltaShape, KVShape, page_bytes, slot_bytes
from switchrail.errors import (
    ConfigError,
    NoBackendError,
    PlatformError,
    PreferenceError,
    RequestError,
    UnknownBackendError,
)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_sequences": 0}, "max_sequences must be an integer of at least 1, found 0"),
        ({"max_sequences": True}, "max_sequences"),
        ({"max_sequences": 8, "max_tokens_per_step": 7}, r"at least max_sequences \(8\), found 7"),
        ({"prefill_chunk": 0}, "prefill_chunk must be None or"),
        ({"page_size": 1.5}, "page_size"),
        ({"num_pages": 1}, "num_pages"),
        ({"max_length": 1}, "max_length"),
        ({"memory_fraction": 0}, "memory_fraction"),
        ({"memory_fraction": 1.1}, "memory_fraction"),
        ({"max_seqs": 3}, "no option 'max_seqs'; nearest: max_sequences"),
    ],
)
def test_engine_options_out_of_range(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EngineOptions.of(values)


def test_options_that_are_no_options() -> None:
    with pytest.raises(ConfigError, match="EngineOptions or a mapping of names to values, found 5"):
        EngineOptions.of(5)  # type: ignore[arg-type]


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineOptions(page_size=0, num_pages=0)
    assert set(caught.value.problems) == {"page_size", "num_pages"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be an integer of at least 1, found 0"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"seed": -1}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ("a", 3)}, "stop"),
        ({"stop": None}, "stop"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"ignore_eos": 1}, "ignore_eos"),
    ],
)
def test_sampling_params_out_of_range(values: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        SamplingParams(**values)


def test_longer_than_the_model_was_made_for(make_engine: Callable[..., Engine]) -> None:
    with pytest.raises(ConfigError, match="1025, but the model was made for 1024"):
        make_engine(options={"max_length": 1025})


@pytest.mark.parametrize(
    ("backends", "error", "words"),
    [
        ({"gated_delta": "tritn"}, UnknownBackendError, "tritn"),
        ({"gated_dleta": "torch"}, PreferenceError, "gated_delta"),
        ({"attention.decod": "torch"}, Exception, "decode"),
    ],
)
def test_wrong_choices(
    make_engine: Callable[..., Engine], backends: dict[str, str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make_engine(backends=backends)


def test_a_layer_kind_without_a_backend(make_engine: Callable[..., Engine]) -> None:
    class NoDelta(switchrail.Runtime):
        def plan(self, *arguments: Any, **keywords: Any) -> Any:
            return super().plan(*arguments, **(keywords | {"state_layouts": {"gated_delta": "KV"}}))

    with pytest.raises(NoBackendError, match="gated_delta"):
        make_engine(runtime=NoDelta())


def test_no_such_device(make_engine: Callable[..., Engine]) -> None:
    with pytest.raises(PlatformError, match="cpu"):
        make_engine(device="cuda:99")


SHAPES = (
    KVShape(heads=2, size=16),
    DeltaShape(heads=4, value_size=8, key_size=4),
    ConvShape(channels=10, width=4),
)


def test_bytes_of_pages_and_slots() -> None:
    assert page_bytes(SHAPES, 8, torch.bfloat16) == 8 * 2 * 2 * 16 * 2
    assert slot_bytes(SHAPES, torch.bfloat16, torch.float32) == 4 * 8 * 4 * 4 + 10 * 3 * 2


@pytest.mark.parametrize(
    ("free", "options", "pages"),
    [
        (1 << 40, {}, 32 * 64 + 1),  # all that could be needed
        (1 << 20, {"memory_fraction": 1.0}, ((1 << 20) - 33 * 632) // 4096),
        (1 << 20, {}, ((1 << 18) - 33 * 632) // 4096),
        (0, {"num_pages": 7}, 7),
    ],
)
def test_number_of_pages(
    monkeypatch: pytest.MonkeyPatch, free: int, options: dict[str, Any], pages: int
) -> None:
    monkeypatch.setattr(memory, "_free_bytes", lambda platform: free)
    found = memory.choose_num_pages(
        EngineOptions(**options),
        SHAPES,
        max_length=1024,
        dtype=torch.float32,
        state_dtype=torch.float32,
        platform=switchrail.Platform.detect("cpu"),
    )
    assert found == pages


def test_no_room_for_the_pools(make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_free_bytes", lambda platform: 100_000)
    with pytest.raises(ConfigError, match="can't hold the states of 32 sequences"):
        make_engine()


def test_the_pools_take_what_their_sizes_say(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(options={"num_pages": 9, "page_size": 4, "max_sequences": 3})
    pools = engine.pools
    assert pools.kv[1][0].shape == (9, 4, 2, 16)
    assert pools.state[0].shape == (4, 4, 16, 16)
    assert pools.conv[0].shape == (4, 2 * 2 * 16 + 4 * 16, 3)
    assert pools.conv[0].stride() == (128 * 3, 1, 128)
    assert pools.nbytes == sum(tensor.numel() * tensor.itemsize for tensor in pools.tensors())
