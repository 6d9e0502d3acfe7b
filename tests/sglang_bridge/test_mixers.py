"""Lightning, Mamba2 and convolution-only layers on SGLang's memory, with stand-ins for SGLang's classes."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from switchrail.errors import DispatchError
from torch import nn

from tests.sglang_bridge.test_linear import TREES, Mode, allocations, enum, links

LAYERS, SLOTS, W = 2, 8, 4
H, D = 2, 8
G, S, P = 1, 16, 8
ATTENTION = "sglang.srt.layers.attention"

pytestmark = pytest.mark.parametrize("version", ["v23"], indirect=True)


class LightningModel(nn.Module):
    """Layers 0 and 2 are lightning attention, layers 1 and 3 softmax attention."""

    backend = f"{ATTENTION}.linear.lightning_backend.LightningAttentionBackend"
    op, state, channels, columns = "lightning", (H, D, D), 0, 3 * H * D

    def __init__(self, linear_backend="seg_la"):
        super().__init__()
        attention = import_module("sglang.srt.layers.radix_attention").RadixAttention
        self.linear_backend = linear_backend
        self.slopes = [torch.tensor([0.1, 0.7]).view(H, 1, 1) * (id + 1) for id in range(2 * LAYERS)]
        self.layers = nn.ModuleList(attention(H, D, 0.3, H, id) for id in range(2 * LAYERS))

    def run(self, backend, mode, id, x, batch):
        run = backend.forward_decode if mode == "decode" else backend.forward_extend
        return run(*x.split(H * D, dim=-1), self.layers[id], batch)

    def expected(self, id, x, conv, state):
        scale = 0.3 if self.linear_backend == "seg_la" else 1.0
        results = []
        for row in x:
            q, k, v = row.view(3, H, D)
            state = state * torch.exp(-self.slopes[id].double()) + k[:, :, None] * v[:, None]
            results.append(scale * (q[:, :, None] * state).sum(1).flatten())
        return torch.stack(results), conv, state


class MambaModel(nn.Module):
    backend = f"{ATTENTION}.hybrid_linear_attn_backend.Mamba2AttnBackend"
    op, state, channels = "mamba2", (H, P, S), H * P + 2 * G * S
    columns = 2 * H * P + 2 * G * S + H

    def __init__(self):
        super().__init__()
        shape = SimpleNamespace(
            num_heads=H,
            head_dim=P,
            ssm_state_size=S,
            conv_kernel=W,
            intermediate_size=H * P,
            conv_dim=self.channels,
        )
        make = import_module(f"{ATTENTION}.mamba.mamba").MambaMixer2
        self.layers = nn.ModuleList(
            make(SimpleNamespace(shape=shape), H * P, True, False, G) for _ in range(LAYERS)
        )
        for each in self.parameters():
            nn.init.normal_(each, std=0.5)
        for layer in self.layers:
            layer.A.data = -layer.A.data.exp()

    def run(self, backend, mode, id, x, batch):
        output = torch.empty(len(x), 2 * H * P)
        out = backend.forward(self.layers[id // 2], x, output, id, batch)
        assert torch.equal(out, output)
        assert torch.equal(out[:, H * P :], x[:, : H * P])  # the gate
        return out[:, : H * P]

    def expected(self, id, x, conv, state):
        layer, results = self.layers[id // 2], []
        weight, bias = layer.conv1d.weight.double().flatten(1), layer.conv1d.bias.double()
        for row in x:
            _, mixed, dt = row.split([H * P, self.channels, H])
            window = torch.cat([conv, mixed[:, None]], dim=1)
            conv = window[:, 1:]
            inputs, b, c = nn.functional.silu((window * weight).sum(1) + bias).split([H * P, S, S])
            step = nn.functional.softplus(dt + layer.dt_bias.double())
            inputs = inputs.view(H, P)
            state = state * torch.exp(step * layer.A.double())[:, None, None]
            state = state + (step[:, None] * inputs)[..., None] * b
            results.append(((state * c).sum(-1) + layer.D.double()[:, None] * inputs).flatten())
        return torch.stack(results), conv, state


class ConvolutionModel(nn.Module):
    backend = f"{ATTENTION}.linear.short_conv_backend.ShortConvAttnBackend"
    op, state, channels, columns = "short_conv", (0,), 6, 18

    def __init__(self):
        super().__init__()
        config = SimpleNamespace(hidden_size=self.channels, conv_L_cache=W)
        kinds = [
            import_module("sglang.srt.models.lfm2").Lfm2ShortConv,
            import_module("sglang.srt.models.lfm2_moe").Lfm2MoeShortConv,
        ]
        self.layers = nn.ModuleList(kinds[i](config, 2 * i) for i in range(LAYERS))
        for each in self.parameters():
            nn.init.normal_(each)

    def run(self, backend, mode, id, x, batch):
        current = import_module("sglang.srt.model_executor.forward_context").CURRENT
        current[:] = [SimpleNamespace(linear_attn_backend=backend)]
        return self.layers[id // 2](x, batch)

    def expected(self, id, x, conv, state):
        layer, results = self.layers[id // 2], []
        for row in x:
            before, after, inputs = row.split(self.channels)
            window = torch.cat([conv, (before * inputs)[:, None]], dim=1)
            conv = window[:, 1:]
            results.append(after * ((window * layer.conv_weight.double()).sum(1) + layer.conv_bias.double()))
        return torch.stack(results), conv, state


class Pools:
    """SGLang's convolution windows and states of layers 0 and 2."""

    def __init__(self, model, drafted, slots):
        self.mamba_map = {2 * i: i for i in range(LAYERS)}
        self.conv = torch.randn(LAYERS, slots, model.channels, W - 1)
        self.temporal = torch.randn(LAYERS, slots, *model.state)
        self.conv_rows = torch.zeros(LAYERS, 4, drafted, model.channels, W - 1)
        self.rows = torch.zeros(LAYERS, 4, drafted, *model.state)

    def mamba2_layer_cache(self, id):
        i = self.mamba_map[id]
        return SimpleNamespace(
            conv=[self.conv[i]],
            temporal=self.temporal[i],
            intermediate_ssm=self.rows[i],
            intermediate_conv_window=[self.conv_rows[i]],
        )


@pytest.fixture
def made(runtime):
    """Returns a function that makes a model's backend in SGLang, the model and its pools."""

    def make(kind, *arguments, name="switchrail:torch", drafts=(6, 4), slots=SLOTS, decode=None):
        torch.manual_seed(5)
        model = kind(*arguments)
        options = dict(
            zip(
                ("speculative_algorithm", "speculative_num_draft_tokens", "speculative_eagle_topk"),
                ("EAGLE", *drafts),
                strict=True,
            )
        )
        import_module("sglang.srt.runtime_context").OPTIONS.update(
            options, linear_attn_backend=decode or name
        )
        runner = SimpleNamespace(
            model=model,
            device="cpu",
            dtype=torch.float32,
            is_draft_worker=False,
            kv_cache_dtype_str="auto",
            linear_attn_backends=SimpleNamespace(decode=enum()(decode or name), prefill=enum()(name)),
            req_to_token_pool=Pools(model, drafts[0], slots),
            model_config=SimpleNamespace(context_len=256),
            server_args=SimpleNamespace(disable_cuda_graph=True),
        )
        module, _, owner = kind.backend.rpartition(".")
        return getattr(import_module(module), owner)(runner), model, runner.req_to_token_pool

    return make


def passed(backend, model, mode, rows, slots, prefixes=None, trees=None, logical=None):
    """Run a pass on random rows; return the inputs and results of each layer."""
    first, sibling = links(trees) if trees else (None, None)
    batch = SimpleNamespace(
        forward_mode=Mode(mode),
        logical_forward_mode=Mode(logical or mode),
        extend_seq_lens_cpu=rows,
        extend_prefix_lens_cpu=prefixes,
        extend_prefix_lens=torch.tensor(prefixes or [0]),
        mamba_track_mask=None,
        metadata=SimpleNamespace(
            query_start_loc=torch.tensor([0, *torch.tensor(rows).cumsum(0)], dtype=torch.int32),
            mamba_cache_indices=torch.tensor(slots, dtype=torch.int32),
            has_mamba_track_mask=False,
            retrieve_next_token=first,
            retrieve_next_sibling=sibling,
        ),
    )
    backend.init_forward_metadata(batch)
    found = []
    for id in backend.req_to_token_pool.mamba_map:
        x = torch.randn(sum(rows), model.columns)
        out = model.run(backend, mode, id, x, batch)
        found.append((id, x.double(), out if isinstance(out, str) else out.double()))
    return found


def close(got, want):
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


KINDS = [
    (LightningModel,),
    (LightningModel, "minimax"),
    (MambaModel,),
    (ConvolutionModel,),
]


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, (kind[0].op, *kind[1:]))))
def test_prompts_tokens_and_drafts(made, kind):
    backend, model, pools = made(*kind)
    for mode, rows, slots, prefixes in (
        ("extend", [3, 1, 70], [2, 5, 1], [0, 8, 8]),
        ("decode", [1, 1], [5, 2], None),
    ):
        conv, temporal = pools.conv.double(), pools.temporal.double()
        for i, (id, x, got) in enumerate(passed(backend, model, mode, rows, slots, prefixes)):
            for n, (slot, own) in enumerate(zip(slots, x.split(rows), strict=True)):
                kept = 0.0 if prefixes and not prefixes[n] else 1.0
                out, window, state = model.expected(id, own, conv[i, slot] * kept, temporal[i, slot] * kept)
                close(got.split(rows)[n], out)
                close(pools.conv[i, slot], window)
                close(pools.temporal[i, slot], state)
    conv, temporal = pools.conv.clone(), pools.temporal.clone()
    slots = [5, 0, 2]
    for i, (id, x, got) in enumerate(passed(backend, model, "verify", [6] * 3, slots, trees=TREES)):
        for n, (slot, parents) in enumerate(zip(slots, TREES, strict=True)):
            for row in range(6) if slot else ():
                path = [row]
                while parents[path[0]] >= 0:
                    path.insert(0, parents[path[0]])
                own = [6 * n + each for each in path]
                out, window, state = model.expected(
                    id, x[own], conv[i, slot].double(), temporal[i, slot].double()
                )
                close(got[own[-1]], out[-1])
                close(pools.conv_rows[i, n, row], window)
                close(pools.rows[i, n, row], state)
    assert torch.equal(pools.conv, conv)
    assert torch.equal(pools.temporal, temporal)
    served = backend.switchrail
    served.steps.end()
    assert served.steps.bypassed == 0
    assert backend.kept == [0, 2]
    bound = served.steps.dispatchers["decode"].bound
    assert {name for _, op, _, name in bound.plan.table if op == model.op} == {"torch"}


@pytest.mark.parametrize("kind", [LightningModel, MambaModel, ConvolutionModel], ids=lambda kind: kind.op)
def test_without_our_names_all_stays_sglangs(made, kind):
    backend, model, _ = made(kind, name="triton")
    assert backend.switchrail is None
    batch = SimpleNamespace(forward_mode=Mode("decode"), logical_forward_mode=Mode("decode"))
    x = torch.zeros(1, model.columns)
    if kind is MambaModel:
        found = backend.forward(model.layers[0], x, None, 0, batch)
    else:
        found = model.run(backend, "decode", 0, x, batch)
    assert found in ("SGLang's decode", "SGLang's forward")


@torch.no_grad()
@pytest.mark.parametrize("kind", [LightningModel, MambaModel, ConvolutionModel], ids=lambda kind: kind.op)
def test_larger_pools_change_no_allocation(made, kind):
    counts = []
    for slots in (SLOTS, 2 * SLOTS):
        backend, model, _ = made(kind, slots=slots)
        steps = [
            ("extend", [3, 4], [1, 2], [0, 8], None),
            ("decode", [1, 1], [1, 2], None, None),
            ("verify", [6, 6], [1, 2], None, TREES[:2]),
        ]
        counts.append([allocations(passed, backend, model, *step) for step in steps for _ in range(2)])
    assert counts[0][1::2] == counts[1][1::2]  # each step runs twice, and its first pass also makes tables
    assert all(counts[0])


@torch.no_grad()
@pytest.mark.parametrize("kind", [LightningModel, ConvolutionModel], ids=lambda kind: kind.op)
def test_relabelled_decode_rows_stay_sglangs_where_only_prompts_are_ours(made, kind):
    """With data-parallel attention, SGLang may label decode rows as prompts of one token."""
    backend, model, pools = made(kind, decode="triton")
    passed(backend, model, "extend", [3], [3], [0])
    before = pools.conv.clone(), pools.temporal.clone()
    found = passed(backend, model, "extend", [1] * 3, [5, 6, 7], [9] * 3, logical="decode")
    assert [out for *_, out in found] == [
        "SGLang's forward" if kind is ConvolutionModel else "SGLang's extend"
    ] * LAYERS
    assert torch.equal(pools.conv, before[0])
    assert torch.equal(pools.temporal, before[1])
    with pytest.raises(DispatchError, match="in a pass that Switchrail did not plan"):
        backend.switchrail.layers(0)
