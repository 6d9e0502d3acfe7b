"""Each mutant changes a line of a plain-torch backend; the cases written to catch this change must fail."""

import pytest
import switchrail
from switchrail.ops.catalog import DEFINITIONS
from switchrail.testing.conformance import run_case

from tests.sabotage import case_of

SHARED = frozenset(
    f"switchrail.ops.{name}" for name in ("pages", "softmax", "slots", "chunks", "recurrent", "delta")
)
PATHS = {
    op: f"{definition.torch.__module__}:{definition.torch.__name__}" for op, definition in DEFINITIONS.items()
}
ROUNDED = "({}.contiguous().view(torch.int32) & -8192).view(torch.float32)"
"""An expression that truncates a float32 tensor to TF32's precision."""
PHASES = ("prefill", "decode", "verify")
CHECKED = "        self.contract.check_call(call, batch, self.contract.feature_names)\n"

# description: (module below switchrail.ops, original text, changed text, cases)
MUTANTS = {
    "k and v swapped": (
        "attention.torch",
        "    layer, q, out, _ = call\n    k_cache, v_cache, ",
        "    layer, q, out, _ = call\n    v_cache, k_cache, ",
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
        "        keys_queries[:, :, 1] *= layer.scale\n",
        f"        keys_queries[:, :, 1] *= layer.scale; keys_queries = {ROUNDED.format('keys_queries')}\n",
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
    "a causal mask one too wide": (
        "pages",
        "mask = positions[first:seen] <= own",
        "mask = positions[first:seen] < own + 2",
        ["attention/prefill/float32/past", "mla/prefill/bfloat16/past"],
    ),
    "rows that don't see themselves": (
        "pages",
        "mask = positions[first:seen] <= own",
        "mask = positions[first:seen] < own",
        ["mla/prefill/float32/past", "attention/prefill/bfloat16/past"],
    ),
    "the end of a cache not masked": (
        "pages",
        "not self._batch.kv_bounds and bool(mask.all())",
        "not self._batch.kv_bounds and bool(mask.any())",
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
        "        if self._unwritten is not None:\n",
        "        if self._unwritten is None:\n",
        ["mamba2/prefill/float32/untouched-slots", "short_conv/decode/float32/padding"],
    ),
    "rows of padding written": (
        "chunks",
        "            result.masked_fill_(self.padding_rows.view(-1, *[1] * (result.ndim - 1)), 0)\n",
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
        "log_decay = activate_gate(g, layer, compute)",
        "log_decay = activate_gate(g.exp(), layer, compute)",
        ["gated_delta/prefill/float32/gate-decaying", "kda/decode/float32/gate-decaying"],
    ),
    "huge gates summed in float32": (
        "gated_delta.torch",
        ".view(n, chunk, value_heads).double()\n",
        ".view(n, chunk, value_heads).float()\n",
        ["gated_delta/prefill/float32/forgetting"],
    ),
    "beta dropped": (
        "delta",
        "weight = activate_beta(beta, layer.beta_scale, compute)",
        "weight = torch.ones_like(beta)",
        ["gated_delta/prefill/bfloat16/ragged", "kda/decode/float32/ragged"],
    ),
    "scale forgotten": (
        "delta",
        "keys_queries[:, :, 1] *= layer.scale",
        "keys_queries[:, :, 1] *= 1.0",
        ["gated_delta/prefill/float32/ragged", "kda/decode/float32/ragged"],
    ),
    "q and k normalised though not requested": (
        "delta",
        "        if layer.qk_l2norm:\n",
        "        if layer.qk_l2norm or True:\n",
        ["gated_delta/prefill/float32/as-given", "kda/decode/float32/as-given"],
    ),
    "first rows that see the sequence before theirs": (
        "short_conv.torch",
        "    y.index_copy_(0, ends.first_rows, (windows * taps).sum(1))\n",
        "    windows.sum()\n",
        ["short_conv/prefill/float32/neighbours", "short_conv/prefill/float32/ragged"],
    ),
    "heads of states in reversed order": (
        "mamba2.torch",
        "by_group = states.view(len(inputs) * B.shape[1], -1, B.shape[2])",
        "by_group = states.flip(1).view(len(inputs) * B.shape[1], -1, B.shape[2])",
        ["mamba2/decode/float32/ragged"],
    ),
    "time steps not limited": (
        "mamba2.torch",
        "return dt.clamp(layer.dt_min, layer.dt_max)",
        "return dt.clamp(min=layer.dt_min)",
        ["mamba2/prefill/float32/limited-steps"],
    ),
    "a log-sum-exp in base 2": (
        "softmax",
        "return out, total.log() + top",
        "return out, total.log2() + top",
        [
            "attention/prefill/float32/log-sum-exp",
            "mla/decode/float32/merged",
            "attention/decode/float32/merged",
        ],
    ),
    "logits not multiplied by soft_cap after the tanh": (
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
    "results that differ from call to call": (
        "chunks",
        "        out.copy_(result)\n",
        "        out.copy_(result * (1 + 1e-6 * torch.rand_like(result)))\n",
        ["gated_delta/prefill/float32/again"],
    ),
    "a sequence whose result depends on the batch": (
        "delta",
        "weight = activate_beta(beta, layer.beta_scale, compute)",
        "weight = activate_beta(beta, layer.beta_scale, compute) * (1 + 1e-5 * len(beta))",
        ["gated_delta/prefill/float32/company", "gated_delta/decode/float32/company"],
    ),
    "an input modified": (
        "delta",
        "weight = activate_beta(beta, layer.beta_scale, compute)",
        "weight = activate_beta(beta.mul_(1 + 3e-7), layer.beta_scale, compute)",
        ["gated_delta/prefill/float32/ragged"],
    ),
    "a number written before the output": (
        "chunks",
        "        out.copy_(result)\n",
        "        out.copy_(result); out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(0)\n",
        ["gated_delta/prefill/float32/guards", "gated_delta/decode/float32/guards"],
    ),
    "nothing checked": (
        "recurrent",
        CHECKED,
        "",
        ["gated_delta/prefill/float32/refusals"],
    ),
    "a checkpoint taken one chunk late": (
        "chunks",
        "kept[(index + 1) * every // chunk - 1]",
        "kept[(index + 1) * every // chunk]",
        ["gated_delta/prefill/float32/checkpoints"],
    ),
    "a commit of no rows treated as a commit of a row": (
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
    "a tree of states treated as a chain": (
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
    "the decay applied twice": (
        "delta",
        "log_decay = activate_gate(g, layer, compute)",
        "log_decay = activate_gate(2 * g, layer, compute)",
        ["gated_delta/prefill/float32/gate-decaying", "kda/decode/bfloat16/ragged"],
    ),
    "the decay ignored": (
        "delta",
        "log_decay = activate_gate(g, layer, compute)",
        "log_decay = activate_gate(0 * g, layer, compute)",
        ["gated_delta/decode/bfloat16/ragged", "kda/prefill/float32/gate-decaying"],
    ),
    "q and k not normalised": (
        "delta",
        "        if layer.qk_l2norm:\n",
        "        if layer.qk_l2norm and False:\n",
        ["gated_delta/prefill/float32/ragged", "kda/decode/bfloat16/ragged"],
    ),
    "states written transposed": (
        "slots",
        "        states = states.to(pool.dtype)\n",
        "        states = states.to(pool.dtype).mT.contiguous()\n",
        ["gated_delta/prefill/float32/ragged", "lightning/decode/bfloat16/ragged"],
    ),
    "states read transposed": (
        "slots",
        "states = pool.index_select(0, self._read).to(dtype)",
        "states = pool.index_select(0, self._read).mT.contiguous().to(dtype)",
        ["kda/decode/float32/ragged", "mamba2/prefill/float32/ragged"],
    ),
    "states written to the slots of others": (
        "slots",
        "self._write = write.clamp_min(0)",
        "self._write = write.clamp_min(0).flip(0)",
        ["gated_delta/decode/float32/ragged"],
    ),
    "a state written one slot too far": (
        "slots",
        "        self._write = write.clamp_min(0)\n",
        "        self._write = write.clamp_min(0); self._write[-1] -= 1\n",
        ["lightning/decode/float32/initial-states"],
    ),
    "a dirty slot read after an empty sequence": (
        "slots",
        "fresh = ~batch.has_initial_state[index]",
        "after = torch.tensor([n > 0 and not batch.seqlens[n - 1] for n in sequences])\n"
        "        fresh = ~batch.has_initial_state[index] & ~after",
        ["gated_delta/prefill/float32/many"],
    ),
    "sequences without a state that start from ones instead of zeros": (
        "slots",
        "states = torch.where(_broadcast(self._fresh, states), 0, states)",
        "states = torch.where(_broadcast(self._fresh, states), 1, states)",
        ["gated_delta/prefill/float32/ragged", "mamba2/prefill/bfloat16/ragged"],
    ),
    "the last row never written": (
        "chunks",
        "        out.copy_(result)\n",
        "        out[:-1].copy_(result[:-1])\n",
        ["gated_delta/prefill/float32/ragged", "kda/decode/bfloat16/ragged"],
    ),
    "heads reversed": (
        "chunks",
        "        out.copy_(result)\n",
        "        out.copy_(result.flip(1))\n",
        ["gated_delta/prefill/float32/ragged", "lightning/decode/bfloat16/ragged"],
    ),
    "heads written in interleaved order": (
        "chunks",
        "        out.copy_(result)\n",
        "        out.copy_(result.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2))\n",
        ["gated_delta/prefill/bfloat16/ragged"],
    ),
    "key-value heads shared in interleaved order": (
        "attention.torch",
        "        k = take(k_cache, many.tokens).transpose(0, 1)[None]\n"
        "        v = take(v_cache, many.tokens).transpose(0, 1)[None]\n",
        "        k, v = (take(x, many.tokens).transpose(0, 1)[None] for x in (k_cache, v_cache))\n"
        "        k, v = (x.repeat(1, q.shape[1] // kv_heads, 1, 1) for x in (k, v))\n",
        ["attention/prefill/float32/around-16", "attention/prefill/bfloat16/past"],
    ),
    "rows one too late": (
        "chunks",
        "        out.copy_(result)\n",
        "        out.copy_(result.roll(1, 0))\n",
        ["gated_delta/prefill/float32/around-16"],
    ),
    "a chunk's rows without their own token": (
        "gated_delta.torch",
        "device=b.device).triu(1)",
        "device=b.device).triu(0)",
        ["gated_delta/prefill/float32/ragged", "gated_delta/prefill/bfloat16/ragged"],
    ),
    "tokens looked up one page too early": (
        "pages",
        "tokens = table.gather(1, positions // page) * page + positions % page",
        "tokens = table.gather(1, (positions // page - 1).clamp_min(0)) * page + positions % page",
        ["attention/decode/float32/ragged", "mla/decode/bfloat16/ragged"],
    ),
    "the first token of a page looked up in the one before": (
        "pages",
        "tokens = table.gather(1, positions // page) * page + positions % page",
        "tokens = table.gather(1, (positions - 1).clamp_min(0) // page) * page + positions % page",
        ["attention/decode/float32/past-around-16"],
    ),
    "betas of a layer's first call": (
        "delta",
        "weight = activate_beta(beta, layer.beta_scale, compute)",
        "weight = layer.kept.setdefault(beta.shape, activate_beta(beta, layer.beta_scale, compute))",
        [f"{op}/{phase}/float32/one-layer" for op in ("gated_delta", "kda") for phase in PHASES],
    ),
    "betas remembered by their address": (
        "delta",
        "weight = activate_beta(beta, layer.beta_scale, compute)",
        "weight = activate_beta(beta, layer.beta_scale, compute).clone()\n"
        "        weight = layer.kept.setdefault((beta.data_ptr(), beta.shape), weight)",
        [f"{op}/{phase}/float32/one-layer" for op in ("gated_delta", "kda") for phase in PHASES],
    ),
    **{
        f"activations of a layer's first call, {op}": (
            f"{op}.torch",
            f"layer, {first}",
            f"layer, {first}; {name} = layer.kept.setdefault({name}.shape, {name})",
            [f"{op}/{phase}/float32/one-layer" for phase in PHASES],
        )
        for op, name, first in (
            ("attention", "q", "q, out, _ = call"),
            ("mla", "q_rope", "q_nope, q_rope, out, lse = call"),
            ("lightning", "v", "q, k, v, _ = call"),
            ("mamba2", "dt", "x, B, C, dt, _ = call"),
            ("short_conv", "x", "x, out = call"),
        )
    },
    "the plan of a layer's first call": (
        "recurrent",
        "        check_plan(plan, batch, (ChunkPlan,), TreePlan)\n",
        "        check_plan(plan, batch, (ChunkPlan,), TreePlan)\n"
        "        plan = call[0].kept.setdefault((type(plan), plan.seqlens), plan)\n",
        [f"gated_delta/{phase}/float32/one-layer" for phase in PHASES],
    ),
    "the pages of a layer's first call": (
        "attention.torch",
        "    parts = plan.parts(page, window=window, longer=_has_flash(q, k_cache[0], v_cache[0]))\n",
        "    parts = plan.parts(page, window=window, longer=_has_flash(q, k_cache[0], v_cache[0]))\n"
        "    parts = layer.kept.setdefault(plan.seqlens, parts)\n",
        [f"attention/{phase}/float32/one-layer" for phase in PHASES],
    ),
    "the phase of a layer's first call": (
        "recurrent",
        "        if plan.positions is None:\n",
        "        if call[0].kept.setdefault('single', plan.positions is None):\n",
        ["gated_delta/prefill/float32/one-layer", "kda/decode/float32/one-layer"],
    ),
    "the record of a layer's first verification": (
        "recurrent",
        "        last = accepted.index_select(0, plan.sequences)\n",
        "        last = accepted.index_select(0, plan.sequences)\n"
        "        record = call[0].kept.setdefault(record.shape, record)\n",
        [f"{op}/verify/float32/one-layer" for op in ("gated_delta", "lightning", "mamba2", "short_conv")],
    ),
    "only a layer's first call checked": (
        "recurrent",
        CHECKED,
        "        call[0].kept.get('checked') or call[0].kept.setdefault(\n"
        "            'checked', self.contract.check_call(call, batch, self.contract.feature_names) or True\n"
        "        )\n",
        [f"{op}/{phase}/float32/refusals" for op in ("gated_delta", "kda") for phase in PHASES],
    ),
    "only the first call of each number of rows checked": (
        "recurrent",
        CHECKED,
        "        call[0].kept.get(len(call[1])) or call[0].kept.setdefault(\n"
        "            len(call[1]),\n"
        "            self.contract.check_call(call, batch, self.contract.feature_names) or True,\n"
        "        )\n",
        ["gated_delta/prefill/float32/refusals", "kda/verify/float32/refusals"],
    ),
    "checked without the batch": (
        "recurrent",
        CHECKED,
        "        seen = tuple((x.shape, x.dtype, x.stride()) for x in call[1:])\n"
        "        call[0].kept.get(seen) or call[0].kept.setdefault(\n"
        "            seen, self.contract.check_call(call, batch, self.contract.feature_names) or True\n"
        "        )\n",
        [f"gated_delta/{phase}/float32/refusals" for phase in PHASES],
    ),
    "a plan that a call changes": (
        "recurrent",
        "    plan.write_rows(step(states, None), out)\n",
        "    plan.write_rows(step(states, None), out); plan.slots._read += 1\n",
        ["gated_delta/decode/float32/again"],
    ),
}

AGAIN = "a layer that was called before gives a different result than a new layer"

# words of the report that point to the mistake
REPORTS = {
    "k and v swapped": ["k_cache and v_cache are swapped"],
    "q and k swapped": ["q and k are swapped"],
    "TF32 logits": ["off by a little, as after rounding", "TF32"],
    "TF32 products with the state": ["off by a little, as after rounding", "TF32"],
    "a 32-bit offset of slots": ["slots more than 2^31 elements into a pool give other results"],
    "a window one too wide": ["the window is one too wide"],
    "a window one too narrow": ["the window is one too narrow"],
    "a causal mask one too wide": ["rows see one position too many: the causal mask is off by one"],
    "rows that don't see themselves": ["rows don't see their own position: the causal mask is off by one"],
    "a stale slot": ["a slot that no sequence starts from is read"],
    "a dirty slot read": ["a slot that no sequence starts from is read"],
    "initial states ignored": ["initial states are ignored"],
    "states of padding written": ["slot 0, which no sequence owns, is written"],
    "the last chunk dropped": [
        "only rows of the last of several chunks of 16 are wrong",
        "the state leaves out the last chunk of 16",
    ],
    "decay dropped from one chunk to the next": ["only rows after the first chunk of"],
    "a gate in the wrong space": ["exp is applied to the decay once too often"],
    "beta dropped": ["beta is ignored"],
    "scale forgotten": ["got / expected is constant", "4 = 1/scale = sqrt(K) with K = 16", "forgotten"],
    "q and k normalised though not requested": ["q and k are normalised though qk_l2norm is False"],
    "time steps not limited": ["dt_max is ignored"],
    "logits not multiplied by soft_cap after the tanh": [
        "with soft_cap, logits are not multiplied by it after the tanh"
    ],
    "a sink left out of the sum": ["sinks is ignored"],
    "results that differ from call to call": [
        "repeating the call gives different bits",
        "the bits differ, but the numbers agree within rounding",
    ],
    "a sequence whose result depends on the batch": [
        "a sequence gives a different result alone than in a batch"
    ],
    "an input modified": ["an input is modified: beta, first at sequence 0, row 0, head 0:"],
    "a number written before the output": [
        "memory outside out is written: 1 number, the nearest 1 number before"
    ],
    "nothing checked": ["an input that breaks the contract is not refused"],
    "betas of a layer's first call": [AGAIN],
    "betas remembered by their address": [AGAIN, "a call with the same tensors but new values"],
    "the plan of a layer's first call": [AGAIN],
    "the pages of a layer's first call": [AGAIN],
    "the record of a layer's first verification": [AGAIN],
    "only a layer's first call checked": [
        " of a layer that was called before: it was not refused",
        "an input that breaks the contract is not refused",
    ],
    "a commit one row late": ["the result is the state after the row after the accepted one"],
    "a tree of states treated as a chain": ["the tree is treated as a chain"],
    "live states written by a verification": ["a read-only slot is written: slot"],
    "the decay applied twice": ["the decay is applied twice"],
    "the decay ignored": ["the decay is ignored"],
    "q and k not normalised": ["q and k are not normalised"],
    "states written transposed": ["the states are transposed: got K x V, expected V x K"],
    "states read transposed": ["initial states are read transposed"],
    "states written to the slots of others": [
        "states are in the slots of others: slot 4 of sequence 0 holds the state of slot 7 of sequence 6"
    ],
    "a state written one slot too far": [
        "states are never written: slot",
        "states are in the slots of others",
        "holds the state of slot",
    ],
    "a dirty slot read after an empty sequence": [
        "a slot that no sequence starts from is read",
        "only sequences that follow an empty one are wrong",
    ],
    "sequences without a state that start from ones instead of zeros": [
        "only sequences without an initial state are wrong"
    ],
    "the last row never written": [
        "numbers are never written: 64 of",
        "including 1 whole row, first at sequence 6",
    ],
    "heads reversed": ["the heads are in the wrong order: they are reversed"],
    "heads written in interleaved order": [
        "the heads are in the wrong order: head 1 holds head 2",
        "grouped as",
    ],
    "key-value heads shared in interleaved order": [
        "heads are grouped in the wrong order: head i uses i % HKV, not i // (H / HKV)"
    ],
    "rows one too late": ["rows are off by 1: each holds the result of the row before it"],
    "a chunk's rows without their own token": ["rows don't read their own token", "mask is off by one"],
    "tokens looked up one page too early": ["tokens after the first page are looked up one page too early"],
    "the first token of a page looked up in the one before": [
        "only rows past the first page boundary are wrong"
    ],
}


@pytest.fixture(scope="module")
def claims():
    """The registrations of the torch backends, by op."""
    with switchrail.testing.isolated() as runtime:
        return {op: runtime.backend(op, "torch") for op in PATHS}


@pytest.mark.parametrize(
    ("what", "case"), [(what, case) for what, (*_, cases) in MUTANTS.items() for case in cases]
)
def test_a_mutant_is_caught(mutate, claims, what, case):
    module, old, new, _ = MUTANTS[what]
    op = case.split("/")[0]
    cls = mutate(f"switchrail.ops.{module}", old, new, path=PATHS[op], reloaded=SHARED)
    outcome = run_case(case_of(claims[op], case, cls, quick=True))
    assert outcome.status == "failed"
    assert "it raised" not in outcome.message, outcome.message
    assert "can't tell" not in outcome.message
    for words in REPORTS.get(what, ()):
        assert words in outcome.message


def test_every_report_is_of_a_mutant():
    assert REPORTS.keys() <= MUTANTS.keys()


@pytest.mark.parametrize("op", PATHS)
def test_the_same_code_unchanged_passes(mutate, claims, op):
    """Code that is loaded again unchanged passes, so a mutant fails because of its change."""
    cases = sorted({case for *_, cases in MUTANTS.values() for case in cases if case.startswith(f"{op}/")})
    unchanged = "from __future__ import annotations\n"
    cls = mutate("switchrail.ops.slots", unchanged, unchanged, path=PATHS[op], reloaded=SHARED)
    outcome = run_case(case_of(claims[op], cases[0], cls, quick=True))
    assert outcome.status == "passed", outcome.message
