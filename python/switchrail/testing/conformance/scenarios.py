"""Calls to compare with the oracle, as data: for all ops, for groups of ops, and for single ops."""

from __future__ import annotations

from dataclasses import replace

from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.samples.scenario import GATES, Scenario
from switchrail.testing.conformance.setting import GATED, PAGED, RECURRENT


def _blocks() -> list[Scenario]:
    sizes = (16, 32, 64, 128, 256)
    return [
        Scenario(
            name=f"around-{size}",
            about=f"lengths around {size} and {2 * size}",
            prefill=(size - 1, size, size + 1, 2 * size + 1),
            decode=None,
            verify=None,
            quick=size in (16, 64),
        )
        for size in sizes
    ] + [
        Scenario(
            name=f"past-around-{size}",
            about=f"cache lengths around {size} and {2 * size}",
            ops=PAGED,
            prefill=(5, 1, 2, 7),
            arguments={"kv_lengths": (size - 1 + 5, size, size + 1, 2 * size + 1)},
            verify=(5, 1, 2, 7),
            quick=size in (16, 64),
        )
        for size in sizes
    ]


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="ragged",
        about="very different lengths, some of them 0",
        prefill=(1, 0, 3, 17, 0, 70, 33),
        decode=7,
        core=True,
    ),
    Scenario(name="none", about="no sequence at all", prefill=(), decode=0, verify=()),
    Scenario(name="empty", about="sequences without rows", prefill=(0, 0), decode=None, verify=(0, 0)),
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
        about="one sequence of 1500 rows beside a short one",
        prefill=(1500, 3),
        decode=None,
        verify=None,
        quick=False,
    ),
    Scenario(
        name="long-quick",
        about="one sequence of 300 rows beside a short one",
        prefill=(300, 3),
        decode=None,
        verify=None,
    ),
    *_blocks(),
    Scenario(name="padding", about="a sequence of padding", arguments={"padding": (1,)}, core=True),
    Scenario(name="padding-first", about="padding at both ends", arguments={"padding": (0, 3)}),
    Scenario(name="padding-only", about="nothing but padding", arguments={"padding": (0, 1, 2, 3)}),
    Scenario(
        name="dense", about="inputs that are not views of a larger buffer", arguments={"strided": False}
    ),
    # for ops with a state
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
        about="each sequence continues from a state",
        ops=RECURRENT,
        arguments={"initial": "all"},
    ),
    Scenario(
        name="read-not-write",
        about="states are read from other slots than they are written to",
        ops=RECURRENT,
        arguments={"initial": "all", "in_place": False, "padding": (1,)},
    ),
    *(
        Scenario(
            name=f"gate-{gate}",
            about=text,
            ops=GATED,
            prefill=(1, 70, 33),
            arguments={"gate": gate, "initial": "all"},
            core=gate == "mixed",
        )
        for gate, text in GATES.items()
    ),
    Scenario(
        name="zero-keys",
        about="keys and queries that are zero",
        ops=GATED,
        arguments={"zero_keys": True, "initial": "all"},
    ),
    # for softmax attention
    Scenario(
        name="past",
        about="tokens in the cache before those of the call; places that no row sees are NaN",
        ops=PAGED,
        prefill=(40, 1, 17, 2),
        past=True,
        decode=None,
        core=True,
    ),
    Scenario(
        name="long-past",
        about="caches of many pages",
        ops=PAGED,
        prefill=(5, 1, 2),
        decode=3,
        arguments={"kv_lengths": (700, 1029, 258)},
        verify=(5, 1, 2),
    ),
    Scenario(name="large-norms", about="large logits", ops=PAGED, past=True, arguments={"norm": 4.0}),
    *(replace(each, ops=(op,)) for op, defined in DEFINITIONS.items() for each in defined.scenarios),
)
