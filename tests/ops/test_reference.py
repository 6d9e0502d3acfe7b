"""The references, with which every backend is compared, are compared with other implementations."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from switchrail.ops import CONTRACTS
from switchrail.testing.compare import Error, measure
from switchrail.testing.inputs import (
    attention_call,
    gated_delta_call,
    kda_call,
    lightning_call,
    mamba2_call,
    mla_call,
    run_reference,
    short_conv_call,
)
from transformers import BailingHybridConfig, DeepseekV3Config, KimiLinearConfig, MiniMaxConfig
from transformers.models.bailing_hybrid.modeling_bailing_hybrid import BailingHybridForgetGate
from transformers.models.bamba.modeling_bamba import mamba2_chunk_scan, mamba2_selective_state_update
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2_attention
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss_attention
from transformers.models.kimi_linear.modeling_kimi_linear import (
    KimiLinearForgetGate,
    chunk_kimi_delta_attention,
    recurrent_kimi_delta_attention,
)
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

FLOAT64 = Error(1e-13, 1e-12)


def test_attention_is_torch_sdpa_over_the_pages_in_order():
    call = attention_call([3, 40], kv_lengths=[21, 40], dtype=torch.float64, heads=6, kv_heads=2)
    oracle = run_reference(call)
    row = 0
    for n, (length, kv) in enumerate(zip(call.batch.seqlens, call.batch.kv_seqlens, strict=True)):
        pages = call.batch.page_table[n, : -(-kv // 16)].long()
        q = call.tensors["q"][row : row + length].transpose(0, 1)
        k, v = (
            call.tensors[name][pages].flatten(0, 1)[:kv].transpose(0, 1) for name in ("k_cache", "v_cache")
        )
        mask = torch.ones(length, kv, dtype=torch.bool).tril(kv - length)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, enable_gqa=True
        )[0].transpose(0, 1)
        assert measure(oracle.out[row : row + length], expected).within(FLOAT64)
        row += length


def contiguous(call):
    """q, k and v of a call of one sequence, as [1, heads, length, size]."""
    pages = call.batch.page_table[0, :-1].long()
    k, v = (call.tensors[name][pages].flatten(0, 1)[: call.out.shape[0]] for name in ("k_cache", "v_cache"))
    return (t.transpose(0, 1)[None] for t in (call.tensors["q"], k, v))


def test_sinks_and_a_window_are_those_of_transformers_gpt_oss():
    call = attention_call([40], dtype=torch.float64, sinks=True)
    q, k, v = contiguous(call)
    call = dataclasses.replace(call, options={**call.options, "window": 9})
    distance = torch.arange(40)[:, None] - torch.arange(40)
    mask = torch.zeros(40, 40, dtype=torch.float64)
    mask.masked_fill_((distance < 0) | (distance >= 9), -torch.inf)
    module = SimpleNamespace(sinks=call.tensors["sinks"], num_key_value_groups=2, training=False)
    expected, _ = gpt_oss_attention(module, q, k, v, mask, scaling=call.options["scale"])
    assert measure(run_reference(call).out, expected[0]).within(FLOAT64)


def test_the_soft_cap_is_that_of_transformers_gemma2_in_float32():
    call = attention_call([40], soft_cap=3.0, norm=2.0)
    q, k, v = contiguous(call)
    mask = torch.full((40, 40), -torch.inf).triu(1)
    module = SimpleNamespace(num_key_value_groups=2, training=False)
    expected, _ = gemma2_attention(module, q, k, v, mask, scaling=call.options["scale"], softcap=3.0)
    assert measure(expected[0], run_reference(call).out).within(Error(1e-6, 1e-5))


def test_the_log_sum_exp_by_hand():
    call = attention_call(
        [1], kv_lengths=[2], heads=1, kv_heads=1, head_size=1, dtype=torch.float64, lse=True, sinks=True
    )
    page = int(call.batch.page_table[0, 0])
    call.tensors["q"].fill_(2.0)
    call.tensors["k_cache"][page, :2, 0, 0] = torch.tensor([1.0, 3.0], dtype=torch.float64)
    call.tensors["v_cache"][page, :2, 0, 0] = torch.tensor([10.0, 20.0], dtype=torch.float64)
    call.tensors["sinks"].fill_(4.0)
    oracle = run_reference(call)
    total = torch.tensor([2.0, 6.0, 4.0], dtype=torch.float64).exp()
    assert torch.allclose(oracle.tensors["lse"][0, 0], total.sum().log())
    assert torch.allclose(oracle.out[0, 0, 0], (10 * total[0] + 20 * total[1]) / total.sum())


def test_mla_is_what_transformers_computes_in_float32():
    call = mla_call([40], strided=False)
    config = DeepseekV3Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
    )
    layer = DeepseekV3Attention(config, 0).eval()
    t = call.tensors
    layer.kv_b_proj.weight.data = torch.cat([t["w_k"], t["w_v"]], dim=1).flatten(0, 1)
    cached = t["kv_cache"][call.batch.page_table[0, :-1].long()].flatten(0, 1)[:40]
    with torch.no_grad():
        k, v = layer.expand_kv(cached[None, None, :, :32], cached[None, None, :, 32:])
    q = torch.cat([t["q_nope"], t["q_rope"]], dim=2).transpose(0, 1)[None]
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=call.options["scale"]
    )
    assert measure(expected[0].transpose(0, 1), run_reference(call).out).within(Error(1e-6, 1e-5))


def test_short_conv_is_conv1d_behind_the_state():
    call = short_conv_call([12], channels=5, width=4, dtype=torch.float64, bias=True, initial="all")
    oracle = run_reference(call)
    slot = int(call.batch.read_slots[0])
    inputs = torch.cat([call.state[slot], call.tensors["x"].T], dim=1)
    expected = torch.nn.functional.conv1d(
        inputs[None], call.tensors["weight"][:, None], call.tensors["bias"], groups=5
    )
    assert measure(oracle.out, torch.nn.functional.silu(expected[0]).T).within(FLOAT64)
    assert torch.equal(oracle.state[slot], inputs[:, -3:])


def inputs(call):
    """q, k, v, g and beta of a delta rule as a batch of one, with q and k repeated for each value head."""
    t = {name: call.tensors[name][None] for name in ("q", "k", "v", "g", "beta")}
    return [*(t[name].repeat_interleave(3, dim=2) for name in ("q", "k")), t["v"], t["g"], t["beta"]]


@pytest.mark.parametrize("gate", ["decaying", "one", "near_one"])
def test_gated_delta_is_what_transformers_computes_in_float32(gate):
    call = gated_delta_call([50], initial="all", gate=gate, heads=2, value_heads=6)
    oracle = run_reference(call)
    slot = int(call.batch.read_slots[0])
    out, state = torch_recurrent_gated_delta_rule(
        *inputs(call),
        call.state[slot].mT[None],
        True,
        use_qk_l2norm_in_kernel=True,
    )
    assert measure(out[0], oracle.out).within(Error(1e-6, 1e-5))
    assert measure(state[0].mT, oracle.state[slot]).within(Error(1e-6, 1e-5))


def test_gated_delta_by_hand():
    call = gated_delta_call(
        [2],
        heads=1,
        value_heads=1,
        key_size=1,
        value_size=1,
        dtype=torch.float64,
        qk_l2norm=False,
        initial="all",
    )
    slot = int(call.batch.read_slots[0])
    call.state[slot] = 8.0
    for name, values in {"q": [3.0, 1.0], "k": [1.0, 2.0], "v": [10.0, 1.0], "beta": [0.5, 1.0]}.items():
        call.tensors[name].view(2).copy_(torch.tensor(values))
    call.tensors["g"].view(2).copy_(torch.tensor([0.5, 0.0], dtype=torch.float64).log())
    oracle = run_reference(call)
    # Token 1: the state 8 decays to 4, and moves half-way to v = 10, which is 7; q = 3 gives 3 * 7 = 21.
    # Token 2: the state decays to 0; k = 2 and v = 1 make it 2; q = 1 gives 2.
    assert oracle.out.flatten().tolist() == [21.0, 2.0]
    assert oracle.state[slot].item() == 2.0


@pytest.mark.parametrize("gate", ["decaying", "one", "near_one"])
def test_kda_is_what_transformers_computes_in_float32(gate):
    call = kda_call([70], initial="all", gate=gate, heads=2, value_heads=6)
    oracle = run_reference(call)
    slot = int(call.batch.read_slots[0])
    for function in (chunk_kimi_delta_attention, recurrent_kimi_delta_attention):
        out, state = function(
            *inputs(call),
            initial_state=call.state[slot].mT[None],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        assert measure(out[0], oracle.out).within(Error(2e-6, 2e-5))
        assert measure(state[0].mT, oracle.state[slot]).within(Error(2e-6, 2e-5))


def test_kda_with_one_decay_for_all_channels_is_gated_delta():
    call = kda_call([40], initial="all", dtype=torch.float64)
    call.tensors["g"][:] = call.tensors["g"][:, :, :1]
    same = dataclasses.replace(
        call,
        contract=CONTRACTS["gated_delta"],
        tensors={**call.tensors, "g": call.tensors["g"][:, :, 0].contiguous()},
    )
    oracle, other = run_reference(call), run_reference(same)
    assert measure(oracle.out, other.out).within(FLOAT64)
    slots = call.batch.write_slots
    assert measure(oracle.state[slots], other.state[slots]).within(FLOAT64)


def test_lightning_is_what_transformers_computes_in_float32():
    config = MiniMaxConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=16,
        num_hidden_layers=4,
        block_size=16,
        layer_types=["linear_attention"] * 4,
        hidden_act="silu",
    )
    torch.manual_seed(0)
    layer = MiniMaxLightningAttention(config, layer_idx=1).eval()
    seen = []
    layer.norm = torch.nn.Identity()
    layer.output_gate.weight.data.zero_()
    layer.out_proj.register_forward_pre_hook(lambda _, arguments: seen.append(2 * arguments[0]))
    hidden = torch.randn(1, 50, 64)
    with torch.no_grad():
        _, state = layer(hidden, None, None)
        q, k, v = layer.act_fn(layer.qkv_proj(hidden[0])).view(50, 4, 48).split(16, dim=2)
    call = lightning_call([50], initial="none")
    tensors = {**call.tensors, "q": q, "k": k, "v": v, "g": -layer.slope_rate.flatten()}
    oracle = run_reference(dataclasses.replace(call, tensors=tensors, options={"scale": 1.0}))
    assert measure(seen[0].view(50, 4, 16), oracle.out).within(Error(1e-6, 1e-5))
    assert measure(state[0].mT, oracle.state[call.batch.write_slots[0]]).within(Error(1e-6, 1e-5))


@pytest.mark.parametrize("gate", ["decaying", "one", "near_one"])
def test_mamba2_is_what_transformers_computes_in_float32(gate):
    call = mamba2_call([70], initial="all", gate=gate, heads=6, groups=2, dt_limits=(0.1, 2.0))
    oracle = run_reference(call)
    slot = int(call.batch.read_slots[0])
    t = call.tensors
    out, state = mamba2_chunk_scan(
        t["x"][None],
        t["dt"][None],
        t["A"],
        t["B"][None],
        t["C"][None],
        chunk_size=32,
        D=t["D"],
        dt_bias=t["dt_bias"],
        initial_states=call.state[slot][None],
        dt_softplus=True,
        dt_limit=(0.1, 2.0),
        return_final_states=True,
    )
    assert measure(out[0], oracle.out).within(Error(2e-6, 2e-5))
    assert measure(state[0], oracle.state[slot]).within(Error(2e-6, 2e-5))


def test_a_token_of_mamba2_is_what_transformers_computes_in_float32():
    call = mamba2_call([1] * 3, phase="decode", heads=6, groups=2)
    oracle = run_reference(call)
    t = call.tensors
    state = call.state[call.batch.read_slots]
    heads = (6, 16, 16)
    out = mamba2_selective_state_update(
        state,
        t["x"],
        t["dt"][:, :, None].expand(-1, -1, 16),
        t["A"][:, None, None].expand(heads),
        t["B"],
        t["C"],
        t["D"][:, None].expand(heads[:2]),
        dt_bias=t["dt_bias"][:, None].expand(heads[:2]),
        dt_softplus=True,
    )
    assert measure(out, oracle.out).within(Error(2e-6, 2e-5))
    assert measure(state, oracle.state[call.batch.write_slots]).within(Error(2e-6, 2e-5))


def test_raw_gates_are_those_of_transformers_in_float32():
    torch.manual_seed(1)
    kimi = KimiLinearForgetGate(
        KimiLinearConfig(hidden_size=24, linear_head_dim=16, linear_num_heads=4)
    ).eval()
    config = BailingHybridConfig(
        hidden_size=24, linear_head_dim=16, linear_num_heads=4, kda_safe_gate=True, kda_lower_bound=-4.0
    )
    bailing = BailingHybridForgetGate(config).eval()
    hidden = torch.randn(1, 30, 24)
    for module, project, raw in (
        (kimi, lambda x: kimi.f_b_proj(kimi.f_a_proj(x)), {"gate": "softplus"}),
        (bailing, bailing.f_proj, {"gate": "sigmoid", "lower_bound": -4.0}),
    ):
        torch.nn.init.normal_(module.A_log)
        torch.nn.init.normal_(module.dt_bias)
        call = kda_call([30], heads=4, value_heads=4, initial="all", strided=False)
        with torch.no_grad():
            activated = module(hidden).view(30, 4, 16)
            g = project(hidden).view(30, 4, 16)
        rate, bias = module.A_log.detach().flatten(), module.dt_bias.detach().view(4, 16)
        tensors = {**call.tensors, "g": g, "A_log": rate, "dt_bias": bias}
        given = dataclasses.replace(call, tensors=tensors, options={**call.options, **raw})
        plain = dataclasses.replace(call, tensors={**call.tensors, "g": activated})
        assert measure(run_reference(plain).out.float(), run_reference(given).out).within(Error(2e-6, 2e-5))


def test_a_raw_gate_of_a_head_is_qwen3_nexts_in_float32():
    call = gated_delta_call([30], raw="softplus", beta_scale=2.0, initial="all", strided=False)
    t = call.tensors
    g = -t["A_log"].float().exp() * torch.nn.functional.softplus(t["g"].float() + t["dt_bias"])
    tensors = {k: v for k, v in t.items() if k not in ("A_log", "dt_bias")}
    tensors |= {"g": g, "beta": 2.0 * t["beta"].sigmoid()}
    options = {k: v for k, v in call.options.items() if k not in ("gate", "beta_scale")}
    plain = run_reference(dataclasses.replace(call, tensors=tensors, options=options))
    assert measure(plain.out.float(), run_reference(call).out).within(Error(2e-6, 2e-5))
