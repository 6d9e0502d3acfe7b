"""Tests of pools without an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from switchrail.errors import UnknownLayerError
from switchrail.ops import MlaCall, MlaLayer, PagedBatch
from switchrail.ops.mla.torch import TorchMla
from switchrail.pools import (
    ConvShape,
    DeltaShape,
    FreeList,
    KVPool,
    KVShape,
    LatentPool,
    LatentShape,
    MultiHeadPool,
    StatePool,
)

PAGES, PAGE = 6, 4
CPU = torch.device("cpu")


def multi_head_pool() -> MultiHeadPool:
    shapes = {1: KVShape(heads=2, size=8), 5: KVShape(heads=1, size=4)}
    return MultiHeadPool(shapes, num_pages=PAGES, page_size=PAGE, dtype=torch.float32, device=CPU)


def latent_pool() -> LatentPool:
    shapes = {0: LatentShape(latent=12, rotary=4), 3: LatentShape(latent=6, rotary=2)}
    return LatentPool(shapes, num_pages=PAGES, page_size=PAGE, dtype=torch.bfloat16, device=CPU)


def test_keys_and_values_go_where_their_rows_say() -> None:
    pool = multi_head_pool()
    for tensor in pool.tensors():
        tensor.zero_()
    k, v = torch.randn(2, 3, 2, 8).unbind(0)
    rows = torch.tensor([5, 23, 8])
    pool.write(1, rows, k, v)
    for cache, values in zip(pool.caches(1), (k, v), strict=True):
        assert cache.shape == (PAGES, PAGE, 2, 8)
        assert torch.equal(cache.flatten(0, 1)[rows], values)
        assert cache.count_nonzero() == values.numel()
    assert not any(cache.any() for cache in pool.caches(5))
    assert [cache.shape for cache in pool.caches(5)] == [(PAGES, PAGE, 1, 4)] * 2


def test_latents_and_rotary_parts_lie_in_one_tensor() -> None:
    pool = latent_pool()
    for tensor in pool.tensors():
        tensor.zero_()
    latents, rotary = torch.randn(3, 12).bfloat16(), torch.randn(3, 4).bfloat16()
    rows = torch.tensor([0, 23, 8])
    pool.write(0, rows, latents, rotary)
    (cache,) = pool.caches(0)
    assert (cache.shape, cache.dtype) == ((PAGES, PAGE, 16), torch.bfloat16)
    assert cache.is_contiguous()
    parts = pool.parts(0)
    assert [part.shape for part in parts] == [(PAGES, PAGE, 12), (PAGES, PAGE, 4)]
    assert all(part.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr() for part in parts)
    for part, written in zip(parts, (latents, rotary), strict=True):
        assert torch.equal(part[rows // PAGE, rows % PAGE], written)
    assert torch.equal(cache.flatten(0, 1)[rows], torch.cat((latents, rotary), dim=-1))
    assert cache.count_nonzero() == 3 * 16
    assert not pool.caches(3)[0].any()


def test_latent_attention_reads_the_pool() -> None:
    """One sequence of 7 tokens on shuffled pages, compared with softmax attention over the written values."""
    heads, size, latent, rotary = 3, 5, 12, 4
    shape = {2: LatentShape(latent=latent, rotary=rotary)}
    pool = LatentPool(shape, num_pages=PAGES, page_size=PAGE, dtype=torch.float64, device=CPU)
    c, r = torch.randn(7, latent, dtype=torch.float64), torch.randn(7, rotary, dtype=torch.float64)
    pages = [4, 2]
    pool.write(2, torch.tensor([pages[i // PAGE] * PAGE + i % PAGE for i in range(7)]), c, r)
    q_nope, q_rope = torch.randn(1, heads, size, dtype=torch.float64), torch.randn(1, heads, rotary).double()
    w_k, w_v = torch.randn(2, heads, size, latent, dtype=torch.float64).unbind(0)
    out = torch.empty(1, heads, size, dtype=torch.float64)
    batch = PagedBatch(
        cu_seqlens=torch.tensor([0, 1], dtype=torch.int32),
        seqlens=(1,),
        page_table=torch.tensor([pages], dtype=torch.int32),
        kv_lens=torch.tensor([7], dtype=torch.int32),
        kv_seqlens=(7,),
    )
    backend = TorchMla()
    (kv_cache,) = pool.caches(2)
    layer = MlaLayer(kv_cache=kv_cache, w_k=w_k, w_v=w_v, scale=0.3)
    backend.run(MlaCall(layer, q_nope, q_rope, out), batch, backend.plan("decode", batch))
    keys = torch.cat([torch.einsum("hdr,tr->thd", w_k, c), r[:, None].expand(-1, heads, -1)], dim=-1)
    scores = torch.einsum("hd,thd->ht", torch.cat([q_nope, q_rope], dim=-1)[0], keys) * 0.3
    expected = torch.einsum("ht,hvr,tr->hv", scores.softmax(-1), w_v, c)
    torch.testing.assert_close(out[0], expected)


@pytest.mark.parametrize("wrong", [(1,), (1, 2, 3)])
def test_a_pool_refuses_a_wrong_number_of_tensors(wrong: tuple[int, ...]) -> None:
    pool = multi_head_pool()
    with pytest.raises(ValueError, match="zip"):
        pool.write(1, torch.tensor([1]), *[torch.zeros(1, 2, 8)] * len(wrong))


@pytest.mark.parametrize("make", [multi_head_pool, latent_pool])
@pytest.mark.parametrize("layer", [2, -1, None, "1", [1]])
def test_a_layer_that_the_pool_does_not_have(make: Callable[[], KVPool[Any]], layer: Any) -> None:
    pool = make()
    valid = "1, 5" if isinstance(pool, MultiHeadPool) else "0, 3"
    calls: list[Callable[[], object]] = [
        lambda: pool.caches(layer),
        lambda: pool.write(layer, torch.tensor([1]), torch.zeros(1, 12), torch.zeros(1, 4)),
    ]
    if isinstance(pool, LatentPool):
        calls.append(lambda: pool.parts(layer))
    for call in calls:
        with pytest.raises(UnknownLayerError, match=f"no cache for layer .*; valid: {valid}") as caught:
            call()
        assert caught.value.found is layer


@pytest.mark.parametrize("make", [multi_head_pool, latent_pool])
def test_the_bytes_of_a_page_are_those_allocated(make: type[KVPool[KVShape]]) -> None:
    pool = make()  # type: ignore[call-arg]
    dtype = pool.tensors()[0].dtype
    shapes = (
        [KVShape(heads=2, size=8), KVShape(heads=1, size=4)]
        if isinstance(pool, MultiHeadPool)
        else [LatentShape(latent=12, rotary=4), LatentShape(latent=6, rotary=2)]
    )
    allocated = sum(tensor.nbytes for tensor in pool.tensors())
    assert allocated == PAGES * pool.page_bytes(shapes, PAGE, dtype)  # type: ignore[arg-type]
    assert len(pool.tensors()) == (4 if isinstance(pool, MultiHeadPool) else 2)


def test_the_bytes_of_a_slot_are_those_allocated() -> None:
    shapes = {
        (0, "gated_delta"): DeltaShape(heads=4, value_size=8, key_size=4),
        (0, "short_conv"): ConvShape(channels=10, width=4),
        (2, "short_conv"): ConvShape(channels=6, width=3),
    }
    pool = StatePool(shapes, num_slots=5, dtype=torch.bfloat16, state_dtype=torch.float32, device=CPU)
    allocated = sum(tensor.nbytes for tensor in pool.tensors())
    assert allocated == 5 * StatePool.slot_bytes(shapes.values(), torch.bfloat16, torch.float32)
    assert (pool.states[0].shape, pool.states[0].dtype) == ((5, 4, 8, 4), torch.float32)
    assert (pool.windows[0].shape, pool.windows[0].stride()) == ((5, 10, 3), (30, 1, 10))
    assert set(pool.windows) == {0, 2}


@given(st.integers(2, 40), st.lists(st.integers(0, 9)))
def test_numbers_are_given_out_once(count: int, wanted: list[int]) -> None:
    free = FreeList(count)
    taken: list[list[int]] = []
    for number in wanted:
        if number <= len(free):
            taken.append(free.take(number))
        elif taken:
            free.give(taken.pop(0))
        held = [number for numbers in taken for number in numbers]
        assert len(set(held)) == len(held) == free.capacity - len(free)
        assert all(0 < number < count for number in held)
    for numbers in taken:
        free.give(numbers)
    assert sorted(free.take(free.capacity)) == list(range(1, count))


def test_a_free_number_can_not_be_given_back() -> None:
    free = FreeList(3)
    numbers = free.take(1)
    free.give(numbers)
    with pytest.raises(AssertionError, match="is not taken"):
        free.give(numbers)
    with pytest.raises(AssertionError, match="3 wanted, 2 free"):
        free.take(3)
