"""Random samples of `gated_delta` and of other delta-rule ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from switchrail.ops.contract import Contract
from switchrail.ops.gated_delta import DEFINITION
from switchrail.ops.gated_delta.contract import CONTRACT
from switchrail.ops.gates import GateKind
from switchrail.ops.samples.draws import StateDraws
from switchrail.ops.samples.random import Gate, log_decay, views
from switchrail.ops.samples.sample import Sample
from switchrail.ops.samples.scenario import GATES, Scenario, Timed, heads, timed


def gated_delta_call(
    lengths: Sequence[int],
    *,
    contract: Contract = CONTRACT,
    heads: int = 2,
    value_heads: int = 4,
    key_size: int = 16,
    value_size: int = 16,
    gate: Gate = "decaying",
    raw: GateKind | None = None,
    beta_scale: float | None = None,
    beta_max: float = 1.0,
    correlated: bool = False,
    zero_keys: bool = False,
    qk_l2norm: bool = True,
    **shared: Any,
) -> Sample:
    """Makes a random sample of `gated_delta`; the argument `norm` multiplies q, k, v and the state.

    Args:
        lengths: Tokens per sequence; 1 each in decode.
        contract: The op's contract. If its gates have the axis K, each channel has a gate of its own.
        heads: H, the number of q/k heads.
        value_heads: HV, the number of value heads.
        key_size: K, the head size of q and k.
        value_size: V, the head size of v.
        gate: The kind of decays, as in `log_decay`.
        raw: The kind of raw gates that produce these decays; None passes the decays themselves. With
            `sigmoid`, a token's decay is at least e^-5.
        beta_scale: The `beta_scale` option, which makes beta raw; None omits it.
        beta_max: The upper bound of beta; without effect if `beta_scale` is given.
        correlated: Whether all keys of a head are nearly parallel.
        zero_keys: Whether every third key and every fifth query is zero.
        qk_l2norm: The `qk_l2norm` option; if False, q and k are normalised in advance, without `norm`.
        **shared: The arguments of `StateDraws`.
    """
    draws = StateDraws(contract=contract, lengths=lengths, **shared)
    random, compute = draws.random, draws.compute
    q = draws.rows(heads, key_size)
    k = draws.rows(heads, key_size)
    if correlated:
        k = random.normal(1, heads, key_size) + 0.1 * k
    if zero_keys:
        k[::3] = 0
        q[::5] = 0
    if not qk_l2norm:
        k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    else:
        q, k = q * draws.norm, k * draws.norm
    v = draws.rows(value_heads, value_size) * draws.norm
    channels = [key_size] if "K" in contract.tensors["g"].axes else []
    g = log_decay(random, gate, draws.count, value_heads, *channels)
    beta = random.uniform(draws.count, value_heads) * beta_max
    options: dict[str, Any] = {"scale": key_size**-0.5, "qk_l2norm": qk_l2norm}
    tensors: dict[str, torch.Tensor | None] = {}
    if raw is not None:
        rate = random.normal(value_heads)
        bias = random.normal(value_heads, *channels)
        tensors |= {"A_log": rate.to(compute), "dt_bias": bias.to(compute)}
        options["gate"] = raw
        if raw == "sigmoid":
            options["lower_bound"] = -5.0
        g = _raw_gate(g, raw, rate.exp().view(-1, *[1] * len(channels))) - bias
    if beta_scale is not None:
        options["beta_scale"] = beta_scale
        beta = 3 * draws.rows(value_heads)
    tensors["q"], tensors["k"], tensors["v"] = views([q, k, v], draws.dtype, draws.strided)
    (tensors["g"],) = views([g], compute if raw is None else draws.dtype, draws.strided)
    (tensors["beta"],) = views([beta], draws.dtype, draws.strided)
    tensors["state"] = draws.pool(value_heads, value_size, key_size, dtype=compute, factor=0.5 * draws.norm)
    tensors["out"] = draws.unset(value_heads, value_size)
    return draws.sample(tensors, **options)


def _raw_gate(g: torch.Tensor, raw: GateKind, rate: torch.Tensor) -> torch.Tensor:
    """The raw gate plus bias that gives about the log decay `g`; finite and small in magnitude."""
    if raw == "softplus":
        target = -g.clamp(-100, -1e-9) / rate
        return target + torch.log(-torch.expm1(-target))
    share = (g / -5.0).clamp(1e-9, 1 - 1e-4)
    return torch.log(share / (1 - share)) / rate


SCENARIOS = (
    *heads({"heads": 1, "value_heads": 1}, {"heads": 1, "value_heads": 3}, {"heads": 3, "value_heads": 3}),
    *(
        Scenario(
            name=f"hard-{gate}",
            about=f"beta up to 2 and nearly parallel keys, with {text}",
            prefill=(100, 64),
            arguments={"gate": gate, "beta_max": 2.0, "correlated": True},
            hardness="hard",
            core=gate == "mixed",
        )
        for gate, text in GATES.items()
    ),
    Scenario(name="large-norms", about="large inputs and states", arguments={"norm": 30.0}),
    *(
        Scenario(
            name=name,
            about="small beta and decays near 1: the last output still depends on the first token",
            prefill=lengths,
            decode=None,
            verify=None,
            arguments={"gate": "near_one", "beta_max": 1e-3, "initial": "all"},
            quick=quick,
        )
        for name, lengths, quick in (("remembering", (8192, 3), False), ("remembering-quick", (300, 3), True))
    ),
    Scenario(name="normalised", about="q and k are normalised by the caller", arguments={"qk_l2norm": False}),
    Scenario(name="beta-2", about="beta up to 2", arguments={"beta_max": 2.0}, hardness="hard"),
    *(
        Scenario(
            name=f"raw-{kind}",
            about=f"raw gates of the kind {kind}, and raw betas",
            arguments={"raw": kind, "beta_scale": scale, "gate": "mixed", "initial": "all"},
            hardness="hard",
            features=("raw_gates",),
            core=kind == "softplus",
        )
        for kind, scale in (("softplus", 1.0), ("sigmoid", 2.0))
    ),
)

(_SIZES,) = DEFINITION.sizes

TIMED = (
    *timed("prefill", _SIZES, (2048,), (8192,), (1024,) * 8, (32768,), (4096,) * 8, (2048,) * 16),
    *timed("prefill", _SIZES, (32768,), (2048,) * 16, decays=False),
    *timed("prefill", _SIZES, (100,) * 300),
    *timed("prefill", _SIZES, (28672, 4096), (30000, *(32,) * 64), held_out=True),
    *timed("decode", _SIZES, *((1,) * count for count in (1, 8, 32, 128, 256))),
)


def flops(case: Timed, axes: Mapping[str, int]) -> float:
    """Floating-point operations on tensor cores if computed in chunks of 64."""
    key, value = axes["K"], axes["V"]
    return sum(case.lengths) * axes["HV"] * (2 * 64 * (3 * key + 2 * value) + 6 * key * value)


__all__ = ["SCENARIOS", "TIMED", "flops", "gated_delta_call"]
