"""Explains failures by the numbers of a difference, without running the oracle again."""

from __future__ import annotations

from collections import Counter

import torch

from switchrail.testing.diagnosis.difference import Difference
from switchrail.testing.diagnosis.findings import Finding

_MOST_HEADS = 64
_MOST_ROWS = 128
_MOST_TOLD = 4

_CONSTANTS = {
    "log2(e)": (1.4426950408889634, "base 2 is used instead of base e"),
    "ln 2": (0.6931471805599453, "base e is used instead of base 2"),
    "2": (2.0, ""),
    "1/2": (0.5, ""),
    "-1": (-1.0, "the sign is wrong"),
}


def rounded_otherwise(d: Difference) -> Finding | None:
    """Numbers that are equal up to rounding, where equal bits were expected."""
    if d.bound.row or not d.matches(d.got, d.expected):
        return None
    return Finding("the bits differ, but the numbers agree within rounding", is_whole=True)


def taken_for(d: Difference) -> Finding | None:
    """Another result of the same call in place of the expected one."""
    for about, other in d.others.items():
        if d.matches(d.got[d.wrong_rows], other[d.wrong_rows]):
            return Finding(f"the result is {about}")
    return None


def transposed(d: Difference) -> Finding | None:
    """States with their last two axes swapped."""
    if not d.is_state or d.got.ndim < 3:
        return None
    got, expected = d.got[d.wrong_rows], d.expected[d.wrong_rows]
    turned = got.reshape(*got.shape[:-2], got.shape[-1], got.shape[-2]).mT
    if not d.matches(turned, expected):
        return None
    value, key = d.axes[-2:]
    return Finding(f"the states are transposed: got {key} x {value}, expected {value} x {key}")


def zeros(d: Difference) -> Finding | None:
    """A result in which all wrong numbers are 0."""
    return Finding("all wrong numbers are 0") if not d.got[d.wrong].any() else None


def constant_ratio(d: Difference) -> Finding | None:
    """One ratio between all actual and expected numbers: a factor was forgotten, or applied twice."""
    ratio = _ratio(d, d.got[d.wrong_rows], d.expected[d.wrong_rows])
    if ratio is None:
        return None
    return Finding("got / expected is constant, so a factor is wrong", f"{ratio:.5g}{_named(d, ratio)}")


def ratio_of_heads(d: Difference) -> Finding | None:
    """One ratio per head between actual and expected numbers."""
    if not d.has_heads or d.got.shape[1] < 2:
        return None
    got, expected = d.got[d.wrong_rows], d.expected[d.wrong_rows]
    ratios = []
    for head in range(got.shape[1]):
        if d.matches(got[:, head], expected[:, head]):
            ratios.append(1.0)
            continue
        ratio = _ratio(d, got[:, head], expected[:, head])
        if ratio is None:
            return None
        ratios.append(ratio)
    told = ", ".join(f"{ratio:.4g}{_named(d, ratio)}" for ratio in ratios[:_MOST_HEADS])
    return Finding("got / expected is constant in each head, so a factor is wrong", told)


def ratio_of_rows(d: Difference) -> Finding | None:
    """One ratio per row and head between actual and expected numbers, as with a wrong denominator."""
    if d.got.shape[-1] < 4:
        return None
    got, expected = d.got[d.wrong_rows], d.expected[d.wrong_rows]
    factors = (got * expected).sum(-1, keepdim=True) / expected.square().sum(-1, keepdim=True).clamp_min(
        1e-300
    )
    if not d.matches(got, factors * expected):
        return None
    detail = f"from {float(factors.min()):.4g} to {float(factors.max()):.4g}"
    return Finding("got / expected is constant in each row, as with a wrong denominator", detail)


def swapped_heads(d: Difference) -> Finding | None:
    """Heads that hold the results of other heads."""
    if not d.has_heads or not 1 < d.got.shape[1] <= _MOST_HEADS:
        return None
    heads = range(d.got.shape[1])
    sources = []
    for head in heads:
        order = (head, *(other for other in heads if other != head))
        source = next((j for j in order if d.matches(d.got[:, head], d.expected[:, j])), None)
        if source is None:
            return None
        sources.append(source)
    if sources == list(heads):
        return None
    return Finding("the heads are in the wrong order", _order(sources))


def moved_rows(d: Difference) -> Finding | None:
    """Wrong rows that hold the results of other rows."""
    wrong = d.wrong_rows.nonzero().flatten()
    if not 0 < len(wrong) <= len(d.owners) <= _MOST_ROWS:
        return None
    flat = d.expected.flatten(1)
    ends = len(set(d.owners))  # the first or last row of each sequence has no neighbour on one side
    sources = {}
    for row in wrong.tolist():
        apart = (flat - d.got[row].flatten()).square().sum(1)
        apart[row] = torch.inf
        source = int(apart.nan_to_num(torch.inf).argmin())
        if d.matches(d.got[row : row + 1], d.expected[source : source + 1]):
            sources[row] = source
    if d.is_state:
        if (
            not sources
            or not d.unwritten.flatten(1).any(1)[[row for row in wrong.tolist() if row not in sources]].all()
        ):
            return None
    elif len(sources) < 2 or len(sources) < len(wrong) - ends:
        return None
    step, times = Counter(source - row for row, source in sources.items()).most_common(1)[0]
    if not d.is_state and len(d.owners) > ends and times >= len(sources) - ends:
        side = "after" if step > 0 else "before"
        apart_by = "the row" if abs(step) == 1 else f"{abs(step)} rows"
        return Finding(f"rows are off by {abs(step)}: each holds the result of {apart_by} {side} it")
    content = "state" if d.is_state else "result"
    told = [
        f"{d.row_name(row)} holds the {content} of {d.row_name(source)}"
        for row, source in list(sources.items())[:_MOST_TOLD]
    ]
    kind = "states are in the slots of others" if d.is_state else "rows are in the places of others"
    return Finding(kind, "; ".join(told) + ("; ..." if len(sources) > _MOST_TOLD else ""))


def rounding(d: Difference) -> Finding | None:
    """A small error over all rows, if at least half of the rows are wrong."""
    if not d.got.isfinite().all() or d.bound.norm == 0:
        return None
    error = float((d.got - d.expected).norm() / d.expected.norm().clamp_min(1e-300))
    if error > 100 * d.bound.norm or error > 0.05 or d.wrong_rows.double().mean() < 0.5:
        return None
    hint = "; products in TF32 are off by 3e-4 and more" if d.dtype == torch.float32 and error > 5e-5 else ""
    cause = "most rows are off by a little, as after rounding"
    return Finding(cause, f"an error of {error:.1e} over all rows{hint}", is_whole=True)


EXACT = (rounded_otherwise, taken_for, transposed, zeros, constant_ratio, swapped_heads, moved_rows)
"""Diagnosers whose findings leave little doubt about the cause."""

VAGUE = (ratio_of_heads, ratio_of_rows, rounding)
"""Diagnosers whose findings may have several causes."""


def _ratio(d: Difference, got: torch.Tensor, expected: torch.Tensor) -> float | None:
    if expected.numel() < 2 or not expected.any() or not got.isfinite().all():
        return None
    ratio = float((got * expected).sum() / expected.square().sum())
    return ratio if ratio and d.matches(got, ratio * expected) else None


def _named(d: Difference, ratio: float) -> str:
    """The name of a ratio that a common mistake gives, such as 1/scale if scale is forgotten; else empty."""
    first = d.call.contract.inputs[0]
    axis = d.call.contract.tensors[first].axes[-1]
    size = d.call.tensor(first).shape[-1]
    known: dict[str, tuple[float, str]] = dict(_CONSTANTS)
    for name, value in d.call.options.items():
        if isinstance(value, float) and value not in (0.0, 1.0):
            known[f"1/{name}"] = (1 / value, f"{name} is forgotten")
            known[name] = (value, f"{name} is applied twice")
    for name, value in ((axis, size), (f"sqrt({axis})", size**0.5)):
        known |= {name: (value, ""), f"1/{name}": (1 / value, "")}
    near = [
        (name, why)
        for name, (value, why) in known.items()
        if abs(ratio - value) <= max(1e-4, d.bound.norm) * abs(value)
    ]
    if not near:
        return ""
    names = " = ".join(name for name, _ in near)
    reasons = "; ".join(why for _, why in near if why)
    with_size = f" with {axis} = {size}" if axis in names else ""
    return f" = {names}{with_size}" + (f": {reasons}" if reasons else "")


def _order(sources: list[int]) -> str:
    count = len(sources)
    if sources == list(reversed(range(count))):
        return "they are reversed"
    told = ", ".join(
        f"head {head} holds head {source}" for head, source in enumerate(sources) if head != source
    )
    for groups in (n for n in range(2, count) if count % n == 0):
        if sources == torch.arange(count).view(groups, -1).T.flatten().tolist():
            return (
                f"{told}: grouped as [{count // groups}, {groups}] instead of [{groups}, {count // groups}]"
            )
    return told
