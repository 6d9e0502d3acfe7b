"""The suite detects mistakes in Triton kernels, compiled on a GPU and interpreted elsewhere."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import switchrail
import torch
from switchrail.testing.conformance import run_case
from switchrail.testing.diagnosis import report
from switchrail_kernels import BACKENDS

from tests.sabotage import case_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PATHS = {
    op: f"switchrail_kernels.{op}.triton:{cls}"
    for (op, name), (cls, _) in BACKENDS.items()
    if name == "triton"
}
SHARED = {
    "attention": (
        *(f"switchrail_kernels.attention.{name}" for name in ("attend", "merge")),
        *(f"switchrail_kernels.{name}" for name in ("softmax", "tiles")),
    ),
    **dict.fromkeys(
        ("gated_delta", "kda"),
        tuple(f"switchrail_kernels.delta.{name}" for name in ("scan", "step", "call", "gates", "verify")),
    ),
    "lightning": (
        "switchrail_kernels.linear.walk",
        "switchrail_kernels.linear.verify",
        "switchrail_kernels.drafts",
    ),
    "mamba2": (
        "switchrail_kernels.linear.prepare",
        "switchrail_kernels.linear.walk",
        "switchrail_kernels.linear.verify",
        "switchrail_kernels.drafts",
    ),
    "mla": (
        *(f"switchrail_kernels.mla.{name}" for name in ("absorbed", "expanded", "project")),
        "switchrail_kernels.softmax",
    ),
    "short_conv": ("switchrail_kernels.short_conv.convolve", "switchrail_kernels.short_conv.drafts"),
}
"""The modules with an op's kernels, besides the module in `PATHS`."""


def home(op, line):
    """The one module with kernels of the op that contains the text."""
    modules = (PATHS[op].partition(":")[0], *SHARED.get(op, ()))
    (found,) = [name for name in modules if line in Path(find_spec(name).origin).read_text()]
    return found


# description: (op, original text, changed text, cases)
MUTANTS = {
    "k and v swapped": (
        "attention",
        "layer.k_cache, layer.v_cache, out, lse_or, sinks_or, parts, weights),\n            *(work.items",
        "layer.v_cache, layer.k_cache, out, lse_or, sinks_or, parts, weights),\n            *(work.items",
        ["prefill/float32/ragged"],
    ),
    "TF32 operands": (
        "attention",
        "    b_acc = tl.zeros((BT * BG, BD), tl.float32)\n",
        "    b_acc = tl.zeros((BT * BG, BD), tl.float32)\n"
        "    b_q = (b_q.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)\n",
        ["prefill/float32/past", "decode/float32/ragged"],
    ),
    "a 32-bit offset of pages": (
        "attention",
        "o_token = tl.load(p_pages + o_n // PAGE, mask=m_kv, other=0).to(tl.int64) * PAGE",
        "o_token = tl.load(p_pages + o_n // PAGE, mask=m_kv, other=0).to(tl.int32) * PAGE",
        ["decode/float32/far-slots"],
    ),
    "a 32-bit offset of rows": (
        "attention",
        "        row = tl.load(p_items + 2).to(tl.int64)\n",
        "        row = tl.load(p_items + 2).to(tl.int32)\n",
        ["prefill/float32/far-rows"],
    ),
    "a causal mask one too wide": (
        "attention",
        "o_row[:, None] >= o_key[None, :]",
        "o_row[:, None] > o_key[None, :]",
        ["prefill/float32/past"],
    ),
    "the last piece of a cache dropped": (
        "attention",
        "tl.maximum(tl.cdiv(keys, length), 1)",
        "tl.maximum(keys // length, 1)",
        ["decode/float32/long-past"],
    ),
    "a sum not rescaled": (
        "attention",
        "b_sum = b_sum * b_scale + tl.sum(b_p, 1)",
        "b_sum = b_sum + tl.sum(b_p, 1)",
        ["prefill/float32/past", "decode/float32/long-past"],
    ),
    "scale forgotten": (
        "attention",
        "abs(scale) * (LOG2E.value if",
        "(LOG2E.value if",
        ["prefill/float32/ragged"],
    ),
    "rows of padding divided by zero": (
        "attention",
        "(1.0 / tl.where(b_sum > 0, b_sum, 1.0))[:, None]  # zeros for",
        "(1.0 / b_sum)[:, None]  # zeros for",
        ["prefill/float32/padding"],
    ),
    "a window wider by one": (
        "attention",
        "- o_key[None, :] < window",
        "- o_key[None, :] <= window",
        ["prefill/float32/window-16", "decode/float32/window-33"],
    ),
    "the key before a window read": (
        "attention",
        "tl.maximum(past + within + 1 - window, 0)",
        "tl.maximum(past + within - window, 0)",
        ["prefill/float32/window-16"],
    ),
    "an exponent of a soft cap without its factor": (
        "attention",
        "tl.exp2(b_z * (2 * LOG2E))",
        "tl.exp2(b_z)",
        ["prefill/float32/soft-cap"],
    ),
    "a soft cap that loses digits of small logits": (
        "attention",
        "tl.where(b_square < 0.01, b_near, ",
        "tl.where(b_square < 0, b_near, ",
        ["prefill/float32/soft-cap-large"],
    ),
    "sinks not converted to base 2": (
        "attention",
        "other=0.0).to(tl.float32) * LOG2E",
        "other=0.0).to(tl.float32)",
        ["prefill/float32/sinks", "decode/float32/features"],
    ),
    "a log-sum-exp in base 2": (
        "attention",
        "tl.store(p_lse + o_out, b_total * LN2, mask=m_row)",
        "tl.store(p_lse + o_out, b_total, mask=m_row)",
        ["verify/float32/log-sum-exp"],
    ),
    "siblings that see one another": (
        "attention",
        "m_seen |= b_row[:, None] == o_key[None, :]",
        "m_seen |= b_row[:, None] >= o_key[None, :]",
        ["verify/float32/trees"],
    ),
    "the parents of a neighbour": (
        "attention",
        "p_parents += row - within",
        "p_parents += within",
        ["verify/float32/trees"],
    ),
    "parts merged without their weights": (
        "attention",
        "tl.sum(b_part * b_weight[:, None], 0)",
        "tl.sum(b_part, 0)",
        ["verify/float32/long-past", "decode/float32/long-past"],
    ),
    "parts in the rows of a neighbour": (
        "attention",
        "merged[:, 1] = slot[tile] + row",
        "merged[:, 1] = slot[tile]",
        ["prefill/float32/long-past"],
    ),
    "a stale slot": (
        "short_conv",
        "p_old = entry(p_state + read * s_slot, j, o_c, C, S_W, S_C)",
        "p_old = entry(p_state + write * s_slot, j, o_c, C, S_W, S_C)",
        ["decode/float32/read-not-write"],
    ),
    "a dirty slot read": (
        "short_conv",
        "tl.where(tl.load(p_has_initial_state + i_n), tl.where(read >= 0, C, 0), 0)",
        "tl.where(tl.load(p_has_initial_state + i_n) >= 0, tl.where(read >= 0, C, 0), 0)",
        ["prefill/float32/dirty-slots"],
    ),
    "a 32-bit offset of slots": (
        "short_conv",
        "    m_old = o_c < tl.where(read >= 0, C, 0)\n    m_new",
        "    m_old = o_c < tl.where(read >= 0, C, 0); read = read.to(tl.int32)\n    m_new",
        ["decode/float32/far-slots"],
    ),
    "rows of padding written": (
        "short_conv",
        "    b_y = tl.where(write >= 0, b_y, 0.0)\n",
        "    b_y = tl.where(write >= -1, b_y, 0.0)\n",
        ["decode/float32/padding"],
    ),
    "the slots of a neighbour": (
        "short_conv",
        "    i_n, within, row, rows = load_piece(p_pieces, i_p)\n",
        "    i_n, within, row, rows = load_piece(p_pieces, i_p); i_n = tl.maximum(i_n - 1, 0)\n",
        ["prefill/float32/neighbours", "prefill/float32/ragged"],
    ),
    "decay dropped from one chunk to the next": (
        "gated_delta",
        "b_s = tl.dot(b_uw.to(dtype), b_k, acc=b_s * b_decay, input_precision",
        "b_s = tl.dot(b_uw.to(dtype), b_k, acc=b_s, input_precision",
        ["prefill/float32/gate-decaying"],
    ),
    "the last partial chunk dropped": (
        "gated_delta",
        "start, stop = (whole, rows) if MASKED else (0, whole)",
        "start, stop = (whole, rows - CHUNK + 1) if MASKED else (0, whole)",
        ["prefill/float32/around-16"],
    ),
    "a gate in the wrong space": (
        "kda",
        "    b_g = tl.exp2(log2_decay(",
        "    b_g = (log2_decay(",
        ["decode/float32/gate-decaying"],
    ),
    "beta dropped": (
        "gated_delta",
        "b_u = b_beta * (b_v - ",
        "b_u = 1.0 * (b_v - ",
        ["decode/float32/ragged"],
    ),
    "a stale slot of decode": (
        "gated_delta",
        "\n    b_s = tl.load(p_state + read * s_slot",
        "\n    b_s = tl.load(p_state + write * s_slot",
        ["decode/float32/read-not-write"],
    ),
    "the kinds of raw gates swapped": (
        "kda",
        '"softplus": 1, "sigmoid": 2',
        '"softplus": 2, "sigmoid": 1',
        ["prefill/float32/raw-softplus", "decode/float32/raw-softplus", "verify/float32/raw-softplus"],
    ),
    "the bias of another head": (
        "gated_delta",
        "        b_bias = tl.load(p_bias + i_hv).to(tl.float32)\n    return",
        "        b_bias = tl.load(p_bias).to(tl.float32)\n    return",
        ["prefill/float32/raw-sigmoid"],
    ),
    "raw betas without their scale": (
        "gated_delta",
        "b_beta = scale / (1.0",
        "b_beta = 1.0 / (1.0",
        ["decode/float32/raw-sigmoid"],
    ),
    "a checkpoint in the slot of the one before": (
        "gated_delta",
        "slot = tl.load(p_kept + i_p)",
        "slot = tl.load(p_kept + tl.maximum(i_p - 1, 0))",
        ["prefill/float32/checkpoints"],
    ),
    "a checkpoint kept though it is not asked for": (
        "kda",
        "slot = tl.load(p_kept + i_p)",
        "slot = tl.maximum(tl.load(p_kept + i_p), 0)",
        ["prefill/float32/checkpoints"],
    ),
    "siblings treated as ancestors": (
        "gated_delta",
        "m_path = ((b_bits[:, None] >> (shift + o_t)[None, :]) & 1) != 0",
        "m_path = o_t[:, None] >= o_t[None, :]",
        ["verify/float32/trees"],
    ),
    "a draft that decays twice": (
        "kda",
        "            b_r = tl.dot(b_s, tl.trans(b_k), acc=b_r",
        "            b_r = tl.dot(b_s, tl.trans(b_k * (b_x if CHANNELS else 1.0)), acc=b_r",
        ["verify/float32/gate-decaying"],
    ),
    "recorded decays in base 2": (
        "gated_delta",
        "            tl.store(p_decays + o_r * HV, b_g * (1 / LOG2E), mask=m_r)",
        "            tl.store(p_decays + o_r * HV, b_g, mask=m_r)",
        ["verify/float32/gate-decaying"],
    ),
    "initial states ignored": (
        "kda",
        "m_read = (o_v < tl.where(has, tl.where(read >= 0, V, 0), 0))",
        "m_read = (o_v < tl.where(has, 0, 0))",
        ["prefill/float32/initial-states"],
    ),
    "a state that NaN leaks into": (
        "gated_delta",
        "m_read = (o_v < tl.where(has, tl.where(read >= 0, V, 0), 0))",
        "m_read = (o_v < tl.where(read >= 0, V, 0))",
        ["prefill/float32/dirty-slots"],
    ),
    "a bias that is not added": (
        "short_conv",
        "b_bias += tl.load(p_bias",
        "b_bias += 0.0 * tl.load(p_bias",
        ["prefill/float32/bias", "decode/float32/bias"],
    ),
    "the oldest tap dropped": (
        "short_conv",
        "b_y += window[j].to(tl.float32) * taps[j]",
        "b_y += (j > 0) * window[j].to(tl.float32) * taps[j]",
        ["decode/float32/ragged", "decode/float32/token-by-token"],
    ),
    "a decay dropped from one chunk to the next": (
        "lightning",
        "tl.dot(tl.trans(b_v), b_k, acc=b_s * decay, input_precision",
        "tl.dot(tl.trans(b_v), b_k, acc=b_s, input_precision",
        ["prefill/float32/gate-decaying"],
    ),
    "scores of later tokens": (
        "mamba2",
        "    b_p = tl.where(o_t[None, :] >= o_t[:, None], b_p, 0.0)\n    p_scores",
        "    b_p = tl.where(o_t[None, :] >= 0, b_p, 0.0)\n    p_scores",
        ["prefill/float32/ragged"],
    ),
    "gates rounded to multiples of 1/1024": (
        "mamba2",
        "    b_rest = b_g - b_coarse\n",
        "    b_rest = b_g - b_g\n",
        ["prefill/float32/gate-near_one"],
    ),
    "a tree treated as a chain": (
        "lightning",
        "    return ((b_word >> (o_j & 31)) & 1) != 0",
        "    return (b_word == b_word) & (o_j < rows)",
        ["verify/float32/trees"],
    ),
    "the last accepted row left out": (
        "mamba2",
        "    rows = tl.maximum(last, -1) + 1",
        "    rows = tl.maximum(last, 0)",
        ["verify/float32/ragged"],
    ),
    "a commit without decay": (
        "lightning",
        "tl.trans(b_u), b_k, acc=b_s * b_decay, input_precision",
        "tl.trans(b_u), b_k, acc=b_s, input_precision",
        ["verify/float32/gate-decaying"],
    ),
    "a commit that starts from a stale slot": (
        "mamba2",
        "p_state + read * s_slot + o_state, mask=m_read, other=0.0).to(tl.float32)\n    p_path",
        "p_state + write * s_slot + o_state, mask=m_read, other=0.0).to(tl.float32)\n    p_path",
        ["verify/float32/read-not-write"],
    ),
    "recorded inputs without their time step": (
        "mamba2",
        "tl.store(p_kept_u + o_own, b_v.to(tl.float32) * b_w[:, None], mask=m_v)",
        "tl.store(p_kept_u + o_own, b_v.to(tl.float32), mask=m_v)",
        ["verify/float32/ragged"],
    ),
    "drafts that see a state undecayed": (
        "lightning",
        "    b_start = tl.exp2(b_since) * scale",
        "    b_start = tl.exp2(b_since * 0.0) * scale",
        ["verify/float32/gate-decaying"],
    ),
    "a checkpoint in a neighbour's slot": (
        "lightning",
        "                slot = tl.load(p_kept_slots + i_n.to(tl.int64) * kept +",
        "                slot = tl.load(p_kept_slots +",
        ["prefill/float32/checkpoints"],
    ),
    "a window kept one row early": (
        "short_conv",
        "                i_from = after - (W - 1) + j",
        "                i_from = after - W + j",
        ["prefill/float32/checkpoints"],
    ),
    "drafted rows that follow the row before them": (
        "short_conv",
        "            at = np.where(at >= 0, parents[start + np.maximum(at, 0)], at - 1)",
        "            at = at - 1",
        ["verify/float32/trees"],
    ),
    "a window committed one row early": (
        "short_conv",
        "    last = tl.minimum(tl.load(p_accepted + i_n), length - 1)",
        "    last = tl.minimum(tl.load(p_accepted + i_n), length - 2)",
        ["verify/float32/ragged"],
    ),
    "a 32-bit offset of latents": (
        "mla",
        "        page = tl.load(p_pages + o_seen // PAGE).to(tl.int64)\n        if S_T == 0:",
        "        page = tl.load(p_pages + o_seen // PAGE).to(tl.int32)\n        if S_T == 0:",
        ["decode/float32/far-slots"],
    ),
    "a causal mask one too wide over latents": (
        "mla",
        "o_row[:, None] >= o_key[None, :]",
        "o_row[:, None] > o_key[None, :]",
        ["prefill/float32/past"],
    ),
    "rotary parts of keys ignored": (
        "mla",
        'b_s = tl.dot(b_rotated, tl.trans(b_r), acc=b_s, input_precision="ieee") * scale',
        'b_s = tl.dot(0 * b_rotated, tl.trans(b_r), acc=b_s, input_precision="ieee") * scale',
        ["decode/float32/absorbed"],
    ),
    "the last piece of latents dropped": (
        "mla",
        "        pieces = tl.cdiv(kv_len, _piece_length(kv_len, base, most, BN))\n",
        "        pieces = tl.cdiv(kv_len, _piece_length(kv_len, base, most, BN)) - 1\n",
        ["decode/float32/long-past"],
    ),
    "a tree over latents treated as a chain": (
        "mla",
        "b_row = tl.minimum(b_parent, b_row - 1)",
        "b_row = tl.minimum(b_row + 0 * b_parent, b_row - 1)",
        ["verify/float32/trees"],
    ),
    "a log-sum-exp over latents in base 2": (
        "mla",
        "b_total * LN2, mask=m_once)",
        "b_total, mask=m_once)",
        ["prefill/float32/log-sum-exp"],
    ),
    "a causal mask one too wide over keys made of latents": (
        "mla",
        "o_last[:, None] >= o_n[None, :]",
        "o_last[:, None] > o_n[None, :]",
        ["prefill/float32/long-quick"],
    ),
    "rows of a product stored at their source's place": (
        "mla",
        "        target = tl.load(p_places + (MOVES == 1)).to(tl.int64)\n",
        "        target = tl.load(p_places + 1).to(tl.int64)\n",
        ["prefill/float32/long-quick"],
    ),
}
COMPILED = {
    "the state after a segment dropped": (
        "gated_delta",
        "b_s = tl.load(p_ends + i * s_segment + o_segment)\n            for",
        "b_s = 0.0 * tl.load(p_ends + i * s_segment + o_segment)\n            for",
        ["prefill/float32/remembering"],
    ),
    "a segment that is passed on without its transition": (
        "gated_delta",
        "b_s = tl.dot(b_left, b_m, acc=b_s, input_precision=COMPOSE)",
        "b_s += 0.0 * tl.dot(b_left, b_m, input_precision=COMPOSE)",
        ["prefill/float32/remembering"],
    ),
    "TF32 products": (
        "attention",
        'b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")',
        'b_s = tl.dot(b_q, tl.trans(b_k), input_precision="tf32")',
        ["prefill/float32/ragged", "decode/float32/long-past"],
    ),
}
"""Mutants that show only in compiled kernels, or only with sequences too long for the interpreter."""

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device; torch sees none"),
]


def changed(mutants, marks=()):
    """Each mutant, paired with each case that detects it."""
    return [
        pytest.param(mutant, case, id=f"{what}-{case}", marks=marks)
        for what, mutant in mutants.items()
        for case in mutant[3]
    ]


def unchanged(mutants, marks=()):
    """For each op: one of the lines that its mutants change, and all cases that detect them."""
    found = {}
    for op, line, _, cases in mutants.values():
        found.setdefault(op, (line, {}))[1].update(dict.fromkeys(cases))
    return [pytest.param(op, line, [*cases], id=op, marks=marks) for op, (line, cases) in found.items()]


@pytest.fixture(autouse=True)
def no_diagnosis(monkeypatch):
    """Skip the diagnosis: only detection matters here, and `test_mutants` tests the reports."""
    monkeypatch.setattr(report, "_GROUPS", ())


@pytest.fixture(scope="module")
def claims():
    with switchrail.testing.isolated() as runtime:
        runtime.load()
        return {op: runtime.backend(op, "triton") for op in PATHS}


@pytest.mark.parametrize(("mutant", "case"), changed(MUTANTS) + changed(COMPILED, needs_gpu))
def test_a_mutant_is_caught(mutate, claims, mutant, case):
    op, old, new, _ = mutant
    cls = mutate(home(op, old), old, new, path=PATHS[op], reloaded=frozenset({"switchrail_kernels"}))
    outcome = run_case(case_of(claims[op], f"{op}/{case}", cls, device=DEVICE))
    assert outcome.status == "failed"
    assert "it raised" not in outcome.message, outcome.message


@pytest.mark.parametrize(("op", "line", "cases"), unchanged(MUTANTS) + unchanged(COMPILED, needs_gpu))
def test_the_same_kernels_unchanged_pass(mutate, claims, op, line, cases):
    cls = mutate(home(op, line), line, line, path=PATHS[op], reloaded=frozenset({"switchrail_kernels"}))
    for case in cases:
        outcome = run_case(case_of(claims[op], f"{op}/{case}", cls, device=DEVICE))
        assert outcome.status == "passed", f"{case}: {outcome.message}"
