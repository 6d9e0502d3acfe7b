"""Softmax attention on SGLang's cache, with stand-ins for SGLang's classes."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from switchrail.errors import BridgeError
from torch import nn

from tests.sglang_bridge.runner import make_backend
from tests.sglang_bridge.test_linear import TREES, Mode, allocations, links

H, HKV, D, LAYERS, REQUESTS, LONGEST = 4, 2, 8, 2, 4, 32


class Cache:
    """SGLang's cache, with one row per token. The first page is padding."""

    swa_kv_pool = None
    full_attention_layer_id_mapping = {i: i for i in range(LAYERS)}  # noqa: RUF012

    def __init__(self, tokens, page):
        self.keys, self.values = torch.zeros(2, LAYERS, tokens + page, HKV, D)
        self.places = []

    def get_key_buffer(self, layer_id):
        return self.keys[layer_id]

    def get_value_buffer(self, layer_id):
        return self.values[layer_id]

    def set_kv_buffer(self, layer, place, k, v):
        self.places.append(type(place).__name__)
        rows = getattr(place, "loc", place)
        self.keys[layer.layer_id, rows], self.values[layer.layer_id, rows] = k, v


@pytest.fixture
def made(runtime, version):
    """Returns a function that makes a model's attention backend in SGLang, and its runner."""

    def make(
        page=1,
        name="switchrail",
        tokens=64,
        drafts=None,
        context=LONGEST,
        backends=None,
        mode="prefill",
        **more,
    ):
        attention = import_module("sglang.srt.layers.radix_attention").RadixAttention
        layers = nn.ModuleList(
            attention(H, D, D**-0.5, HKV, i, **{"sliding_window_size": 4 if i else -1, **more})
            for i in range(LAYERS)
        )
        layers.append(attention(H, D, D**-0.5, HKV, LAYERS + 1))  # the cache has no keys and values of it
        return make_backend(
            version,
            name,
            layers,
            Cache(tokens, page),
            page=page,
            pages=tokens // page,
            requests=REQUESTS,
            longest=LONGEST,
            drafts=drafts,
            options={"speculative_attention_mode": mode},
            use_mla_backend=False,
            prefill_attention_backend_str=(backends or (name, name))[0],
            decode_attention_backend_str=(backends or (name, name))[1],
            model_config=SimpleNamespace(context_len=context),
        )

    return make


def passed(backend, runner, mode, request, prefix, rows):
    """Run a request's new rows through all layers; compare with attention to all its keys and values."""
    length = prefix + rows
    places = runner.req_to_token_pool.req_to_token[request]
    batch = SimpleNamespace(
        forward_mode=Mode(mode),
        batch_size=1,
        seq_lens=torch.tensor([length]),
        seq_lens_cpu=torch.tensor([length]),
        extend_seq_lens_cpu=[rows],
        req_pool_indices=torch.tensor([request]),
        out_cache_loc=places[prefix:length].long(),
    )
    backend.init_forward_metadata(batch)
    run = backend.forward_decode if mode == "decode" else backend.forward_extend
    for layer in runner.model[:LAYERS]:
        q, k, v = torch.randn(rows, H * D), torch.randn(rows, HKV, D), torch.randn(rows, HKV, D)
        got = run(q, k, v, layer, batch)
        keys, values = (
            cache[layer.layer_id, places[:length].long()].repeat_interleave(H // HKV, 1).transpose(0, 1)
            for cache in (runner.token_to_kv_pool.keys, runner.token_to_kv_pool.values)
        )
        torch.testing.assert_close(keys[:: H // HKV, prefix:], k.transpose(0, 1))
        apart = (prefix + torch.arange(rows))[:, None] - torch.arange(length)
        seen = apart >= 0
        if layer.sliding_window_size > 0:
            seen &= apart <= layer.sliding_window_size
        want = nn.functional.scaled_dot_product_attention(
            q.view(rows, H, D).transpose(0, 1), keys, values, attn_mask=seen, scale=layer.scaling
        )
        torch.testing.assert_close(got, want.transpose(0, 1).reshape(rows, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("page", [1, 4])
def test_prompts_and_tokens_on_sglangs_cache(made, version, page):
    backend, runner = made(page)
    passed(backend, runner, "extend", 1, 0, 7)
    passed(backend, runner, "extend", 2, 0, 3)
    passed(backend, runner, "extend", 1, 7, 6)
    passed(backend, runner, "decode", 1, 13, 1)
    passed(backend, runner, "decode", 2, 3, 1)
    backend.steps.end()
    assert backend.steps.bypassed == 0
    assert set(runner.token_to_kv_pool.places) == {"KVWriteLoc" if version == "v23" else "Tensor"}
    bound = backend.steps.dispatchers["decode"].bound
    assert {(phase, name) for _, op, phase, name in bound.plan.table if op == "attention"} == {
        ("prefill", "torch"),
        ("decode", "torch"),
    }


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("tree", [False, True])
def test_drafts_are_verified(made, page, tree):
    """Each drafted token attends to the sequence, to its ancestors in the tree, and to itself."""
    torch.manual_seed(4)
    backend, runner = made(page, drafts=(6, 4 if tree else 1), sliding_window_size=-1)
    trees, prefixes = (TREES if tree else [TREES[1]] * 3), [5, 9, 3]
    for request, prefix in enumerate(prefixes, 1):
        passed(backend, runner, "extend", request, 0, prefix)
    children, siblings = links(trees)
    table = runner.req_to_token_pool.req_to_token
    places = torch.cat([table[n, prefix : prefix + 6] for n, prefix in enumerate(prefixes, 1)]).long()
    batch = SimpleNamespace(
        forward_mode=Mode("verify"),
        batch_size=3,
        seq_lens=torch.tensor(prefixes),
        seq_lens_cpu=torch.tensor(prefixes),
        req_pool_indices=torch.tensor([1, 2, 3]),
        out_cache_loc=places,
        spec_info=SimpleNamespace(retrieve_next_token=children, retrieve_next_sibling=siblings),
    )
    backend.init_forward_metadata(batch)
    verified(backend, runner, batch, trees, prefixes)
    backend.steps.end()
    assert backend.steps.bypassed == 0


def test_recorded_passes_are_repeated_with_other_tables(made, version):
    """Without a GPU, nothing is recorded: each pass runs again on tables with new contents."""
    torch.manual_seed(8)
    backend, runner = made(4, name="switchrail:recorded", drafts=(6, 4), sliding_window_size=-1)
    backend.init_cuda_graph_state(4, 24)
    for request, prefix in enumerate((5, 9, 3), 1):
        passed(backend, runner, "extend", request, 0, prefix)
    table = runner.req_to_token_pool.req_to_token

    def prepare(mode, requests, prefixes, tree, *, capture):
        lengths = torch.tensor(prefixes)
        batch = SimpleNamespace(
            forward_mode=Mode(mode),
            batch_size=len(requests),
            seq_lens=lengths,
            seq_lens_cpu=lengths,
            req_pool_indices=torch.tensor(requests),
            spec_info=tree,
            out_cache_loc=torch.cat(
                [table[n, p : p + 6] for n, p in zip(requests, prefixes, strict=True)]
            ).long(),
        )
        if version == "v23":
            backend.init_forward_metadata_out_graph(batch, in_capture=capture)
        elif capture:
            backend.init_forward_metadata_capture_cuda_graph(
                *(len(requests), 6 * len(requests), batch.req_pool_indices, lengths, None),
                *(batch.forward_mode, tree),
            )
        else:
            backend.init_forward_metadata_replay_cuda_graph(
                *(len(requests), batch.req_pool_indices, lengths, 0, None),
                *(batch.forward_mode, tree, lengths),
            )
        return batch

    def tree_of(trees):
        children, siblings = links(trees)
        return SimpleNamespace(retrieve_next_token=children, retrieve_next_sibling=siblings)

    prepare("verify", [1, 2, 3], [5, 9, 3], None, capture=True)
    batch = prepare("verify", [1, 2, 3], [5, 9, 3], tree_of(TREES), capture=False)
    verified(backend, runner, batch, TREES, [5, 9, 3])
    batch = prepare("verify", [1, 2, 3], [4, 7, 2], tree_of(TREES[::-1]), capture=False)
    verified(backend, runner, batch, TREES[::-1], [4, 7, 2])
    backend.update_verify_buffers_to_fill_after_draft(tree_of(TREES), 3)
    verified(backend, runner, batch, TREES, [4, 7, 2])


@pytest.mark.parametrize("page", [1, 4])
def test_recorded_drafts_reach_beyond_the_longest_context(made, version, page):
    """SGLang's table of tokens has room for drafts after the longest context."""
    backend, runner = made(
        page, name="switchrail:recorded", drafts=(6, 1), context=LONGEST - 6, sliding_window_size=-1
    )
    backend.init_cuda_graph_state(1, 6)
    requests, mode = torch.tensor([1]), Mode("verify")
    backend._prepare_graph(1, requests, torch.tensor([1]), None, mode, None)
    backend._prepare_graph(1, requests, torch.tensor([LONGEST - 6]), torch.tensor([LONGEST - 6]), mode, None)
    part = backend.steps.captured("verify", 1)
    assert part.pages.kv_seqlens == (LONGEST,)
    assert torch.equal(part.pages.page_table, runner.req_to_token_pool.req_to_token[1:2, ::page] // page)


def verified(backend, runner, batch, trees, prefixes):
    """Run all requests' drafts through all layers; compare with attention to prefixes and ancestors."""
    table = runner.req_to_token_pool.req_to_token
    count = 6 * len(trees)
    for layer in runner.model[:LAYERS]:
        q, k, v = torch.randn(count, H * D), torch.randn(count, HKV, D), torch.randn(count, HKV, D)
        got = backend.forward_extend(q, k, v, layer, batch)
        for n, (parents, prefix) in enumerate(zip(trees, prefixes, strict=True)):
            seen = torch.zeros(6, prefix + 6, dtype=torch.bool)
            seen[:, :prefix] = True
            for row in range(6):
                each = row
                while each >= 0:
                    seen[row, prefix + each] = True
                    each = parents[each]
            keys, values = (
                cache[layer.layer_id, table[n + 1, : prefix + 6].long()].repeat_interleave(H // HKV, 1)
                for cache in (runner.token_to_kv_pool.keys, runner.token_to_kv_pool.values)
            )
            want = nn.functional.scaled_dot_product_attention(
                q[n * 6 : n * 6 + 6].view(6, H, D).transpose(0, 1),
                keys.transpose(0, 1),
                values.transpose(0, 1),
                attn_mask=seen,
                scale=layer.scaling,
            )
            own = got[n * 6 : n * 6 + 6]
            torch.testing.assert_close(own, want.transpose(0, 1).reshape(6, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("backends", "mode", "phases"),
    [
        (("switchrail", "triton"), "prefill", {"prefill", "verify"}),
        (("switchrail", "triton"), "decode", {"prefill"}),
        (("triton", "switchrail"), "prefill", {"decode"}),
        (("triton", "switchrail"), "decode", {"decode", "verify"}),
    ],
)
def test_a_name_chosen_for_one_phase_serves_no_other(made, backends, mode, phases):
    backend, _ = made(drafts=(6, 1), backends=backends, mode=mode)
    assert backend.steps.dispatchers.keys() == phases
    dispatchers = backend.steps.dispatchers.values()
    assert {phase for each in dispatchers for _, _, phase, _ in each.bound.plan.table} == phases


def test_a_name_chooses_the_backend(made):
    backend, _ = made(name="switchrail:reference")
    bound = backend.steps.dispatchers["decode"].bound
    assert {name for _, op, _, name in bound.plan.table if op == "attention"} == {"reference"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kv_cache_dtype": torch.float8_e4m3fn}, "float8_e4m3fn; valid: torch.float32"),
    ],
)
def test_options_that_are_not_served_are_refused_at_the_start(made, monkeypatch, change, problem):
    _, runner = made()
    make = import_module("sglang.srt.layers.attention.attention_registry").ATTENTION_BACKENDS["switchrail"]
    with pytest.raises(BridgeError, match=problem):
        make(SimpleNamespace(**{**vars(runner), **change}))


@pytest.mark.parametrize(
    ("layer", "problem"),
    [
        ({"v_head_dim": 4}, "values of another size"),
        ({"is_cross_attention": True}, "attends to an encoder"),
        ({"attn_type": "encoder_only"}, "later positions"),
    ],
)
def test_a_layer_that_is_not_served_is_refused_at_the_start(made, layer, problem):
    with pytest.raises(BridgeError, match=f"layer 0 .*{problem}"):
        made(**layer)


def test_padding_rows_are_zeros(made):
    backend, runner = made()
    batch = SimpleNamespace(
        forward_mode=Mode("extend"),
        batch_size=1,
        seq_lens=torch.tensor([3]),
        seq_lens_cpu=torch.tensor([3]),
        extend_seq_lens_cpu=[3],
        req_pool_indices=torch.tensor([1]),
        out_cache_loc=torch.cat([runner.req_to_token_pool.req_to_token[1, :3].long(), torch.zeros(2).long()]),
    )
    backend.init_forward_metadata(batch)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        q, k, v = torch.randn(5, H * D), torch.randn(5, HKV, D), torch.randn(5, HKV, D)
        out = backend.forward_extend(q, k, v, runner.model[0], batch)
    finally:
        torch.use_deterministic_algorithms(False)
    assert out[:3].isfinite().all()
    assert not out[3:].any()


def test_larger_pools_change_no_allocation(made):
    counts = []
    for tokens in (64, 128):
        backend, runner = made(tokens=tokens)
        steps = [("extend", 1, 0, 7), ("decode", 1, 7, 1)]
        for step in steps:
            passed(backend, runner, *step)
        counts.append([allocations(passed, backend, runner, *step) for step in steps])
    assert counts[0] == counts[1]
    assert all(counts[0])
