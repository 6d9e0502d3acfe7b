"""Calls that are held against the oracle, as data: what each op's contract allows and kernels get wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchrail.testing.conformance.bounds import Hardness
from switchrail.testing.conformance.setting import DELTA, GATED, PAGED, RECURRENT

EVERY = (*RECURRENT, *PAGED)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A call that is held against the oracle.

    Attributes:
        name: Its name, unique with the op.
        about: What it is for.
        ops: The ops that have it.
        prefill: The lengths in prefill; None where there is nothing of the kind.
        decode: The number of sequences in decode; None likewise.
        verify: The numbers of drafted rows in verify; None likewise.
        arguments: Of the op's generator.
        past: Whether, in prefill, there are tokens in the cache before those of the call.
        hardness: The row of the table of bounds.
        features: What the backend must claim.
        core: Whether a quick run has it in every dtype, and not in the first one only.
        quick: Whether a quick run has it at all.
    """

    name: str
    about: str
    ops: tuple[str, ...] = EVERY
    prefill: tuple[int, ...] | None = (70, 9, 0, 33)
    decode: int | None = 4
    verify: tuple[int, ...] | None = (3, 5, 0, 1)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    past: bool = False
    hardness: Hardness = "usual"
    features: tuple[str, ...] = ()
    core: bool = False
    quick: bool = True


def _blocks() -> list[Scenario]:
    sizes = (16, 32, 64, 128, 256)
    return [
        Scenario(
            name=f"around-{size}",
            about=f"lengths around a block of {size}",
            prefill=(size - 1, size, size + 1, 2 * size + 1),
            decode=None,
            verify=None,
            quick=size in (16, 64),
        )
        for size in sizes
    ] + [
        Scenario(
            name=f"past-around-{size}",
            about=f"caches around a block of {size}",
            ops=PAGED,
            prefill=(5, 1, 2, 7),
            arguments={"kv_lengths": (size - 1 + 5, size, size + 1, 2 * size + 1)},
            verify=(5, 1, 2, 7),
            quick=size in (16, 64),
        )
        for size in sizes
    ]


def _gates() -> list[Scenario]:
    about = {
        "decaying": "decays like a trained model's",
        "near_zero": "decays near 0 and exactly 0: the past is forgotten at once",
        "near_one": "decays near 1: the past is kept long",
        "one": "no decay at all",
        "mixed": "decays of every kind, from number to number",
    }
    plain = [
        Scenario(
            name=f"gate-{gate}",
            about=text,
            ops=GATED,
            prefill=(1, 70, 33),
            arguments={"gate": gate, "initial": "all"},
            core=gate == "mixed",
        )
        for gate, text in about.items()
    ]
    hard = [
        Scenario(
            name=f"hard-{gate}",
            about=f"beta up to 2 and keys that nearly agree, with {text}",
            ops=DELTA,
            prefill=(100, 64),
            arguments={"gate": gate, "beta_max": 2.0, "correlated": True},
            hardness="hard",
            core=gate == "mixed",
        )
        for gate, text in about.items()
    ]
    return plain + hard


def _heads() -> list[Scenario]:
    delta = [{"heads": 1, "value_heads": 1}, {"heads": 1, "value_heads": 3}, {"heads": 3, "value_heads": 3}]
    mamba = [{"heads": 1, "groups": 1}, {"heads": 3, "groups": 1}, {"heads": 3, "groups": 3}]
    attention = [{"heads": 1, "kv_heads": 1}, {"heads": 8, "kv_heads": 1}, {"heads": 6, "kv_heads": 2}]
    each: list[tuple[tuple[str, ...], list[dict[str, int]]]] = [
        (DELTA, delta),
        (("mamba2",), mamba),
        (("attention",), attention),
        (("lightning", "mla"), [{"heads": 1}, {"heads": 3}]),
    ]
    return [
        Scenario(
            name=f"heads-{'-'.join(str(count) for count in arguments.values())}",
            about="other numbers of heads: " + ", ".join(f"{name} {n}" for name, n in arguments.items()),
            ops=ops,
            prefill=(35, 5),
            arguments=arguments,
        )
        for ops, choices in each
        for arguments in choices
    ]


_ATTENTION_FEATURES: tuple[tuple[str, str, dict[str, Any], tuple[str, ...]], ...] = (
    ("window-1", "each row sees itself only", {"window": 1}, ("window",)),
    ("window-16", "a window of one block", {"window": 16}, ("window",)),
    ("window-33", "a window that ends within a block", {"window": 33}, ("window",)),
    ("window-1000", "a window wider than all", {"window": 1000}, ("window",)),
    ("soft-cap", "capped logits", {"soft_cap": 5.0}, ("soft_cap",)),
    ("soft-cap-large", "a cap far above the logits", {"soft_cap": 1e5}, ("soft_cap",)),
    ("sinks", "a sink a head", {"sinks": True}, ("sinks",)),
    ("log-sum-exp", "the log-sum-exp is asked for", {"lse": True}, ("lse",)),
    (
        "features",
        "all features together",
        {"window": 33, "soft_cap": 5.0, "sinks": True, "lse": True},
        ("window", "soft_cap", "sinks", "lse"),
    ),
)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="ragged",
        about="lengths that have nothing in common",
        prefill=(1, 0, 3, 17, 0, 70, 33),
        decode=7,
        core=True,
    ),
    Scenario(name="none", about="no sequence at all", prefill=(), decode=0, verify=()),
    Scenario(name="empty", about="sequences without a row", prefill=(0, 0), decode=None, verify=(0, 0)),
    Scenario(name="one-token", about="one row each", prefill=(1,) * 5, decode=1, verify=(1,) * 3),
    Scenario(
        name="many",
        about="many short sequences",
        prefill=tuple(n % 7 for n in range(40)),
        decode=40,
        verify=tuple(n % 4 for n in range(20)),
    ),
    Scenario(
        name="long",
        about="one long sequence beside a short one",
        prefill=(1500, 3),
        decode=None,
        verify=None,
        quick=False,
    ),
    Scenario(
        name="long-quick",
        about="one sequence of several blocks beside a short one",
        prefill=(300, 3),
        decode=None,
        verify=None,
    ),
    *_blocks(),
    Scenario(name="padding", about="a sequence of padding", arguments={"padding": (1,)}, core=True),
    Scenario(name="padding-first", about="padding at both ends", arguments={"padding": (0, 3)}),
    Scenario(name="padding-only", about="nothing but padding", arguments={"padding": (0, 1, 2, 3)}),
    Scenario(
        name="dense",
        about="inputs that are views of no larger buffer",
        ops=(*GATED, *PAGED),
        arguments={"strided": False},
    ),
    # recurrent states
    Scenario(
        name="dirty-slots",
        about="recycled slots that hold NaN and must not be read",
        ops=RECURRENT,
        arguments={"initial": "none"},
        decode=None,
        core=True,
    ),
    Scenario(
        name="initial-states",
        about="each sequence goes on from a state",
        ops=RECURRENT,
        arguments={"initial": "all"},
    ),
    Scenario(
        name="read-not-write",
        about="states are read from other slots than they are written to",
        ops=RECURRENT,
        arguments={"initial": "all", "in_place": False, "padding": (1,)},
    ),
    *_gates(),
    *_heads(),
    Scenario(
        name="zero-keys",
        about="keys and queries that are zero",
        ops=GATED,
        arguments={"zero_keys": True, "initial": "all"},
    ),
    Scenario(
        name="large-norms", about="large inputs and states", ops=(*DELTA, "mamba2"), arguments={"norm": 30.0}
    ),
    Scenario(
        name="large-norms", about="large inputs and states", ops=("lightning",), arguments={"norm": 6.0}
    ),
    *(
        Scenario(
            name=name,
            about="small beta and decays near 1, so that the end still remembers the beginning",
            ops=DELTA,
            prefill=lengths,
            decode=None,
            verify=None,
            arguments={"gate": "near_one", "beta_max": 1e-3, "initial": "all"},
            quick=quick,
        )
        for name, lengths, quick in (("remembering", (8192, 3), False), ("remembering-quick", (300, 3), True))
    ),
    Scenario(name="normalised", about="q and k come normalised", ops=DELTA, arguments={"qk_l2norm": False}),
    Scenario(name="beta-2", about="beta up to 2", ops=DELTA, arguments={"beta_max": 2.0}, hardness="hard"),
    *(
        Scenario(
            name=f"raw-{kind}",
            about=f"raw gates of the kind {kind}, and raw betas",
            ops=DELTA,
            arguments={"raw": kind, "beta_scale": scale, "gate": "mixed", "initial": "all"},
            hardness="hard",
            features=("raw_gates",),
            core=kind == "softplus",
        )
        for kind, scale in (("softplus", 1.0), ("sigmoid", 2.0))
    ),
    Scenario(
        name="activated-steps",
        about="time steps come activated",
        ops=("mamba2",),
        arguments={"dt_softplus": False},
    ),
    Scenario(
        name="limited-steps",
        about="time steps are limited on both sides",
        ops=("mamba2",),
        arguments={"dt_limits": (0.1, 1.5)},
    ),
    Scenario(
        name="plain", about="no bias and no skip", ops=("mamba2",), arguments={"bias": False, "skip": False}
    ),
    # convolutions
    Scenario(name="bias", about="a bias", ops=("short_conv",), arguments={"bias": True}),
    Scenario(name="linear", about="no activation", ops=("short_conv",), arguments={"activation": None}),
    Scenario(name="dense", about="inputs of their own", ops=("short_conv",), arguments={"strided": "none"}),
    Scenario(
        name="time-innermost", about="time innermost", ops=("short_conv",), arguments={"strided": "time"}
    ),
    *(
        Scenario(name=f"taps-{width}", about=f"{width} taps", ops=("short_conv",), arguments={"width": width})
        for width in (2, 3, 7)
    ),
    *(
        Scenario(
            name=f"channels-{channels}",
            about=f"{channels} channels",
            ops=("short_conv",),
            arguments={"channels": channels},
        )
        for channels in (1, 100, 300)
    ),
    # softmax attention
    Scenario(
        name="past",
        about="tokens in the cache before those of the call; what no row sees is NaN",
        ops=PAGED,
        prefill=(40, 1, 17, 2),
        past=True,
        decode=None,
        core=True,
    ),
    Scenario(
        name="long-past",
        about="caches of many blocks",
        ops=PAGED,
        prefill=(5, 1, 2),
        decode=3,
        arguments={"kv_lengths": (700, 1029, 258)},
        verify=(5, 1, 2),
    ),
    Scenario(name="large-norms", about="large logits", ops=PAGED, past=True, arguments={"norm": 4.0}),
    *(
        Scenario(
            name=name,
            about=about,
            ops=("attention",),
            prefill=(40, 1, 17, 70),
            past=True,
            decode=6,
            arguments=arguments,
            features=features,
        )
        for name, about, arguments, features in _ATTENTION_FEATURES
    ),
    Scenario(
        name="absorbed",
        about="queries come absorbed, and latents leave",
        ops=("mla",),
        past=True,
        arguments={"absorbed": True},
        core=True,
    ),
    Scenario(
        name="log-sum-exp",
        about="the log-sum-exp is asked for",
        ops=("mla",),
        past=True,
        arguments={"lse": True},
        features=("lse",),
    ),
)

__all__ = ["EVERY", "SCENARIOS", "Scenario"]
