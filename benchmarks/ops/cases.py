"""The timed cases, each with its number of operations and the least number of bytes to move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType

import torch
from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.samples.scenario import Timed

from benchmarks.ops.tensors import tensors_of

OPS = tuple(DEFINITIONS)

_SMALLER = dict.fromkeys(("H", "G", "P", "page"), 4) | dict.fromkeys(("HV", "HKV"), 2)
_SMALLER |= dict.fromkeys(("K", "V", "S", "E"), 8) | {"D": 16, "R": 16, "C": 64}
"""The divisor of each size in a tiny case."""


@dataclass(frozen=True, kw_only=True)
class Case(Timed):
    """One line of the tables: an op and a batch."""

    op: str

    @property
    def name(self) -> str:
        """The case's name, unique within its op and phase."""
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
        """Shape and dtype of each tensor of the call, for bfloat16 inputs."""
        return tensors_of(self.op, self.axes, torch.bfloat16)

    @property
    def axes(self) -> Mapping[str, int]:
        """The size of each axis."""
        sizes = {**self.sizes, "T": sum(self.lengths)}
        if DEFINITIONS[self.op].paged:
            sizes["pages"] = sum(-(-(n + self.past) // sizes["page"]) for n in self.lengths) + 1
        else:
            sizes["slots"] = len(self.lengths) + 1
        for whole, *parts in DEFINITIONS[self.op].contract.sums:
            sizes[whole] = sum(sizes[part] for part in parts)
        return sizes

    @property
    def bytes(self) -> int:
        """The least number of bytes to move: each row, weight and cached token once, each state twice."""
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
        """Operations on tensor cores; 0 if there are none. Ops with chunks are counted with chunks of 64."""
        return DEFINITIONS[self.op].flops(self, self.axes)


def cases(op: str) -> Iterator[Case]:
    """The timed cases of an op."""
    return (Case(op=op, **vars(each)) for each in DEFINITIONS[op].timed)


def tiny(case: Case) -> Case:
    """A case of the same structure that is fast on a CPU."""
    sizes = {axis: max(1, size // _SMALLER.get(axis, 1)) for axis, size in case.sizes.items()}
    if case.op == "mla" and case.phase == "prefill":
        sizes |= {"D": 16, "V": 16}
    return replace(
        case,
        lengths=tuple(max(1, length // 512) for length in case.lengths[:8]),
        past=case.past // 512,
        sizes=MappingProxyType(sizes),
    )
