"""The suite's proof: one line of a plain-torch backend is changed, and the case made for it fails."""

import pytest
import switchrail
from switchrail.testing.conformance import Subject, run_case, select

pytestmark = pytest.mark.usefixtures("one_thread")

SHARED = frozenset(
    f"switchrail.ops.{name}" for name in ("pages", "softmax", "slots", "chunks", "recurrent", "delta")
)
PATHS = {
    "attention": "switchrail.ops.attention.torch:TorchAttention",
    "gated_delta": "switchrail.ops.gated_delta.torch:TorchGatedDelta",
    "kda": "switchrail.ops.kda.torch:TorchKda",
    "lightning": "switchrail.ops.lightning.torch:TorchLightning",
    "mamba2": "switchrail.ops.mamba2.torch:TorchMamba2",
    "mla": "switchrail.ops.mla.torch:TorchMla",
    "short_conv": "switchrail.ops.short_conv.torch:TorchShortConv",
}
ROUNDED = "({}.contiguous().view(torch.int32) & -8192).view(torch.float32)"
"""As TF32 rounds what it multiplies."""

# what is wrong: (the module below switchrail.ops, what stands there, what stands there instead, cases)
MUTANTS = {
    "k and v swapped": (
        "attention.torch",
        "    keys, values = k_cache.flatten(0, 1), v_cache.flatten(0, 1)\n",
        "    values, keys = k_cache.flatten(0, 1), v_cache.flatten(0, 1)\n",
        ["attention/prefill/float32/ragged", "attention/decode/bfloat16/ragged"],
    ),
    "q and k swapped": (
        "delta",
        "torch.stack([k, q], dim=2)",
        "torch.stack([q, k], dim=2)",
        ["gated_delta/prefill/float32/ragged", "kda/decode/bfloat16/ragged"],
    ),
    "TF32 logits": (
        "softmax",
        "logits = (q * scale) @ k.mT",
        f"logits = {ROUNDED.format('(q * scale)')} @ {ROUNDED.format('k')}.mT",
        ["mla/prefill/float32/ragged", "attention/decode/float32/features"],
    ),
    "TF32 products with the state": (
        "chunks",
        "torch.bmm(queries[at], active.mT, out=result[at])",
        f"torch.bmm({ROUNDED.format('queries[at]')}, {ROUNDED.format('active')}.mT, out=result[at])",
        [f"{op}/prefill/float32/gate-near_one" for op in ("gated_delta", "kda", "lightning", "mamba2")],
    ),
    "TF32 inputs": (
        "delta",
        "        keys_queries[:, :, 1] *= scale\n",
        f"        keys_queries[:, :, 1] *= scale; keys_queries = {ROUNDED.format('keys_queries')}\n",
        ["gated_delta/prefill/float32/ragged", "gated_delta/decode/float32/ragged"],
    ),
    "a 32-bit offset of slots": (
        "slots",
        "states = pool.index_select(0, self._read).to(dtype)",
        "states = pool.index_select(0, self._read % (2**31 // pool[0].numel())).to(dtype)",
        [
            f"{op}/decode/float32/far-slots"
            for op in ("gated_delta", "kda", "lightning", "mamba2", "short_conv")
        ],
    ),
    "a 32-bit offset of pages": (
        "pages",
        "tokens = table.gather(1, positions // page) * page + positions % page",
        "tokens = table.gather(1, positions // page) * page % 2**26 + positions % page",
        ["attention/decode/float32/far-slots"],
    ),
    "a window one too wide": (
        "pages",
        "mask &= positions[first:seen] > own - window",
        "mask &= positions[first:seen] >= own - window",
        [f"attention/prefill/float32/window-{size}" for size in (1, 16, 33)],
    ),
    "a window one too narrow": (
        "pages",
        "return kv if window is None else min(kv, window)",
        "return kv if window is None else min(kv, max(window - 1, 1))",
        ["attention/decode/float32/window-16"],
    ),
    "causal by one": (
        "pages",
        "mask = positions[first:seen] <= own",
        "mask = positions[first:seen] < own + 2",
        ["attention/prefill/float32/past", "mla/prefill/bfloat16/past"],
    ),
    "the end of a cache not masked": (
        "pages",
        "None if mask.all() else mask[:, None, None]",
        "None if mask.any() else mask[:, None, None]",
        ["attention/decode/float32/ragged", "mla/decode/bfloat16/ragged"],
    ),
    "a stale slot": (
        "slots",
        "states = pool.index_select(0, self._read).to(dtype)",
        "states = pool.index_select(0, self._write).to(dtype)",
        ["gated_delta/prefill/float32/read-not-write", "short_conv/decode/float32/read-not-write"],
    ),
    "a dirty slot read": (
        "slots",
        "self._all_fresh = visible and bool(fresh.all())",
        "self._all_fresh = self._fresh = None",
        [f"{op}/prefill/bfloat16/dirty-slots" for op in ("gated_delta", "kda", "lightning", "mamba2")],
    ),
    "initial states ignored": (
        "slots",
        "        if self._all_fresh:\n",
        "        if self._run is None:\n",
        ["lightning/prefill/float32/initial-states", "kda/decode/float32/initial-states"],
    ),
    "states of padding written": (
        "slots",
        "        if self.padding is not None:\n",
        "        if self.padding is None:\n",
        ["mamba2/prefill/float32/untouched-slots", "short_conv/decode/float32/padding"],
    ),
    "rows of padding written": (
        "chunks",
        "            result.masked_fill_(self.padding_rows, 0)\n",
        "            pass\n",
        ["gated_delta/prefill/float32/padding", "gated_delta/decode/bfloat16/padding"],
    ),
    "the last chunk dropped": (
        "chunks",
        "in enumerate(group.levels, group.first_number)",
        "in enumerate(group.levels[:-1] or group.levels, group.first_number)",
        [f"{op}/prefill/float32/long-quick" for op in ("gated_delta", "kda", "lightning", "mamba2")],
    ),
    "decay dropped from one chunk to the next": (
        "chunks",
        "active.mul_(decay[at]).baddbmm_(",
        "active.baddbmm_(",
        [f"{op}/prefill/float32/gate-decaying" for op in ("gated_delta", "kda", "lightning", "mamba2")],
    ),
    "decay dropped within a chunk": (
        "gated_delta.torch",
        "            queries=flat(queries * per_head(since_start)),\n",
        "            queries=flat(queries * per_head(torch.ones_like(since_start))),\n",
        ["gated_delta/prefill/float32/gate-decaying", "gated_delta/prefill/float32/in-chunks"],
    ),
    "a gate in the wrong space": (
        "delta",
        "log_decay = activate_gate(g, gate, A_log, dt_bias, lower_bound, compute)",
        "log_decay = activate_gate(g.exp(), gate, A_log, dt_bias, lower_bound, compute)",
        ["gated_delta/prefill/float32/gate-decaying", "kda/decode/float32/gate-decaying"],
    ),
    "huge gates summed in float32": (
        "gated_delta.torch",
        "    gate_dtype = torch.float64\n",
        "    gate_dtype = torch.float32\n",
        ["gated_delta/prefill/float32/forgetting"],
    ),
    "beta dropped": (
        "delta",
        "weight = activate_beta(beta, beta_scale, compute)",
        "weight = torch.ones_like(beta)",
        ["gated_delta/prefill/bfloat16/ragged", "kda/decode/float32/ragged"],
    ),
    "scale forgotten": (
        "delta",
        "keys_queries[:, :, 1] *= scale",
        "keys_queries[:, :, 1] *= 1.0",
        ["gated_delta/prefill/float32/ragged", "kda/decode/float32/ragged"],
    ),
    "normalised twice": (
        "delta",
        "        if qk_l2norm:\n",
        "        if qk_l2norm or True:\n",
        ["gated_delta/prefill/float32/as-given", "kda/decode/float32/as-given"],
    ),
    "the past of a neighbour": (
        "short_conv.torch",
        "    y.index_copy_(0, ends.first_rows, (windows * taps).sum(1))\n",
        "    windows.sum()\n",
        ["short_conv/prefill/float32/neighbours", "short_conv/prefill/float32/ragged"],
    ),
    "heads in another order": (
        "mamba2.torch",
        "by_group = states.view(len(inputs) * B.shape[1], -1, B.shape[2])",
        "by_group = states.flip(1).view(len(inputs) * B.shape[1], -1, B.shape[2])",
        ["mamba2/decode/float32/ragged"],
    ),
    "time steps not limited": (
        "mamba2.torch",
        "return dt.clamp(dt_min, dt_max)",
        "return dt.clamp(min=dt_min)",
        ["mamba2/prefill/float32/limited-steps"],
    ),
    "a log-sum-exp of another base": (
        "softmax",
        "return out, total.log() + top",
        "return out, total.log2() + top",
        [
            "attention/prefill/float32/log-sum-exp",
            "mla/decode/float32/merged",
            "attention/decode/float32/merged",
        ],
    ),
    "a cap that is not scaled back": (
        "softmax",
        "logits.div_(soft_cap).tanh_().mul_(soft_cap)",
        "logits.div_(soft_cap).tanh_()",
        ["attention/prefill/float32/soft-cap"],
    ),
    "a sink left out of the sum": (
        "softmax",
        "total = total + (sinks - top).exp()",
        "total = total + 0 * (sinks - top).exp()",
        ["attention/prefill/float32/sinks"],
    ),
    "a state rounded at each chunk": (
        "chunks",
        "        after(number, states)\n",
        "        after(number, states); states.copy_((states * (1 + 3e-8 * number)).half())\n",
        ["gated_delta/prefill/float32/growth", "lightning/prefill/float32/growth"],
    ),
    "numbers that differ from call to call": (
        "chunks",
        "        out.copy_(result)\n",
        "        out.copy_(result * (1 + 1e-6 * torch.rand_like(result)))\n",
        ["gated_delta/prefill/float32/again"],
    ),
    "a sequence that looks at the batch": (
        "delta",
        "weight = activate_beta(beta, beta_scale, compute)",
        "weight = activate_beta(beta, beta_scale, compute) * (1 + 1e-5 * (len(batch.seqlens) > 1))",
        ["gated_delta/prefill/float32/company", "gated_delta/decode/float32/company"],
    ),
    "an input modified": (
        "delta",
        "weight = activate_beta(beta, beta_scale, compute)",
        "weight = activate_beta(beta.mul_(1 + 3e-7), beta_scale, compute)",
        ["gated_delta/prefill/float32/ragged"],
    ),
    "a number written beyond the output": (
        "chunks",
        "        out.copy_(result)\n",
        "        out.copy_(result); out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(0)\n",
        ["gated_delta/prefill/float32/guards", "gated_delta/decode/float32/guards"],
    ),
    "nothing checked": (
        "delta",
        "        self.contract.check_arguments(batch, {**tensors, **raw, **options})\n",
        "        del options, raw\n",
        ["gated_delta/prefill/float32/refusals"],
    ),
    "a state on the way kept one chunk late": (
        "chunks",
        "kept[(index + 1) * every // chunk - 1]",
        "kept[(index + 1) * every // chunk]",
        ["gated_delta/prefill/float32/checkpoints"],
    ),
    "a commit of nothing taken for one of a row": (
        "recurrent",
        "torch.where(last < 0, initial, place)",
        "torch.where(last < -1, initial, place)",
        [f"{op}/verify/float32/ragged" for op in ("gated_delta", "lightning", "mamba2", "short_conv")],
    ),
    "a commit one row late": (
        "recurrent",
        "place = count + plan.starts + last.minimum(plan.lengths - 1)",
        "place = count + plan.starts + (last + 1).minimum(plan.lengths - 1)",
        ["kda/verify/float32/ragged", "short_conv/verify/float32/ragged"],
    ),
    "a tree of states taken for a chain": (
        "recurrent",
        "            parent = batch.parent_rows[row]\n",
        "            parent = row - start - 1\n",
        ["gated_delta/verify/float32/trees", "mamba2/verify/bfloat16/trees"],
    ),
    "a tree of rows that see their parents only": (
        "pages",
        "follows[row] |= follows[parent]",
        "follows[row][parent] = True",
        ["attention/verify/float32/trees", "mla/verify/float32/trees"],
    ),
    "live states written by a verification": (
        "recurrent",
        "plan.slots.load(state, dtype, copy=True)",
        "plan.slots.load(state, dtype)",
        ["lightning/verify/float32/following-slots"],
    ),
    "a plan that is used up": (
        "recurrent",
        "    plan.write_rows(step(states, None), out)\n",
        "    plan.write_rows(step(states, None), out); plan.slots._read += 1\n",
        ["gated_delta/decode/float32/again"],
    ),
}


@pytest.fixture(scope="module")
def claims():
    """What the torch backends claim, by op."""
    with switchrail.testing.isolated() as runtime:
        return {op: runtime.backend(op, "torch") for op in PATHS}


def find(claims, case, build):
    op, phase, dtype, _ = case.split("/")
    subject = Subject(
        op=op,
        name="mutant",
        phases=tuple(claims[op].phases),
        capabilities=claims[op].capabilities,
        build=build,
    )
    cases = select(subject, phases=(phase,), dtypes=(dtype,), quick=True).cases
    (found,) = [each for each in cases if each.id == case]
    return found


@pytest.mark.parametrize(
    ("what", "case"), [(what, case) for what, (*_, cases) in MUTANTS.items() for case in cases]
)
def test_a_mutant_is_caught(mutate, claims, what, case):
    module, old, new, _ = MUTANTS[what]
    op = case.split("/")[0]
    cls = mutate(f"switchrail.ops.{module}", old, new, path=PATHS[op], reloaded=SHARED)
    outcome = run_case(find(claims, case, cls))
    assert outcome.status == "failed"
    assert "it raised" not in outcome.message, outcome.message


@pytest.mark.parametrize("case", sorted({case for *_, cases in MUTANTS.values() for case in cases}))
def test_the_same_code_unchanged_passes(mutate, claims, case):
    op = case.split("/")[0]
    unchanged = "from __future__ import annotations\n"
    cls = mutate("switchrail.ops.slots", unchanged, unchanged, path=PATHS[op], reloaded=SHARED)
    outcome = run_case(find(claims, case, cls))
    assert outcome.status == "passed", outcome.message
