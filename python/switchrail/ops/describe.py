"""Writes the contracts as a document: `python -m switchrail.ops.describe > docs/contracts.md`."""

from __future__ import annotations

import inspect
import sys

from switchrail.ops.batch import (
    CheckpointBatch,
    DeferredBatch,
    RowStatesBatch,
    SequenceBatch,
    StateBatch,
    VerifyBatch,
)
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

_OWN = {CheckpointBatch: CHECKPOINTS, DeferredBatch: DEFERRED, RowStatesBatch: ROW_SLOTS}
"""The tensors that classes of batches add; a class that is not listed adds `PARENTS`."""

_HEAD = """# Contracts

The valid arguments of each op, their meaning, and the tensors that a call writes. This page is generated from
the contracts by `python -m switchrail.ops.describe`. The checks of calls and the cases of the conformance
suite are made from the same contracts.

- The column *axes* names a tensor's axes, outermost first. An axis has one size in all tensors of a call. T
  is the number of packed rows, N the number of sequences.
- *{input}* is the dtype of the op's first tensor. *{compute}* is float64 if *{input}* is, else float32.
  The ops' descriptions write float32 where the tables have *{compute}*.
- *dense* lists the axes as they lie in memory, innermost last, without gaps. *stride 1 along* names the axis,
  or the alternatives, that must have stride 1; the other strides may have any value.
- With *any strides*, elements may overlap and the axes may lie in another order, but no stride may be 0. With
  *gaps*, strides may be longer than in dense memory: the order of the axes stays, and no elements overlap.
- A feature is an ability that a backend of the op may declare. A call that uses a feature needs a backend
  that declares it, or [an adapter](adapters.md) that adds it. A call that doesn't use a feature omits its
  arguments or passes None. With some features, a tensor may have further dtypes or orders in memory, which
  the tables list.
- A layer holds the tensors *of the layer*. Each call passes the other tensors, with one row per token.
- `switchrail.ops.CONTRACTS["attention"].check(phase, call, batch)` raises a `ContractError` for a call that
  breaks the contract; `make(arguments)` makes a call from tensors and options by name.
- `run` returns a record for `commit` if the batch is a `VerifyBatch`, but neither a `RowStatesBatch` nor a
  `DeferredBatch`. Otherwise it returns None.

The page ends with the batches: [`PagedBatch`](#pagedbatch) for ops with a paged cache, and
[`StateBatch`](#statebatch) for ops with a state per sequence.
"""


def describe(contract: Contract) -> str:
    """One op's contract as Markdown, without its batches."""
    interface = DEFINITIONS[contract.op].interface
    parts = [f"## `{contract.op}`", inspect.cleandoc(interface.__doc__ or "")]
    tensors = [_tensor_row(name, spec, contract) for name, spec in contract.tensors.items()]
    parts.append(_table(("tensor", "axes", "dtypes", "memory", "about"), tensors))
    options = [_option_row(name, spec) for name, spec in contract.options.items()]
    parts.append(_table(("option", "type", "about"), options))
    facts = [f"{axis} is a multiple of {divisor}" for axis, divisor in contract.multiples]
    facts += [f"{whole} = {' + '.join(rest)}" for whole, *rest in contract.sums]
    facts += [
        f"`{needed}` must be given if `{option}` is {value!r}" for option, value, needed in contract.needs
    ]
    if contract.state_layout is not None:
        facts.append(f"the layout of the state is called `{contract.state_layout}`")
    if contract.gate:
        facts.append("gate, in {space} space: {kind}; range: {range}".format_map(contract.gate))
    common = _common_notes(contract.batch_type)
    facts += [note for note in contract.notes if note not in common]
    facts.append(f"features: {', '.join(f'`{name}`' for name in sorted(contract.features))}")
    parts.append("\n".join(f"- {fact}" for fact in facts))
    return "\n\n".join(parts) + "\n"


def describe_batches(kind: type[SequenceBatch]) -> str:
    """The tensors of a class of batches and of its subclasses, and the rules for batches, as Markdown."""
    contracts = _contracts_of(kind)
    widest = max(contracts, key=lambda contract: len(contract.batch_features))
    rows = [_tensor_row(name, spec, widest) for name, spec in widest.batch.items()]
    classes = {f"feature `{name}`": each for name, each in widest.batch_features.items()}
    if kind is StateBatch:
        classes["phase verify"] = VerifyBatch
    for condition, each in classes.items():
        for name, spec in _OWN.get(each, PARENTS).items():
            *row, about = _tensor_row(name, spec, widest)
            rows.append((*row, f"{about}; in a `{each.__name__}` ({condition})"))
    ops = ", ".join(f"`{contract.op}`" for contract in contracts)
    fields = f"`help(switchrail.ops.{kind.__name__})` also describes the fields on the host."
    head = f"Calls of {ops} take this batch or a subclass. {fields}"
    table = _table(("tensor", "axes", "dtypes", "memory", "about"), rows)
    facts = [f"with the feature `{name}`, {text}" for name, text in widest.field_features.items()]
    notes = "\n".join(f"- {fact}" for fact in [*facts, *_common_notes(kind)])
    return "\n\n".join((f"## `{kind.__name__}`", head, table, notes)) + "\n"


def document() -> str:
    """All contracts as one Markdown document."""
    head = _HEAD.format(input=INPUT, compute=COMPUTE)
    kinds = dict.fromkeys(contract.batch_type for contract in CONTRACTS.values())
    return "\n".join([head, *map(describe, CONTRACTS.values()), *map(describe_batches, kinds)])


def _contracts_of(kind: type[SequenceBatch]) -> list[Contract]:
    return [contract for contract in CONTRACTS.values() if contract.batch_type is kind]


def _common_notes(kind: type[SequenceBatch]) -> list[str]:
    """The notes that all ops with this class of batches have."""
    first, *others = _contracts_of(kind)
    return [note for note in first.notes if all(note in other.notes for other in others)]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _tensor_row(name: str, spec: TensorSpec, contract: Contract) -> tuple[str, ...]:
    dtypes = [f"*{d}*" if d in (INPUT, COMPUTE) else d for d in spec.dtypes]
    if spec.raw_with is not None:
        dtypes.append(f"*{INPUT}* if `{spec.raw_with}` is given")
    if spec.optional:
        dtypes.append("or None")
    valid = ", ".join(dtypes)
    memory = (
        f"dense [{', '.join(spec.memory)}]" if spec.memory else f"stride 1 along {_any(spec.unit_stride)}"
    )
    for allowance in spec.also:
        if allowance.dtypes:
            valid += f"; with `{allowance.feature}` {_any(allowance.dtypes)}"
        wider = []
        if allowance.memory:
            wider.append(f"dense [{', '.join(allowance.memory)}]")
        if allowance.free:
            kind = "gaps" if spec.mutated else "any strides"
            wider.append(f"{kind}{_outermost(allowance.free, spec)}")
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
    return f"`{name}`", f"[{', '.join(spec.axes)}]", valid, memory, "; ".join(about)


def _outermost(axes: int, spec: TensorSpec) -> str:
    if axes == len(spec.axes):
        return ""
    return " along the outermost axis" if axes == 1 else f" along the outermost {axes} axes"


def _option_row(name: str, spec: OptionSpec) -> tuple[str, ...]:
    names = ["None" if t is type(None) else t.__name__ for t in spec.types]
    kinds = [repr(value) for value in spec.values] or names
    about = [spec.about]
    if spec.finite_nonzero:
        about.append("finite" if spec.sign else "finite, not 0")
    if spec.sign:
        about.append("more than 0" if spec.sign > 0 else "less than 0")
    if spec.feature is not None:
        about.append(f"feature `{spec.feature}`")
    return f"`{name}`", _any(tuple(kinds)), "; ".join(about)


def _any(names: tuple[str, ...]) -> str:
    return " or ".join(names)


if __name__ == "__main__":
    sys.stdout.write(document())
