"""Engine options and sampling parameters: errors for invalid ones, defaults, and the sizes of pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import switchrail
import torch
from switchrail.engine import Engine, EngineOptions, SamplingParams
from switchrail.engine.memory import Pools
from switchrail.engine.options import options_on
from switchrail.errors import (
    ArgumentError,
    ConfigError,
    NoBackendError,
    PlatformError,
    PreferenceError,
    RequestError,
    UnknownBackendError,
)
from switchrail.platforms import CpuPlatform, described
from switchrail.pools import ConvShape, DeltaShape, FreeList, KVShape, Shape


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_sequences": 0}, "max_sequences must be an integer of at least 1, got 0"),
        ({"max_sequences": True}, "max_sequences"),
        ({"max_sequences": 8, "max_tokens_per_step": 7}, r"at least max_sequences \(8\), got 7"),
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


def test_options_of_a_wrong_type() -> None:
    with pytest.raises(ConfigError, match="EngineOptions or a mapping of names to values, got 5"):
        EngineOptions.of(5)  # type: ignore[arg-type]


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineOptions(page_size=0, num_pages=0)
    assert set(caught.value.problems) == {"page_size", "num_pages"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be an integer of at least 1, got 0"),
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


class Mute:
    """An object whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("mute")


NO_VALUES: list[Any] = [
    [], {}, object, 1j, b"x", "x", -(10**5000), 2**64, 10**5000, float("nan"), float("inf"), -1, Mute()
]  # fmt: skip


@pytest.mark.parametrize("cls", [EngineOptions, SamplingParams])
def test_every_field_names_itself(cls: type[Any]) -> None:
    """The error for an invalid value names its field, even if the value has no repr or 5,000 digits."""
    for name in [field.name for field in fields(cls)]:
        errors: list[ConfigError | RequestError] = []
        for value in NO_VALUES:
            try:
                cls(**{name: value})
            except (ConfigError, RequestError) as error:
                errors.append(error)
        assert len(errors) >= len(NO_VALUES) - 2, name
        for error in errors:
            assert set(error.problems) == {name}
            assert error.problems[name].startswith(f"{name} must be ")
            assert len(str(error)) < 400


def test_seeds_have_64_bits(make_engine: Callable[..., Engine]) -> None:
    """A seed of more than 64 bits is refused, because torch does not accept one."""
    before = torch.get_rng_state()
    make_engine(options={"seed": 2**64 - 1})
    torch.set_rng_state(before)
    with pytest.raises(
        ConfigError, match="seed must be None or an integer of at least 0, got an integer of 65 bits"
    ):
        make_engine(options={"seed": 2**64})


def test_the_largest_options_are_refused_before_anything_is_allocated(
    make_engine: Callable[..., Engine],
) -> None:
    most = 2**64 - 1
    for name in ("max_sequences", "page_size", "num_pages", "max_length"):
        with pytest.raises((ConfigError, ArgumentError), match=name):
            make_engine(options={name: most, "max_tokens_per_step": most})
    engine = make_engine(options={"max_tokens_per_step": most, "prefill_chunk": most})
    assert engine.generate(["a"], SamplingParams(max_new_tokens=2, seed=most, temperature=1e-320, top_k=most))


def test_sequences_longer_than_the_models_limit(make_engine: Callable[..., Engine]) -> None:
    with pytest.raises(ConfigError, match="1025, but the model supports at most 1024"):
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


SHAPES: dict[tuple[int, str], Shape] = {
    (0, "attention"): KVShape(heads=2, size=16),
    (1, "gated_delta"): DeltaShape(heads=4, value_size=8, key_size=4),
    (1, "short_conv"): ConvShape(channels=10, width=4),
}


def memory_of(free: Any, used: Any = 1 << 30) -> CpuPlatform:
    """A CPU platform that reports these amounts of free memory and of memory in use."""
    platform = CpuPlatform()
    hardware = platform.hardware
    hardware.total_memory = lambda: free if used is None else free + used  # type: ignore[method-assign]
    hardware.current_memory_usage = lambda: used  # type: ignore[method-assign]
    return platform


def pools_of(platform: CpuPlatform, *, max_length: int = 1024, **options: Any) -> Pools:
    return Pools(
        SHAPES,
        EngineOptions(**options),
        platform=platform,
        max_length=max_length,
        dtype=torch.float32,
        state_dtype=torch.float32,
    )


@pytest.mark.parametrize(
    ("free", "options", "pages"),
    [
        (1 << 40, {}, 32 * 64 + 1),  # the largest number that could be needed
        (1 << 20, {"memory_fraction": 1.0}, ((1 << 20) - 33 * (632 + 64 * 4)) // 4096),
        (1 << 20, {"memory_fraction": 0.25}, ((1 << 18) - 33 * (632 + 64 * 4)) // 4096),
        (1 << 20, {}, (int(0.85 * 2**20) - 33 * (632 + 64 * 4)) // 4096),
        (0, {"num_pages": 7}, 7),
    ],
)
def test_number_of_pages(free: int, options: dict[str, Any], pages: int) -> None:
    assert pools_of(memory_of(free), **options).pages.capacity + 1 == pages


TOO_MUCH: list[dict[str, Any]] = [
    {"max_length": 10**12},
    {"max_length": 10**12, "num_pages": 7},
    {"max_length": 2**31 - 1},
    {"num_pages": 10**6},
    {"num_pages": 10**18},
    {"max_sequences": 10**9, "max_tokens_per_step": 10**9},
    {"max_sequences": 10**9, "max_tokens_per_step": 10**9, "num_pages": 7},
    {"page_size": 10**15},
    {"page_size": 10**15, "num_pages": 2},
]


@pytest.mark.parametrize("values", TOO_MUCH, ids=str)
def test_pools_that_do_not_fit_are_not_allocated(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pools that don't fit, and a page table of 8 TB, are refused before they are allocated.

    Such a table would be needed for 33 sequences of 10**12 tokens.
    """
    allocated = []
    for name in ("empty", "zeros"):
        monkeypatch.setattr(torch, name, lambda *size, **rest: allocated.append(size))
    monkeypatch.setattr(FreeList, "__init__", lambda self, count: allocated.append(count))
    with pytest.raises(ConfigError, match=r"can't hold the states of .*; change max_sequences, max_length,"):
        pools_of(memory_of(1 << 30), **values)
    assert allocated == []


def test_unknown_memory_needs_num_pages() -> None:
    """If a platform reports None as its memory, that means unknown, not 0 bytes, so num_pages is required."""
    for platform in (memory_of(None, None), memory_of(1 << 30, None)):
        with pytest.raises(ConfigError, match="'cpu' doesn't say how much memory is free; give num_pages"):
            pools_of(platform)
        assert pools_of(platform, num_pages=7).pages.capacity == 6


@pytest.mark.parametrize("total", [0, -1, float("nan"), float("inf"), "16 GiB", True, []])
def test_an_invalid_size_of_memory(total: Any) -> None:
    for options in ({}, {"num_pages": 7}):
        with pytest.raises(
            PlatformError, match=r"'cpu' gives .* for total_memory\(\); valid: bytes, at least 1"
        ):
            pools_of(memory_of(total, None), **options)


def test_no_room_for_the_pools(make_engine: Callable[..., Engine]) -> None:
    with pytest.raises(ConfigError, match="can't hold the states of 32 sequences"):
        make_engine(device=memory_of(100_000))


@pytest.mark.parametrize(
    ("values", "memory_fraction", "page_size"),
    [
        (None, 0.25, 8),
        ({"page_size": 4}, 0.25, 4),
        ({"page_size": None, "memory_fraction": 0.5}, 0.5, 8),
        (EngineOptions(), 0.25, 16),
        (EngineOptions(memory_fraction=0.5), 0.5, 16),
    ],
)
def test_a_platform_sets_the_options_left_open(values: Any, memory_fraction: float, page_size: int) -> None:
    found = EngineOptions.of(values, {"memory_fraction": 0.25, "page_size": 8})
    assert (found.memory_fraction, found.page_size) == (memory_fraction, page_size)


@pytest.mark.parametrize(
    ("values", "sequences"), [(None, 256), ({"max_tokens_per_step": 64}, 64), ({"max_sequences": 7}, 7)]
)
def test_a_platform_asks_for_no_more_sequences_than_a_step_has_rows(values: Any, sequences: int) -> None:
    defaults = {"max_tokens_per_step": 8192, "max_sequences": 256}
    assert EngineOptions.of(values, defaults).max_sequences == sequences


@pytest.mark.parametrize(("rows", "sequences"), [(8, 8), (100, 32)])
def test_no_more_sequences_run_by_default_than_a_step_has_rows(rows: int, sequences: int) -> None:
    assert EngineOptions.of({"max_tokens_per_step": rows}).max_sequences == sequences


@pytest.mark.parametrize(("gib", "sequences"), [(24, 32), (79, 256), (141, 256), (None, 32)])
def test_large_gpus_run_as_many_sequences_as_were_measured(
    monkeypatch: pytest.MonkeyPatch, gib: int | None, sequences: int
) -> None:
    platform = described("cuda:9.0")
    total = None if gib is None else gib * 2**30
    monkeypatch.setattr(platform.hardware, "total_memory", lambda: total)
    found = options_on(platform, None)
    assert (found.max_sequences, found.max_tokens_per_step, found.page_size) == (sequences, 8192, 64)


def test_pools_have_the_computed_sizes(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(options={"num_pages": 9, "page_size": 4, "max_sequences": 3})
    pools = engine.pools
    assert [tensor.shape for tensor in pools.kv["mha"].caches(1)] == [(9, 4, 2, 16)] * 2
    assert pools.state.states[0].shape == (4, 4, 16, 16)
    assert pools.state.windows[0].shape == (4, 2 * 2 * 16 + 4 * 16, 3)
    assert pools.state.windows[0].stride() == (128 * 3, 1, 128)
    assert pools.nbytes == sum(tensor.numel() * tensor.itemsize for tensor in pools.tensors())
