"""What is timed: the shapes, and the least that each one moves and computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

import torch
from switchrail.ops.catalog import CONTRACTS

from benchmarks.ops.tensors import tensors_of

OPS = tuple(CONTRACTS)

GDN = {"H": 16, "HV": 32, "K": 128, "V": 128}
KDA = {"H": 32, "HV": 32, "K": 128, "V": 128}
LIGHTNING = {"H": 64, "K": 128, "V": 128}
NEMOTRON = {"H": 128, "P": 64, "G": 8, "S": 128}
BAMBA = {**NEMOTRON, "G": 1}
CONV = {"C": 8192, "W": 4}
ATTENTION = {"H": 16, "HKV": 2, "D": 256, "page": 64}
ABSORBED = {"H": 128, "D": 512, "R": 512, "E": 64, "V": 512, "page": 64}
EXPANDED = {**ABSORBED, "D": 128, "V": 128}

_SMALLER = dict.fromkeys(("H", "G", "P", "page"), 4) | dict.fromkeys(("HV", "HKV"), 2)
_SMALLER |= dict.fromkeys(("K", "V", "S", "E"), 8) | {"D": 16, "R": 16, "C": 64}
"""What a tiny case divides a size by."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the tables.

    Attributes:
        op: The op.
        phase: The phase.
        lengths: The rows of each sequence.
        past: Tokens in the cache before each sequence's rows.
        sizes: The axes of the contract that the lengths leave open.
        decays: Whether the gates decay; else they are exactly 1.
        model: Whose sizes they are, where several models' are timed.
        held_out: Whether no choice was made by looking at this shape.
    """

    op: str
    phase: str
    lengths: tuple[int, ...]
    past: int = 0
    sizes: Mapping[str, int]
    decays: bool = True
    model: str = ""
    held_out: bool = False

    @property
    def name(self) -> str:
        """What tells it from the other cases of its op and phase."""
        if self.phase == "decode":
            text = f"B={len(self.lengths)}" + (f" of {self.past + 1}" if self.past else "")
        elif len(set(self.lengths)) == 1:
            text = f"T={sum(self.lengths)} N={len(self.lengths)}"
        else:
            runs = [(length, len(list(run))) for length, run in groupby(self.lengths)]
            text = " + ".join(f"{length}" if n == 1 else f"{n} of {length}" for length, n in runs)
        if self.phase == "prefill" and self.past:
            text += f" after {self.past}"
        return f"{self.model} {text}".strip() + ("" if self.decays else " g=0")

    @property
    def shapes(self) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every tensor of the call, in bfloat16."""
        return tensors_of(self.op, self.axes, torch.bfloat16)

    @property
    def axes(self) -> Mapping[str, int]:
        """The size of every axis."""
        sizes = {**self.sizes, "T": sum(self.lengths)}
        if CONTRACTS[self.op].state_layout or self.op == "short_conv":
            sizes["slots"] = len(self.lengths) + 1
        else:
            sizes["pages"] = sum(-(-(n + self.past) // sizes["page"]) for n in self.lengths) + 1
        if self.op == "mla":
            sizes["L"] = sizes["R"] + sizes["E"]
        return sizes

    @property
    def bytes(self) -> int:
        """The least that has to be moved: each row, weight and cached token once, each state twice."""
        total = 0
        for name, (shape, dtype) in self.shapes.items():
            count = torch.Size(shape).numel()
            if name == "state":
                count = 2 * count * len(self.lengths) // shape[0]
            elif name.endswith("_cache"):
                count = count // (shape[0] * shape[1]) * sum(n + self.past for n in self.lengths)
            total += count * dtype.itemsize
        return total

    @property
    def flops(self) -> float:
        """Operations on tensor cores, those of chunks of 64 where there are chunks; 0 where there is none."""
        axes, rows = self.axes, sum(self.lengths)
        seen = sum(n * self.past + n * (n + 1) / 2 for n in self.lengths)
        if self.op == "attention":
            return seen * 4 * axes["H"] * axes["D"]
        if self.op == "mla" and self.phase == "decode":
            return seen * 2 * axes["H"] * (2 * axes["R"] + axes["E"])
        if self.op == "mla":
            expand = sum(n + self.past for n in self.lengths) * 2 * axes["R"] * (axes["D"] + axes["V"])
            return axes["H"] * (seen * 2 * (axes["D"] + axes["E"] + axes["V"]) + expand)
        if self.phase == "decode" or self.op == "short_conv":
            return 0.0
        chunk = 64
        if self.op == "mamba2":
            size, state = axes["P"], axes["S"]
            return rows * axes["H"] * (2 * chunk * (state * axes["G"] / axes["H"] + size) + 4 * size * state)
        key, value = axes["K"], axes["V"]
        if self.op == "lightning":
            return rows * axes["H"] * (2 * chunk * (key + value) + 4 * key * value)
        return rows * axes["HV"] * (2 * chunk * (3 * key + 2 * value) + 6 * key * value)


def cases(op: str) -> Iterator[Case]:
    """The cases of an op, those that issue and documents list first."""
    one = (1,)
    if op == "gated_delta":
        for lengths in ((2048,), (8192,), (1024,) * 8, (32768,), (4096,) * 8, (2048,) * 16):
            yield Case(op=op, phase="prefill", lengths=lengths, sizes=GDN)
        yield Case(op=op, phase="prefill", lengths=(32768,), sizes=GDN, decays=False)
        yield Case(op=op, phase="prefill", lengths=(2048,) * 16, sizes=GDN, decays=False)
        for lengths in ((28672, 4096), (30000, *(32,) * 64)):
            yield Case(op=op, phase="prefill", lengths=lengths, sizes=GDN, held_out=True)
        for count in (1, 8, 32, 128, 256):
            yield Case(op=op, phase="decode", lengths=one * count, sizes=GDN)
    elif op == "kda":
        for lengths in ((8192,), (1024,) * 8, (32768,), (2048,) * 16):
            yield Case(op=op, phase="prefill", lengths=lengths, sizes=KDA)
        yield Case(op=op, phase="prefill", lengths=(32768,), sizes=KDA, decays=False)
        for count in (1, 32, 256):
            yield Case(op=op, phase="decode", lengths=one * count, sizes=KDA)
    elif op == "lightning":
        for lengths in ((8192,), (32768,), (2048,) * 16):
            yield Case(op=op, phase="prefill", lengths=lengths, sizes=LIGHTNING)
        yield Case(op=op, phase="prefill", lengths=(32768,), sizes=LIGHTNING, decays=False)
        for count in (1, 32):
            yield Case(op=op, phase="decode", lengths=one * count, sizes=LIGHTNING)
    elif op == "mamba2":
        for model, sizes in (("Nemotron-H", NEMOTRON), ("Bamba", BAMBA)):
            for lengths in ((8192,), (2048,) * 16):
                yield Case(op=op, phase="prefill", lengths=lengths, sizes=sizes, model=model)
            for count in (1, 32):
                yield Case(op=op, phase="decode", lengths=one * count, sizes=sizes, model=model)
    elif op == "short_conv":
        for lengths in ((2048,), (32768,), (2048,) * 16):
            yield Case(op=op, phase="prefill", lengths=lengths, sizes=CONV)
        for count in (1, 32, 256):
            yield Case(op=op, phase="decode", lengths=one * count, sizes=CONV)
    elif op == "attention":
        for lengths, past in (((8192,), 0), ((2048,) * 16, 0), ((512,), 32256)):
            yield Case(op=op, phase="prefill", lengths=lengths, past=past, sizes=ATTENTION)
        for count, past in ((1, 8191), (1, 32767), (32, 8191), (128, 1023)):
            yield Case(op=op, phase="decode", lengths=one * count, past=past, sizes=ATTENTION)
    else:
        for lengths, past in (((8192,), 0), ((1024,) * 8, 0), ((1024,), 7168)):
            yield Case(op=op, phase="prefill", lengths=lengths, past=past, sizes=EXPANDED)
        for count, past in ((1, 8191), (32, 8191), (128, 1023)):
            yield Case(op=op, phase="decode", lengths=one * count, past=past, sizes=ABSORBED)


def tiny(case: Case) -> Case:
    """A case that a CPU does in no time, with the same structure."""
    sizes = {axis: max(1, size // _SMALLER.get(axis, 1)) for axis, size in case.sizes.items()}
    if case.op == "mla" and case.phase == "prefill":
        sizes |= {"D": 16, "V": 16}
    return Case(
        op=case.op,
        phase=case.phase,
        lengths=tuple(max(1, length // 512) for length in case.lengths[:8]),
        past=case.past // 512,
        sizes=MappingProxyType(sizes),
        decays=case.decays,
        model=case.model,
        held_out=case.held_out,
    )
