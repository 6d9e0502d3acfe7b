"""Tries known mistakes. A mistake explains a failure if it makes the oracle give the backend's numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from switchrail.errors import ContractError
from switchrail.ops.batch import PagedBatch, PagedTreeBatch, StateBatch, VerifyBatch, sequences
from switchrail.testing.diagnosis.difference import Difference
from switchrail.testing.diagnosis.findings import Finding
from switchrail.testing.inputs import Sample, run_reference

MOST_ROWS = 512
"""Maximum number of rows of a call to diagnose; for more rows the oracle would take too long."""

_CHUNKS = (16, 32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A mistake that a backend may have made.

    Attributes:
        about: The mistake in words.
        call: The call, changed so that the oracle makes the mistake.
        later: The number of rows by which to move the results of `call` down before the comparison.
    """

    about: str
    call: Sample
    later: int = 0


def explained(d: Difference) -> Finding | None:
    """The first mistake that makes the oracle give the numbers of `d.got`."""
    if not d.is_oracles or sum(d.call.batch.seqlens) > MOST_ROWS:
        return None
    call = d.call.to("cpu")
    for hypothesis in (each for make in _MAKERS for each in make(call)):
        if not d.is_state and len(hypothesis.call.out) != len(call.out):
            continue
        try:
            result = run_reference(hypothesis.call)
        except (ContractError, IndexError, RuntimeError):
            continue  # the changed call is invalid, so the backend can't have computed it
        told = result.state if d.is_state else result.outputs[d.name].roll(hypothesis.later, 0)
        if hypothesis.later:
            told[sorted({min(start, len(told) - 1) for start in call.batch.cu_seqlens.tolist()})] = torch.nan
        share = _explained_share(d, told[d.index])
        if share:
            where = "" if share == 1 else " in the wrong rows"
            detail = f"with that mistake the oracle gives the same numbers{where}"
            return Finding(hypothesis.about, detail, is_whole=share == 1)
    return None


def _explained_share(d: Difference, told: torch.Tensor) -> float:
    """The fraction of rows that the oracle with the mistake reproduces; 0 if wrong rows contradict it."""
    finite = (told.isfinite() & d.got.isfinite()).flatten(1).all(1)
    wrong = d.wrong_rows & finite
    if wrong.sum() * 2 < d.wrong_rows.sum() or not d.matches(d.got[wrong], told[wrong]):
        return 0.0
    same = [bool(f) and d.matches(got, one) for f, got, one in zip(finite, d.got, told, strict=True)]
    return sum(same) / len(same)


def _with(call: Sample, about: str, **changed: Any) -> Hypothesis:
    """The mistake of using other tensors, options or fields of the batch."""
    tensors = {name: changed.get(name, tensor) for name, tensor in call.tensors.items()}
    options = {name: changed.get(name, value) for name, value in call.options.items()}
    fields = {name: value for name, value in changed.items() if name not in {**tensors, **options}}
    batch = dataclasses.replace(call.batch, **fields)
    return Hypothesis(
        about=about, call=dataclasses.replace(call, tensors=tensors, options=options, batch=batch)
    )


def _states(call: Sample) -> Iterator[Hypothesis]:
    batch = call.batch
    if not isinstance(batch, StateBatch):
        return
    yield _with(
        call, "initial states are ignored", has_initial_state=torch.zeros_like(batch.has_initial_state)
    )
    state = call.state
    if state.ndim == 4 and state.shape[2] == state.shape[3]:
        turned = state.mT.contiguous()
        yield _with(call, "initial states are read transposed", state=turned)
    yield _with(call, "initial states are read from write_slots", read_slots=batch.write_slots)
    yield _with(call, "initial states are those of other sequences", read_slots=batch.read_slots.roll(1))
    if call.phase == "prefill" and len(batch.seqlens) > 1 and not call.padding:
        rows = sum(batch.seqlens)
        first = {
            name: getattr(batch, name)[:1] for name in ("read_slots", "write_slots", "has_initial_state")
        }
        ends = torch.tensor([0, rows], dtype=torch.int32)
        yield _with(call, "sequences run on into the next", cu_seqlens=ends, seqlens=(rows,), **first)


def _gates(call: Sample) -> Iterator[Hypothesis]:
    name = "A" if "A" in call.tensors else "g"
    gate = call.tensors.get(name)
    if gate is not None and not call.options.get("gate"):
        yield _with(call, "the decay is ignored", **{name: torch.zeros_like(gate)})
        yield _with(call, "the decay is applied twice", **{name: 2 * gate})
        yield _with(call, "exp is applied to the decay once too often", **{name: gate.exp()})
        yield _with(call, "the gate is used as the decay, without exp", **{name: gate.abs().log()})
    for name in ("A_log", "dt_bias"):
        tensor = call.tensors.get(name)
        if tensor is not None:
            yield _with(call, f"{name} is ignored", **{name: torch.zeros_like(tensor)})


def _weights(call: Sample) -> Iterator[Hypothesis]:
    beta = call.tensors.get("beta")
    if beta is not None and call.options.get("beta_scale") is None:
        yield _with(call, "beta is ignored", beta=torch.ones_like(beta))
    for name, spec in call.contract.tensors.items():
        if (spec.optional or spec.feature) and not spec.mutated and call.tensors.get(name) is not None:
            yield _with(call, f"{name} is ignored", **{name: None})
    weight = call.tensors.get("weight")
    if weight is not None:
        yield _with(call, "the taps are applied newest first", weight=weight.flip(1))


def _options(call: Sample) -> Iterator[Hypothesis]:
    options = call.options
    if "qk_l2norm" in options:
        given = options["qk_l2norm"]
        about = "q and k are not normalised" if given else "q and k are normalised though qk_l2norm is False"
        yield _with(call, about, qk_l2norm=not given)
    if "scale" in options:
        yield _with(call, "scale is forgotten", scale=1.0)
        yield _with(call, "scale is applied twice", scale=options["scale"] ** 2)
    window = options.get("window")
    if window is not None:
        yield _with(call, "the window is one too wide", window=window + 1)
        yield _with(call, "the window is one too narrow", window=max(1, window - 1))
    soft_cap = options.get("soft_cap")
    if soft_cap is not None:
        scaled = {"scale": options["scale"] / soft_cap, "soft_cap": 1.0}
        yield _with(call, "with soft_cap, logits are not multiplied by it after the tanh", **scaled)
    for name in ("window", "soft_cap", "activation"):
        if options.get(name) is not None:
            yield _with(call, f"{name} is ignored", **{name: None})
    if "dt_softplus" in options:
        yield _with(call, "dt_softplus is negated", dt_softplus=not options["dt_softplus"])
        yield _with(call, "dt_max is ignored", dt_max=float("inf"))
        yield _with(call, "dt_min is ignored", dt_min=0.0)


def _swapped(call: Sample) -> Iterator[Hypothesis]:
    inputs = [
        (name, tensor)
        for name, spec in call.contract.tensors.items()
        if not spec.mutated and (tensor := call.tensors.get(name)) is not None
    ]
    for number, (name, tensor) in enumerate(inputs):
        for other_name, other in inputs[number + 1 :]:
            if tensor.shape == other.shape:
                yield _with(call, f"{name} and {other_name} are swapped", **{name: other, other_name: tensor})


def _groups(call: Sample) -> Iterator[Hypothesis]:
    """Mistakes in which m heads share n heads in the wrong order: `i % n` instead of `i // (m / n)`."""
    specs = call.contract.tensors
    for many, few in call.contract.multiples:
        sizes = {
            axis: size
            for name, tensor in call.tensors.items()
            if tensor is not None
            for axis, size in zip(specs[name].axes, tensor.shape, strict=True)
        }
        if not 1 < sizes[few] < sizes[many]:
            continue
        index = torch.arange(sizes[many]) % sizes[few]
        changed = {
            name: tensor.index_select(specs[name].axes.index(few), index)
            for name, tensor in call.tensors.items()
            if tensor is not None and few in specs[name].axes
        }
        about = f"heads are grouped in the wrong order: head i uses i % {few}, not i // ({many} / {few})"
        yield _with(call, about, **changed)


def _masks(call: Sample) -> Iterator[Hypothesis]:
    """Mistakes in which rows attend to tokens they must not see, or miss tokens they must see."""
    batch = call.batch
    if isinstance(batch, (PagedTreeBatch, VerifyBatch)):
        chain = tuple(i - 1 for length in batch.seqlens for i in range(length))
        parents = torch.tensor(chain, dtype=torch.int32)
        yield _with(call, "the tree is treated as a chain", parents=parents, parent_rows=chain)
    elif isinstance(batch, StateBatch):
        if "q" in call.tensors and max(batch.seqlens, default=0) > 1:
            yield from _states_before(call)
    elif isinstance(batch, PagedBatch):
        pasts = [kv - length for kv, length in zip(batch.kv_seqlens, batch.seqlens, strict=True)]
        by_one = "the causal mask is off by one"
        yield _seeing(call, f"rows see one position too many: {by_one}", lambda n, i: pasts[n] + i + 2)
        yield _seeing(call, f"rows don't see their own position: {by_one}", lambda n, i: pasts[n] + i)
        yield _seeing(call, "rows see the whole sequence: there is no mask", lambda n, i: batch.kv_seqlens[n])
        if any(past > 0 for past in pasts):
            yield _seeing(call, "tokens of earlier calls in the cache are not counted", lambda n, i: i + 1)


def _states_before(call: Sample) -> Iterator[Hypothesis]:
    """The mistake in which rows read the state without their own token.

    The previous row reads that state. So queries are moved up by one row, and `later` moves the results back.
    A second form of the mistake applies the row's decay to the state.
    """
    about = "rows don't read their own token: the causal mask is off by one"
    double = call.double()
    q, k, g = (double.tensor(name) for name in ("q", "k", "g"))
    options = {}
    if call.options.get("qk_l2norm"):
        q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
        options["qk_l2norm"] = False
    yield dataclasses.replace(_with(double, about, q=q.roll(-1, 0), k=k, **options), later=1)
    if call.options.get("gate"):
        return
    shared = call.out.shape[1] // q.shape[1]
    q, k = (x.repeat_interleave(shared, 1) for x in (q, k))
    decay = g.exp().expand(q.shape[:2]) if g.ndim == 1 else g.exp()
    q = q * (decay if decay.ndim == 3 else decay[..., None])
    yield dataclasses.replace(_with(double, about, q=q.roll(-1, 0), k=k, **options), later=1)


def _seeing(call: Sample, about: str, seen: Callable[[int, int], int]) -> Hypothesis:
    """Makes each row a sequence of its own, which sees at most `seen(n, i)` positions of the old sequence."""
    batch = call.batch
    assert isinstance(batch, PagedBatch)
    owners = [(n, i) for n, length in enumerate(batch.seqlens) for i in range(length)]
    kv = tuple(min(seen(n, i), batch.kv_seqlens[n]) for n, i in owners)
    return _with(
        call,
        about,
        cu_seqlens=torch.arange(len(owners) + 1, dtype=torch.int32),
        seqlens=(1,) * len(owners),
        page_table=batch.page_table[[n for n, _ in owners]].contiguous(),
        kv_lens=torch.tensor(kv, dtype=torch.int32),
        kv_seqlens=kv,
    )


def _pages(call: Sample) -> Iterator[Hypothesis]:
    batch = call.batch
    if not isinstance(batch, PagedBatch):
        return
    table = batch.page_table
    first = table[:1].expand_as(table).contiguous()
    yield _with(call, "every sequence takes the pages of the first one", page_table=first)
    yield _with(call, "sequences take the pages of the one before", page_table=table.roll(1, 0))
    late = torch.cat([table[:, 1:], table[:, -1:]], dim=1)
    yield _with(call, "tokens are looked up one page too far", page_table=late)
    early = torch.cat([table[:, :1], table[:, :-1]], dim=1)
    yield _with(call, "tokens after the first page are looked up one page too early", page_table=early)
    same = table[:, :1].expand_as(table).contiguous()
    yield _with(call, "every token is looked up in the first page of its sequence", page_table=same)


def _ends(call: Sample) -> Iterator[Hypothesis]:
    """Mistakes in which states lack their sequences' last rows. For outputs, see the module `places`."""
    batch = call.batch
    if call.phase != "prefill" or not isinstance(batch, StateBatch):
        return
    lengths = batch.seqlens
    yield _cut(call, "the state leaves out each sequence's last row", [max(0, n - 1) for n in lengths])
    sizes: dict[tuple[int, ...], list[str]] = {}
    for chunk in _CHUNKS:
        if max(lengths, default=0) > chunk:
            sizes.setdefault(tuple(max(n - 1, 0) // chunk * chunk or n for n in lengths), []).append(
                str(chunk)
            )
    for kept, chunks in sizes.items():
        yield _cut(call, f"the state leaves out the last chunk of {' or '.join(chunks)}", kept)


def _cut(call: Sample, about: str, lengths: Sequence[int]) -> Hypothesis:
    rows: list[int] = []
    first = 0
    for length, kept in zip(call.batch.seqlens, lengths, strict=True):
        rows += range(first, first + kept)
        first += length
    specs = call.contract.tensors
    changed = {
        name: tensor[rows]
        for name, tensor in call.tensors.items()
        if tensor is not None and specs[name].axes[0] == "T"
    }
    return _with(call, about, **sequences(tuple(lengths), "cpu"), **changed)


_MAKERS = (_states, _gates, _weights, _options, _swapped, _groups, _masks, _pages, _ends)
