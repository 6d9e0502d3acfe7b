"""Seeded random calls of each op, made hard on purpose: for any backend, on any device, in any dtype.

A call made here has permuted slots and pages, NaN in everything that a backend must not read, NaN in every
output, and, where asked, strided views of one fused buffer. The same arguments give the same numbers on every
device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from switchrail.ops.attention.contract import CONTRACT as ATTENTION
from switchrail.ops.attention.reference import ReferenceAttention
from switchrail.ops.backend import Backend
from switchrail.ops.batch import PagedBatch, Phase, SequenceBatch, StateBatch
from switchrail.ops.contract import Contract
from switchrail.ops.gated_delta.contract import CONTRACT as GATED_DELTA
from switchrail.ops.gated_delta.reference import ReferenceGatedDelta
from switchrail.ops.short_conv.contract import CONTRACT as SHORT_CONV
from switchrail.ops.short_conv.reference import ReferenceShortConv

Gate = Literal["decaying", "near_zero", "near_one", "one", "mixed"]
Initial = Literal["all", "some", "none"]

CONTRACTS = {contract.op: contract for contract in (ATTENTION, GATED_DELTA, SHORT_CONV)}
REFERENCES: dict[str, type[Backend]] = {
    "attention": ReferenceAttention,
    "gated_delta": ReferenceGatedDelta,
    "short_conv": ReferenceShortConv,
}

UNDEFINED_PAGE = 2**30
"""What stands in a page table past the last used page."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of an op: everything a backend is given.

    Attributes:
        op: The op's name.
        phase: The phase.
        tensors: The tensor arguments by name, `out` included.
        options: The other arguments by name.
        batch: The sequences.
        padding: The indices of the sequences that are padding.
    """

    op: str
    phase: Phase
    tensors: dict[str, torch.Tensor | None]
    options: dict[str, Any]
    batch: SequenceBatch
    padding: frozenset[int] = frozenset()

    @property
    def contract(self) -> Contract:
        """The op's contract."""
        return CONTRACTS[self.op]

    @property
    def out(self) -> torch.Tensor:
        """The output."""
        return self._tensor("out")

    @property
    def state(self) -> torch.Tensor:
        """The state pool."""
        return self._tensor("state")

    def run(self, backend: Backend) -> None:
        """Plans and makes the call, which writes into this call's own tensors."""
        plan = backend.plan(self.phase, self.batch)
        named = {name: t for name, t in self.tensors.items() if name not in self.contract.positional}
        positional = [self.tensors[name] for name in self.contract.positional]
        getattr(backend, self.phase)(*positional, **named, **self.options, batch=self.batch, plan=plan)

    def clone(self) -> Call:
        """A copy on the same device: `to` that device."""
        return self.to(self.out.device)

    def to(self, device: torch.device | str) -> Call:
        """A copy on a device, with memory of its own and the same strides; views of one buffer stay so."""
        tensors: dict[str, torch.Tensor | None] = {}
        storages: dict[int, torch.UntypedStorage] = {}
        for name, tensor in self.tensors.items():
            if tensor is None:
                tensors[name] = None
                continue
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in storages:
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                storages[storage.data_ptr()] = whole.to(device, copy=True).untyped_storage()
            tensors[name] = torch.empty(0, dtype=tensor.dtype, device=device).set_(
                storages[storage.data_ptr()], tensor.storage_offset(), tensor.shape, tensor.stride()
            )
        moved = {name: getattr(self.batch, name).to(device, copy=True) for name in self.contract.batch}
        return dataclasses.replace(self, tensors=tensors, batch=dataclasses.replace(self.batch, **moved))

    def double(self) -> Call:
        """A copy in float64 of the numbers as they were rounded, on the same device, the output poisoned."""
        tensors = {
            name: tensor.double() if tensor is not None else None for name, tensor in self.tensors.items()
        }
        tensors["out"] = torch.full_like(self.out, torch.nan, dtype=torch.float64)
        return dataclasses.replace(self, tensors=tensors)

    def _tensor(self, name: str) -> torch.Tensor:
        tensor = self.tensors[name]
        assert tensor is not None
        return tensor


def run_reference(call: Call) -> Call:
    """Computes the float64 oracle of a call on the same (rounded) inputs, on the CPU.

    Returns:
        A float64 copy of the call with `out` and the state filled in; `call` itself is left alone.
    """
    oracle = call.to("cpu").double()
    oracle.run(REFERENCES[call.op]())
    return oracle


def gated_delta_call(
    lengths: Sequence[int],
    *,
    phase: Phase = "prefill",
    heads: int = 2,
    value_heads: int = 4,
    key_size: int = 16,
    value_size: int = 16,
    dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    gate: Gate = "decaying",
    beta_max: float = 1.0,
    correlated: bool = False,
    zero_keys: bool = False,
    strided: bool = True,
    qk_l2norm: bool = True,
    initial: Initial = "some",
    in_place: bool = True,
    padding: Collection[int] = (),
    norm: float = 1.0,
    seed: int = 0,
) -> Call:
    """A random call of `gated_delta`.

    Args:
        lengths: The number of tokens of each sequence; in decode each is 1.
        phase: The phase.
        heads: H, the number of q/k heads.
        value_heads: HV, the number of value heads.
        key_size: K, the head size of q and k.
        value_size: V, the head size of v.
        dtype: The dtype of q, k, v, beta and out.
        state_dtype: The dtype of the state; float32 when left out, float64 with a float64 `dtype`.
        device: Where the tensors are.
        gate: `decaying` as a trained model's; `near_zero` decays between 0 (g = -inf) and e^-20 a token;
            `near_one` between 1 - 1e-4 and 1; `one` none at all (g = 0); `mixed` any of these from token to
            token.
        beta_max: The largest beta.
        correlated: Whether all keys of a head point nearly the same way.
        zero_keys: Whether every third key is zero, and every fifth query.
        strided: Whether q, k and v are views of one fused buffer, and g and beta of another.
        qk_l2norm: The argument of that name; when False, the keys come already normalised.
        initial: Which sequences start from a state; in decode all with a slot do.
        in_place: Whether a sequence reads the slot that it writes.
        padding: The indices of the sequences that are padding.
        norm: The factor on q, k, v and the initial state.
        seed: The seed.
    """
    random = _Random(seed)
    rows = sum(lengths)
    compute = _compute_dtype(dtype)
    q = random.normal(rows, heads, key_size)
    k = random.normal(rows, heads, key_size)
    if correlated:
        k = random.normal(1, heads, key_size) + 0.1 * k
    if zero_keys:
        k[::3] = 0
        q[::5] = 0
    if not qk_l2norm:
        k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    else:
        q, k = q * norm, k * norm
    v = random.normal(rows, value_heads, value_size) * norm
    g = _gate(random, gate, rows, value_heads)
    beta = random.uniform(rows, value_heads) * beta_max
    batch, slots, padded = _state_batch(random, lengths, phase, initial, in_place, padding)
    state = random.normal(slots, value_heads, value_size, key_size) * (0.5 * norm)
    state[_unread(batch, slots)] = torch.nan
    tensors: dict[str, torch.Tensor | None] = {}
    tensors["q"], tensors["k"], tensors["v"] = _views([q, k, v], dtype, strided)
    (tensors["g"],) = _views([g], compute, strided)
    (tensors["beta"],) = _views([beta], dtype, strided)
    tensors["state"] = state.to(state_dtype or compute)
    tensors["out"] = torch.full((rows, value_heads, value_size), torch.nan, dtype=dtype)
    options = {"scale": key_size**-0.5, "qk_l2norm": qk_l2norm}
    call = Call(op="gated_delta", phase=phase, tensors=tensors, options=options, batch=batch, padding=padded)
    return call.to(device)


def short_conv_call(
    lengths: Sequence[int],
    *,
    phase: Phase = "prefill",
    channels: int = 24,
    width: int = 4,
    dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    bias: bool = False,
    activation: Literal["silu"] | None = "silu",
    strided: Literal["channels", "time", "none"] = "channels",
    initial: Initial = "some",
    in_place: bool = True,
    padding: Collection[int] = (),
    seed: int = 0,
) -> Call:
    """A random call of `short_conv`.

    Args:
        lengths: The number of rows of each sequence; in decode each is 1.
        phase: The phase.
        channels: C, the number of channels.
        width: W, the number of taps.
        dtype: The dtype of x, weight, bias and out.
        state_dtype: The dtype of the state; `dtype` when left out.
        device: Where the tensors are.
        bias: Whether there is a bias.
        activation: The argument of that name.
        strided: Whether x is a view of a wider buffer with contiguous channels, a view with contiguous time,
            or dense.
        initial: Which sequences start from a state; in decode all with a slot do.
        in_place: Whether a sequence reads the slot that it writes.
        padding: The indices of the sequences that are padding.
        seed: The seed.
    """
    random = _Random(seed)
    rows = sum(lengths)
    x = random.normal(rows, channels)
    if strided == "time":
        x_view = x.to(dtype).T.contiguous().T
    else:
        (x_view,) = _views([x], dtype, strided == "channels")
    weight = random.normal(channels, width) * width**-0.5
    batch, slots, padded = _state_batch(random, lengths, phase, initial, in_place, padding)
    state = random.normal(slots, width - 1, channels)
    state[_unread(batch, slots)] = torch.nan
    tensors: dict[str, torch.Tensor | None] = {
        "x": x_view,
        "weight": weight.to(dtype),
        "bias": random.normal(channels).to(dtype) if bias else None,
        "state": state.to(state_dtype or dtype).transpose(1, 2),
        "out": torch.full((rows, channels), torch.nan, dtype=dtype),
    }
    options = {"activation": activation}
    call = Call(op="short_conv", phase=phase, tensors=tensors, options=options, batch=batch, padding=padded)
    return call.to(device)


def attention_call(
    lengths: Sequence[int],
    *,
    kv_lengths: Sequence[int] | None = None,
    phase: Phase = "prefill",
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 16,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    strided: bool = True,
    padding: Collection[int] = (),
    norm: float = 1.0,
    seed: int = 0,
) -> Call:
    """A random call of `attention`.

    Args:
        lengths: The number of query rows of each sequence; in decode each is 1.
        kv_lengths: The number of tokens of each sequence in the cache, its own rows included; `lengths` when
            left out. A sequence of padding has none, whatever is given here.
        phase: The phase.
        heads: H, the number of query heads.
        kv_heads: HKV, the number of key-value heads.
        head_size: D.
        page: The number of tokens a page holds.
        dtype: The dtype of all tensors.
        device: Where the tensors are.
        strided: Whether q is a view of a fused buffer.
        padding: The indices of the sequences that are padding.
        norm: The factor on q and k.
        seed: The seed.
    """
    random = _Random(seed)
    rows = sum(lengths)
    kv_seqlens = tuple(
        0 if n in padding else kv for n, kv in enumerate(lengths if kv_lengths is None else kv_lengths)
    )
    counts = [-(-kv // page) for kv in kv_seqlens]
    pages = sum(counts) + 3
    order = random.permutation(pages - 1) + 1
    k_cache = random.normal(pages, page, kv_heads, head_size) * norm
    v_cache = random.normal(pages, page, kv_heads, head_size)
    page_table = torch.full((len(lengths), max([*counts, 0]) + 1), UNDEFINED_PAGE, dtype=torch.int32)
    valid = torch.zeros(pages, page, dtype=torch.bool)
    first = 0
    for n, (count, kv) in enumerate(zip(counts, kv_seqlens, strict=True)):
        mine = order[first : first + count]
        first += count
        page_table[n, :count] = mine.int()
        for i, number in enumerate(mine.tolist()):
            valid[number, : kv - i * page] = True
    k_cache[~valid] = torch.nan
    v_cache[~valid] = torch.nan
    q, _ = _views(
        [random.normal(rows, heads, head_size) * norm, random.normal(rows, 2 * kv_heads, head_size)],
        dtype,
        strided,
    )
    tensors: dict[str, torch.Tensor | None] = {
        "q": q,
        "k_cache": k_cache.to(dtype),
        "v_cache": v_cache.to(dtype),
        "out": torch.full((rows, heads, head_size), torch.nan, dtype=dtype),
    }
    batch = PagedBatch(
        **_sequences(lengths),
        page_table=page_table,
        kv_lens=torch.tensor(kv_seqlens, dtype=torch.int32),
        kv_seqlens=kv_seqlens,
    )
    call = Call(
        op="attention",
        phase=phase,
        tensors=tensors,
        options={"scale": head_size**-0.5},
        batch=batch,
        padding=frozenset(padding),
    )
    return call.to(device)


class _Random:
    """Seeded float64 numbers, made on the CPU so that every device gets the same."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=self._generator)

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, dtype=torch.float64, generator=self._generator)

    def permutation(self, n: int) -> torch.Tensor:
        return torch.randperm(n, generator=self._generator)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _gate(random: _Random, gate: Gate, rows: int, value_heads: int) -> torch.Tensor:
    shape = (rows, value_heads)
    kinds = {
        "decaying": -0.3 * torch.nn.functional.softplus(random.normal(*shape)),
        "near_zero": -20 - 80 * random.uniform(*shape),
        "near_one": -1e-4 * random.uniform(*shape),
        "one": torch.zeros(shape, dtype=torch.float64),
    }
    kinds["near_zero"][random.uniform(*shape) < 0.2] = -torch.inf
    if gate != "mixed":
        return kinds[gate]
    choice = (random.uniform(*shape) * 16).long()
    mixed = kinds["decaying"]
    for name, values in (("near_zero", [0]), ("near_one", [1, 2, 3, 4]), ("one", [5, 6, 7, 8])):
        chosen = torch.isin(choice, torch.tensor(values))
        mixed = torch.where(chosen, kinds[name], mixed)
    return mixed


def _sequences(lengths: Sequence[int]) -> dict[str, Any]:
    cu_seqlens = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    cu_seqlens[1:] = torch.tensor(list(lengths), dtype=torch.int32).cumsum(0)
    return {"cu_seqlens": cu_seqlens, "seqlens": tuple(lengths)}


def _state_batch(
    random: _Random,
    lengths: Sequence[int],
    phase: Phase,
    initial: Initial,
    in_place: bool,
    padding: Collection[int],
) -> tuple[StateBatch, int, frozenset[int]]:
    count = len(lengths)
    slots = (count if in_place else 2 * count) + 3
    order = random.permutation(slots - 1) + 1
    read = order[:count].clone()
    write = read.clone() if in_place else order[count : 2 * count].clone()
    if phase == "decode" or initial == "all":
        has_initial_state = torch.ones(count, dtype=torch.bool)
    elif initial == "none":
        has_initial_state = torch.zeros(count, dtype=torch.bool)
    else:
        has_initial_state = random.uniform(count) < 0.5
    for n in padding:
        read[n] = write[n] = -1
    batch = StateBatch(
        **_sequences(lengths), read_slots=read, write_slots=write, has_initial_state=has_initial_state
    )
    return batch, slots, frozenset(padding)


def _unread(batch: StateBatch, slots: int) -> torch.Tensor:
    """The slots of a pool that no sequence reads."""
    unread = torch.ones(slots, dtype=torch.bool)
    for n, length in enumerate(batch.seqlens):
        if batch.has_initial_state[n] and length and batch.read_slots[n] >= 0:
            unread[batch.read_slots[n]] = False
    return unread


def _views(tensors: Sequence[torch.Tensor], dtype: torch.dtype, strided: bool) -> list[torch.Tensor]:
    """The tensors in `dtype`: dense, or as views of one fused buffer whose gaps hold NaN."""
    if not strided:
        return [tensor.to(dtype) for tensor in tensors]
    rows = tensors[0].shape[0]
    widths = [tensor[0].numel() if rows else 1 for tensor in tensors]
    fused = torch.full((rows, sum(widths) + 8), torch.nan, dtype=dtype)
    views = []
    first = 4
    for tensor, width in zip(tensors, widths, strict=True):
        if rows == 0:
            views.append(tensor.to(dtype))
            continue
        fused[:, first : first + width] = tensor.reshape(rows, width).to(dtype)
        views.append(fused[:, first : first + width].view(tensor.shape))
        first += width
    return views


__all__ = [
    "CONTRACTS",
    "REFERENCES",
    "UNDEFINED_PAGE",
    "Call",
    "Gate",
    "Initial",
    "attention_call",
    "gated_delta_call",
    "run_reference",
    "short_conv_call",
]
