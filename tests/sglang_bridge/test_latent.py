"""Latent attention on SGLang's pool of latents, with stand-ins for SGLang's classes."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from switchrail.ops.softmax import merge
from torch import nn

from tests.sglang_bridge.runner import make_backend
from tests.sglang_bridge.test_linear import TREES, Mode, allocations, links

H, R, E, NOPE, V, LAYERS, LONGEST, TOKENS = 2, 16, 8, 8, 12, 2, 48, 160
SCALE = (NOPE + E) ** -0.5


class Cache:
    """SGLang's pool of latents, each followed by the rotated part of the key."""

    swa_kv_pool = None
    kv_lora_rank = R

    def __init__(self, page, tokens):
        self.latents = torch.zeros(LAYERS, tokens + page, 1, R + E)

    def get_key_buffer(self, layer_id):
        return self.latents[layer_id]

    def set_kv_buffer(self, layer, place, k, v):
        self.latents[layer.layer_id, getattr(place, "loc", place)] = k


class Layer(nn.Module):
    """A layer: SGLang's modules for attention to latents and to expanded keys, and the expanding weights."""

    def __init__(self, id):
        super().__init__()
        attention = import_module("sglang.srt.layers.radix_attention").RadixAttention
        self.attn_mqa = attention(H, R + E, SCALE, 1, id, v_head_dim=R)
        self.attn_mha = attention(H, NOPE + E, SCALE, H, id, v_head_dim=V)
        self.w_k, self.w_v = torch.randn(H, NOPE, R) * 0.3, torch.randn(H, V, R) * 0.3

    def expand(self, latents):
        """The keys and values of latents [S, R + E]."""
        latent, rotated = latents[..., :R], latents[..., R:]
        keys = torch.einsum("hdr,sr->shd", self.w_k.to(latents.dtype), latent)
        keys = torch.cat([keys, rotated[:, None].expand(-1, H, -1)], dim=-1)
        return keys, torch.einsum("hvr,sr->shv", self.w_v.to(latents.dtype), latent)

    def absorbed(self, q):
        """The queries [T, H, NOPE + E] as queries to latents [T, H, R + E]."""
        return torch.cat([torch.einsum("thd,hdr->thr", q[..., :NOPE], self.w_k), q[..., NOPE:]], dim=-1)

    def expected(self, q, latents, seen):
        """The results [T, H, V] of the attention of rows to the latents that they see, in float64."""
        keys, values = self.expand(latents.double())
        logits = torch.einsum("thd,shd->hts", q.double(), keys) * SCALE
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hts,shv->thv", weights, values)


@pytest.fixture
def made(runtime, version):
    """Returns a function that makes a model's attention backend in SGLang, and its runner."""

    def make(page=1, drafts=None, name="switchrail:torch", tokens=TOKENS):
        torch.manual_seed(7)
        return make_backend(
            version,
            name,
            nn.ModuleList(Layer(id) for id in range(LAYERS)),
            Cache(page, tokens),
            page=page,
            pages=TOKENS // page,
            requests=4,
            longest=LONGEST,
            drafts=drafts,
            use_mla_backend=True,
        )

    return make


def batch_of(runner, mode, prefixes, rows, **more):
    """The batch of a pass over requests 1, 2 and so on."""
    lengths = [prefix + count for prefix, count in zip(prefixes, rows, strict=True)]
    table = runner.req_to_token_pool.req_to_token
    places = torch.cat([table[n, p : p + c] for n, (p, c) in enumerate(zip(prefixes, rows, strict=True), 1)])
    counted = prefixes if mode == "verify" else lengths
    return SimpleNamespace(
        forward_mode=Mode(mode),
        batch_size=len(rows),
        seq_lens=torch.tensor(counted),
        seq_lens_cpu=torch.tensor(counted),
        extend_seq_lens_cpu=rows,
        req_pool_indices=torch.arange(1, len(rows) + 1),
        out_cache_loc=places.long(),
        attn_attend_prefix_cache=None,
        mha_return_lse=False,
        prefix_chunk_idx=None,
        **more,
    )


def stored(runner, layer, request, length):
    places = runner.req_to_token_pool.req_to_token[request, :length].long()
    return runner.token_to_kv_pool.latents[layer.attn_mqa.layer_id, places, 0]


def seen_by(prefix, rows, parents=None):
    """The positions that each row attends to: the prefix, its ancestors and itself."""
    seen = torch.zeros(rows, prefix + rows, dtype=torch.bool)
    seen[:, :prefix] = True
    for row in range(rows):
        each = row
        while each >= 0:
            seen[row, prefix + each] = True
            each = each - 1 if parents is None else parents[each]
    return seen


def absorbed(backend, runner, mode, prefixes, rows, trees=None, **more):
    """Run a pass of attention to latents through all layers, and compare with `Layer.expected`."""
    batch = batch_of(runner, mode, prefixes, rows, **more)
    backend.init_forward_metadata(batch)
    run = backend.forward_decode if mode == "decode" else backend.forward_extend
    for layer in runner.model:
        q, new = torch.randn(sum(rows), H, NOPE + E), torch.randn(sum(rows), 1, R + E)
        out = run(layer.absorbed(q).flatten(1), new, new[..., :R], layer.attn_mqa, batch)
        values = torch.einsum("thr,hvr->thv", out.view(-1, H, R), layer.w_v)
        for n, (prefix, count) in enumerate(zip(prefixes, rows, strict=True)):
            own = slice(sum(rows[:n]), sum(rows[: n + 1]))
            latents = stored(runner, layer, n + 1, prefix + count)
            torch.testing.assert_close(latents[prefix:], new[own, 0])
            want = layer.expected(q[own], latents, seen_by(prefix, count, trees and trees[n]))
            torch.testing.assert_close(values[own].double(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("page", [1, 4])
def test_prompts_tokens_and_drafts_on_the_cache_of_latents(made, page):
    backend, runner = made(page, drafts=(6, 4))
    children, siblings = links(TREES)
    absorbed(backend, runner, "extend", [0, 0, 0], [5, 9, 3])
    absorbed(backend, runner, "extend", [5, 9, 3], [2, 4, 7])
    absorbed(backend, runner, "decode", [7, 13, 10], [1, 1, 1])
    tree = SimpleNamespace(retrieve_next_token=children, retrieve_next_sibling=siblings)
    absorbed(backend, runner, "verify", [8, 14, 11], [6] * 3, TREES, spec_info=tree)
    backend.steps.end()
    assert backend.steps.bypassed == 0
    for one, phases in (("decode", {"prefill", "decode"}), ("verify", {"verify"})):
        bound = backend.steps.dispatchers[one].bound
        found = {(phase, name) for _, op, phase, name in bound.plan.table if op == "mla"}
        assert found == {(phase, "torch") for phase in phases}


@pytest.mark.parametrize("wrapped", [False, True])
def test_prompts_with_expanded_keys(made, version, wrapped):
    """A prefix is expanded in two chunks, whose results SGLang merges; the last row is padding."""
    backend, runner = made()
    prefixes, rows = [20, 0, 7], [4, 6, 3]
    absorbed(backend, runner, "extend", [0, 0, 0], [20, 1, 7])
    batch = batch_of(runner, "extend", prefixes, rows)
    backend.init_forward_metadata(batch)
    chunks = [[(0, 12), (0, 0), (0, 7)], [(12, 20), (0, 0), (7, 7)]]
    lengths = torch.tensor([[high - low for low, high in chunk] for chunk in chunks])
    batch.num_prefix_chunks = 2
    batch.prefix_chunk_seq_lens_cpu = lengths
    batch.prefix_chunk_cu_seq_lens = torch.nn.functional.pad(lengths.cumsum(1), (1, 0)).int()
    backend.init_mha_chunk_metadata(*((batch, False) if wrapped else (batch,)))
    for layer in runner.model:
        q, new = torch.randn(14, H, NOPE + E), torch.randn(14, R + E)
        before = [stored(runner, layer, n + 1, prefix) for n, prefix in enumerate(prefixes)]
        batch.attn_attend_prefix_cache, batch.mha_return_lse = False, True
        found = backend.forward_extend(q, *layer.expand(new), layer.attn_mha, batch, save_kv_cache=False)
        batch.attn_attend_prefix_cache = True
        for batch.prefix_chunk_idx, chunk in enumerate(chunks):
            cached = torch.cat(
                [latents[low:high] for latents, (low, high) in zip(before, chunk, strict=True)]
            )
            part = backend.forward_extend(
                q, *layer.expand(cached), layer.attn_mha, batch, save_kv_cache=False
            )
            found = merge(*found, *part)
        for n, (prefix, count) in enumerate(zip(prefixes, rows, strict=True)):
            own = slice(sum(rows[:n]), sum(rows[: n + 1]))
            want = layer.expected(q[own], torch.cat([before[n], new[own]]), seen_by(prefix, count))
            torch.testing.assert_close(found[0][own].double(), want, rtol=1e-4, atol=1e-5)
    backend.steps.end()
    assert backend.steps.bypassed == 0


def test_only_sglang_plans_expanded_keys(made, monkeypatch):
    """SGLang expands keys itself, so backends plan neither ragged nor chunked attention."""
    flags = set()

    def plan(self, plan, batch, ragged, chunked):
        flags.update((ragged, chunked))

    monkeypatch.setattr(import_module("switchrail.ops.mla.torch").TorchMla, "plan_chunked_prefix", plan)
    backend, runner = made()
    absorbed(backend, runner, "extend", [0, 0], [5, 3])
    assert flags == {False}


def test_sglang_expands_prefixes_in_chunks_for_our_names(made, version):
    made()
    if version == "v11":
        return
    module = import_module("sglang.srt.models.deepseek_common.attention_backend_handler")
    handler = module.AttentionBackendRegistry._handlers["switchrail:torch"]
    assert handler(None, None) == "switchrail:torch"
    choices = import_module("sglang.srt.arg_groups.choices")
    assert {"switchrail", "switchrail:torch"} <= {*choices.CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS}


def steps(backend, runner):
    """Run a pass of each phase on the cache of latents."""
    children, siblings = links(TREES)
    tree = SimpleNamespace(retrieve_next_token=children, retrieve_next_sibling=siblings)
    absorbed(backend, runner, "extend", [0, 0, 0], [5, 9, 3])
    absorbed(backend, runner, "decode", [5, 9, 3], [1, 1, 1])
    absorbed(backend, runner, "verify", [6, 10, 4], [6] * 3, TREES, spec_info=tree)


def test_larger_pools_change_no_allocation(made):
    counts = []
    for tokens in (TOKENS, 2 * TOKENS):
        backend, runner = made(drafts=(6, 4), tokens=tokens)
        steps(backend, runner)
        counts.append(allocations(steps, backend, runner))
    assert counts[0] == counts[1] > 0
