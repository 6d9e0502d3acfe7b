"""The Triton kernels of flash-linear-attention."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import torch
from switchrail.testing.inputs import Sample

from benchmarks.ops.cases import Case
from benchmarks.ops.clock import Run
from benchmarks.ops.peers.states import normalised, on_own_states, with_slots

os.environ |= {"FLA_FLASH_QLA": "0", "FLA_TILELANG": "0"}  # otherwise FLA calls other libraries that it finds

from fla.modules.causal_conv1d import causal_conv1d, causal_conv1d_update
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from fla.ops.kda import chunk_kda, fused_recurrent_kda
from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla

DELTA = {
    ("gated_delta", "prefill"): chunk_gated_delta_rule,
    ("gated_delta", "decode"): fused_recurrent_gated_delta_rule,
    ("kda", "prefill"): chunk_kda,
    ("kda", "decode"): fused_recurrent_kda,
}
GLA = {"prefill": chunk_simple_gla, "decode": fused_recurrent_simple_gla}

Step = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def peers(case: Case, call: Sample) -> dict[str, Run]:
    """`FLA` and `FLA bare` for the ops that FLA supports; in decode only `FLA bare`."""
    if case.op in ("gated_delta", "kda"):
        both = _delta(call)
    elif case.op == "lightning":
        both = _lightning(call)
    elif case.op == "mamba2":
        both = _mamba2(call)
    elif case.op == "short_conv":
        both = _short_conv(call)
    else:
        return {}
    if call.phase == "decode":
        both.pop("FLA", None)
    return both


def _common(call: Sample) -> dict[str, object]:
    return {
        "output_final_state": True,
        "state_v_first": True,
        "cu_seqlens": call.batch.cu_seqlens,
        "scale": call.options.get("scale", 1.0),
    }


def _delta(call: Sample) -> dict[str, Run]:
    q, k, v, g, beta = (call.tensors[name][None] for name in ("q", "k", "v", "g", "beta"))
    function = partial(DELTA[call.op, call.phase], g=g, beta=beta)
    views = partial(function, q, k, v, use_qk_l2norm_in_kernel=True)
    return _both(call, views, partial(function, normalised(q), normalised(k), v.contiguous()))


def _lightning(call: Sample) -> dict[str, Run]:
    function = partial(GLA[call.phase], g_gamma=call.tensors["g"])
    views = [call.tensors[name][None] for name in ("q", "k", "v")]
    return _both(call, partial(function, *views), partial(function, *(view.contiguous() for view in views)))


def _both(call: Sample, views: Step, dense: Step) -> dict[str, Run]:
    """`FLA`, which runs `views` on strided inputs, and `FLA bare`, which runs `dense` on dense ones."""
    common = _common(call)
    return {
        "FLA": with_slots(call, lambda states: views(initial_state=states, **common)),
        "FLA bare": on_own_states(call, lambda states: dense(initial_state=states, **common)),
    }


def _mamba2(call: Sample) -> dict[str, Run]:
    """Uses simple_gla, FLA's nearest function: expands groups to heads, and turns time steps into gates and
    scales of x."""
    function, common = GLA[call.phase], _common(call)
    x, b, c, dt = (call.tensors[name] for name in ("x", "B", "C", "dt"))
    rate, skip, bias = (call.tensors[name] for name in ("A", "D", "dt_bias"))
    repeats = x.shape[1] // b.shape[1]

    def prepare() -> tuple[list[torch.Tensor], torch.Tensor]:
        steps = torch.nn.functional.softplus(dt.float() + bias.float())
        heads = [t.repeat_interleave(repeats, dim=1)[None] for t in (c, b)]
        return [*heads, (x * steps[..., None]).to(x.dtype)[None]], (steps * rate)[None]

    dense, gates = prepare()

    def whole(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        heads, decays = prepare()
        out, after = function(*heads, g=decays, initial_state=states, **common)
        return out + (x * skip[:, None]).to(x.dtype), after

    def bare(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return function(*dense, g=gates, initial_state=states, **common)

    whole_run, bare_run = with_slots(call, whole), on_own_states(call, bare)

    def without_result() -> None:  # the skip connection is missing in FLA's result
        bare_run()

    return {"FLA": whole_run, "FLA bare": without_result}


def _short_conv(call: Sample) -> dict[str, Run]:
    """FLA's states have one more column, at the front, which a call does not read."""
    x, weight, bias = (call.tensors[name] for name in ("x", "weight", "bias"))
    wide = torch.nn.functional.pad(call.state.index_select(0, call.batch.read_slots), (1, 0)).contiguous()

    def convolve(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return causal_conv1d(
            x[None],
            weight,
            bias,
            initial_state=states,
            output_final_state=True,
            activation="silu",
            cu_seqlens=call.batch.cu_seqlens,
        )

    def whole(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, after = convolve(torch.nn.functional.pad(states, (1, 0)))
        return out, after[..., 1:]

    def bare() -> torch.Tensor:
        with torch.inference_mode():
            return convolve(wide)[0][0]

    def update() -> None:  # each call advances `wide`
        with torch.inference_mode():
            causal_conv1d_update(x, wide, weight=weight, bias=bias, activation="silu")

    if call.phase == "prefill":
        return {"FLA": with_slots(call, whole), "FLA bare": bare}
    return {"FLA bare": update}
