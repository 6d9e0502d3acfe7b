"""Writes the contracts as a document: `python -m switchrail.ops.describe > docs/contracts.md`."""

from __future__ import annotations

import inspect
import sys

from switchrail.ops.batch import CheckpointBatch, DeferredBatch, RowStatesBatch, VerifyBatch
from switchrail.ops.catalog import CONTRACTS, DEFINITIONS
from switchrail.ops.contract import (
    CHECKPOINTS,
    COMPUTE,
    DEFERRED,
    INPUT,
    PARENTS,
    ROW_SLOTS,
    Contract,
    OptionSpec,
    TensorSpec,
)

_OWN = {
    CheckpointBatch: {"checkpoint_slots": CHECKPOINTS},
    DeferredBatch: DEFERRED,
    RowStatesBatch: {"row_slots": ROW_SLOTS},
}
"""The tensors that classes of batches add; a class that is not listed adds `parents`."""

_HEAD = """# Contracts

The valid arguments of each op, their meaning, and the tensors that a call writes. This page is generated from
the contracts (`python -m switchrail.ops.describe`). The checks of inputs and the calls of the conformance
suite come from the same contracts.

- A tensor's axes are named, outermost first; an axis has one size in all tensors of a call. T is the number
  of packed rows, N the number of sequences.
- *{input}* is the dtype of the op's first tensor. *{compute}* is float64 if *{input}* is, else float32.
- *dense* gives the order of the axes in memory, innermost last, without gaps. *stride 1 along* an axis, or
  one of several, leaves the other strides free.
- A feature is an ability that not every backend of the op has. A call that doesn't use a feature omits its
  arguments or gives None for them. Only backends that declare the feature can serve a call that uses it; the
  others are rejected with a reason that names the feature. Some features allow more forms of a tensor: the
  column
  *memory* or *dtypes* lists these forms, each with its feature.
- Tensors *of the layer* are the same in all calls of a layer. Each call passes the other tensors, with one
  row per token.
- `switchrail.ops.CONTRACTS["attention"].check(phase, call, batch)` raises a `ContractError` for a call that
  breaks the contract; `make(arguments)` makes a call from tensors and options by name.
- `run` returns None, except in verify, where it returns the record that `commit` takes.
"""


def describe(contract: Contract) -> str:
    """One contract as Markdown."""
    interface = DEFINITIONS[contract.op].interface
    parts = [f"## `{contract.op}`", inspect.cleandoc(interface.__doc__ or "")]
    tensors = [_tensor_row(name, spec, contract) for name, spec in contract.tensors.items()]
    parts.append(_table(("tensor", "axes", "dtypes", "memory", "about"), tensors))
    options = [_option_row(name, spec) for name, spec in contract.options.items()]
    parts.append(_table(("option", "type", "about"), options))
    rows = [_tensor_row(name, spec, contract) for name, spec in contract.batch.items()]
    kinds = {f"feature `{name}`: a `{kind.__name__}`": kind for name, kind in contract.batch_features.items()}
    if "read_slots" in contract.batch:
        kinds["in verify: a `VerifyBatch`"] = VerifyBatch
    for condition, kind in kinds.items():
        for name, spec in _OWN.get(kind, {"parents": PARENTS}).items():
            *row, about = _tensor_row(name, spec, contract)
            rows.append((*row, f"{about}; {condition}"))
    parts.append(_table((f"`{contract.batch_type.__name__}`", "axes", "dtypes", "memory", "about"), rows))
    facts = [f"{axis} is a multiple of {divisor}" for axis, divisor in contract.multiples]
    facts += [f"{whole} = {' + '.join(rest)}" for whole, *rest in contract.sums]
    facts += [
        f"`{needed}` must be given where `{option}` is {value!r}" for option, value, needed in contract.needs
    ]
    facts += [f"with the feature `{name}`, {text}" for name, text in contract.field_features.items()]
    if contract.state_layout is not None:
        facts.append(f"the layout of the state is called `{contract.state_layout}`")
    facts += [f"gate: {name}: {text}" for name, text in contract.gate.items()]
    parts.append("\n".join(f"- {fact}" for fact in [*facts, *contract.notes]))
    return "\n\n".join(parts) + "\n"


def document() -> str:
    """All contracts as one Markdown document."""
    return "\n".join([_HEAD.format(input=INPUT, compute=COMPUTE), *map(describe, CONTRACTS.values())])


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _tensor_row(name: str, spec: TensorSpec, contract: Contract) -> tuple[str, ...]:
    dtypes = [f"*{d}*" if d in (INPUT, COMPUTE) else d for d in spec.dtypes]
    if spec.raw_with is not None:
        dtypes.append(f"*{INPUT}* with `{spec.raw_with}`")
    if spec.optional:
        dtypes.append("or None")
    memory = (
        f"dense [{', '.join(spec.memory)}]" if spec.memory else f"stride 1 along {_any(spec.unit_stride)}"
    )
    for allowance in spec.also:
        if allowance.dtypes:
            dtypes.append(f"any of {', '.join(allowance.dtypes)} with `{allowance.feature}`")
        wider = []
        if allowance.memory:
            wider.append(f"dense [{', '.join(allowance.memory)}]")
        if allowance.free:
            wider.append(
                "any strides"
                if allowance.free == len(spec.axes)
                else f"gaps between the outermost {allowance.free}"
            )
        if allowance.unit_stride:
            wider.append(f"stride 1 along {_any(allowance.unit_stride)}")
        memory += "".join(f"; with `{allowance.feature}` {text}" for text in wider)
    about = [spec.about]
    if spec.same_if_none is not None:
        about.append(f"if None, {' = '.join(spec.same_if_none)}")
    if spec.mutated:
        about.append("written to")
    if name in contract.kept:
        about.append("of the layer")
    if spec.feature is not None:
        about.append(f"feature `{spec.feature}`")
    return f"`{name}`", f"[{', '.join(spec.axes)}]", ", ".join(dtypes), memory, "; ".join(about)


def _option_row(name: str, spec: OptionSpec) -> tuple[str, ...]:
    names = ["None" if t is type(None) else t.__name__ for t in spec.types]
    kinds = [repr(value) for value in spec.values] or names
    about = [spec.about]
    if spec.finite_nonzero:
        about.append("finite, not 0")
    if spec.sign:
        about.append("more than 0" if spec.sign > 0 else "less than 0")
    if spec.feature is not None:
        about.append(f"feature `{spec.feature}`")
    return f"`{name}`", _any(tuple(kinds)), "; ".join(about)


def _any(names: tuple[str, ...]) -> str:
    return " or ".join(names)


if __name__ == "__main__":
    sys.stdout.write(document())
