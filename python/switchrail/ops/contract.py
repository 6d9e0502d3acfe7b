"""Contracts: the valid calls of each op as data, and the checks that follow from them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch

from switchrail._core import PAGED_OPS
from switchrail.errors import ContractError
from switchrail.ops.batch import (
    CheckpointBatch,
    DeferredBatch,
    PagedBatch,
    PagedTreeBatch,
    RowStatesBatch,
    SequenceBatch,
    StateBatch,
    VerifyBatch,
)
from switchrail.ops.call import Layer

INPUT = "input"
"""In a list of dtypes: the dtype of the call's first tensor."""

COMPUTE = "compute"
"""In a list of dtypes: float32, or float64 if the call's first tensor is float64."""

FLOATS = ("float64", "float32", "float16", "bfloat16")

REMEMBERED = 1024
"""The maximum number of forms of checked calls that a layer remembers."""

_AXIS = re.compile(r"(\w+?)\s*([+-]\s*\d+)?")


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """Further valid forms of a tensor, in calls to a backend that has a certain feature.

    Attributes:
        feature: The name of the feature.
        dtypes: Further valid dtypes.
        free: The number of outermost axes in memory that may have gaps between their elements, or any
            positive strides if the tensor is only read.
        memory: Another valid order of the axes in dense memory.
        unit_stride: Further axes: it is also valid that one of these has stride 1, instead of one of
            `TensorSpec.unit_stride`.
    """

    feature: str
    dtypes: tuple[str, ...] = ()
    free: int = 0
    memory: tuple[str, ...] | None = None
    unit_stride: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """The specification of one tensor of a contract.

    Attributes:
        axes: The axes, outermost first. Each is a name, or a name and a constant such as `W-1`. An axis has
            one size in all tensors of a call.
        dtypes: The names of the valid dtypes; `INPUT` and `COMPUTE` depend on the call.
        memory: The axes in the order of dense memory, outermost first; None if only `unit_stride` is
            required.
        unit_stride: Axes of which at least one has stride 1; the others may have any stride.
        mutated: Whether the call writes to the tensor.
        optional: Whether None is valid.
        same_if_none: Two axes that must have the same size if the tensor is None.
        raw_with: The name of an option. In calls with this option, the dtype of the call's first tensor is
            valid as well.
        feature: The feature that a backend must declare to accept this tensor. A call may omit such a tensor
            or pass None. The attribute is None if every backend accepts the tensor.
        also: Further valid forms of the tensor, by feature.
        about: The meaning of the tensor.
    """

    axes: tuple[str, ...]
    dtypes: tuple[str, ...]
    memory: tuple[str, ...] | None = None
    unit_stride: tuple[str, ...] = ()
    mutated: bool = False
    optional: bool = False
    same_if_none: tuple[str, str] | None = None
    raw_with: str | None = None
    feature: str | None = None
    also: tuple[Allowance, ...] = ()
    about: str

    @cached_property
    def parsed_axes(self) -> tuple[tuple[str, int], ...]:
        """The axes as pairs of a name and the constant added to it."""
        return tuple(parse_axis(axis) for axis in self.axes)

    @cached_property
    def memory_orders(self) -> tuple[tuple[tuple[int, ...], int, tuple[str, ...]], ...]:
        """The valid orders in memory, those that need the fewest features first; empty if any order is valid.

        An order has three parts: the positions of all axes, innermost first; the number of outermost axes
        whose strides are free; and the features that the order needs.
        """
        if self.memory is None:
            return ()
        orders = [(self.memory, ()), *((a.memory, (a.feature,)) for a in self.also if a.memory is not None)]
        free = [(0, ()), *((a.free, (a.feature,)) for a in self.also if a.free)]
        found = [
            (self._positions(reversed(order)), count, (*first, *second))
            for order, first in orders
            for count, second in free
        ]
        return tuple(sorted(found, key=lambda each: len(each[2])))

    @cached_property
    def unit_axes(self) -> tuple[int, ...]:
        """The positions of the `unit_stride` axes."""
        return self._positions(self.unit_stride)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The features that allow further forms of the tensor."""
        return tuple(dict.fromkeys(allowance.feature for allowance in self.also))

    def _positions(self, axes: Iterable[str]) -> tuple[int, ...]:
        return tuple(self.axes.index(axis) for axis in axes)

    @cached_property
    def raw(self) -> TensorSpec:
        """The specification for calls in which the option `raw_with` is given."""
        return replace(self, dtypes=(INPUT, *self.dtypes))

    @cached_property
    def torch_dtypes(self) -> Mapping[torch.dtype, frozenset[torch.dtype]]:
        """The valid dtypes, by the dtype of the first tensor of the call (or of the batch)."""
        table = {}
        for first in (*FLOATS, "int32"):
            special = {INPUT: first, COMPUTE: "float64" if first == "float64" else "float32"}
            table[getattr(torch, first)] = frozenset(getattr(torch, special.get(d, d)) for d in self.dtypes)
        return table


@dataclass(frozen=True, kw_only=True)
class OptionSpec:
    """The specification of one argument of a contract that is not a tensor.

    Attributes:
        types: The valid types; a bool is not accepted as a number.
        values: The valid values; empty if any value of `types` is valid.
        finite_nonzero: Whether a number must be finite and other than 0.
        sign: 1 if a number must be positive, -1 if it must be negative, 0 if both are valid.
        feature: See `TensorSpec`.
        about: The meaning of the argument.
    """

    types: tuple[type, ...]
    values: tuple[Any, ...] = ()
    finite_nonzero: bool = False
    sign: int = 0
    feature: str | None = None
    about: str


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The arguments of one op as data, from which checks and test inputs follow.

    Attributes:
        op: The op's name.
        call: The class of the op's calls. A call's first tensor determines the dtypes.
        layer: The class of the op's layers.
        tensors: All tensors of calls and layers by name, including `out`.
        options: All other arguments by name.
        multiples: Pairs of axes; the first is a multiple of the second.
        needs: Triples of an option, a value of it, and another argument that this value requires.
        sums: Tuples of axes; the size of the first is the sum of the others.
        batch_features: By feature, the class of batch that only backends with the feature accept.
        state_layout: The name of the state's layout, as in registrations; None if there is no such layout.
        gate: Facts about the gate for the documents, under the keys `space` (such as `log`), `kind` and
            `range`; empty if the op has no gate.
        notes: Requirements that the shapes can't express.
    """

    op: str
    call: type[tuple[Any, ...]]
    layer: type[Layer]
    tensors: Mapping[str, TensorSpec]
    options: Mapping[str, OptionSpec]
    multiples: tuple[tuple[str, str], ...] = ()
    needs: tuple[tuple[str, Any, str], ...] = ()
    sums: tuple[tuple[str, ...], ...] = ()
    batch_features: Mapping[str, type[SequenceBatch]] = field(default_factory=dict)
    state_layout: str | None = None
    gate: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def batch_type(self) -> type[SequenceBatch]:
        """The base class of the op's batches."""
        return PagedBatch if self.op in PAGED_OPS else StateBatch

    @cached_property
    def batch(self) -> Mapping[str, TensorSpec]:
        """The tensors of the op's batches, by name."""
        return PAGES if self.op in PAGED_OPS else STATE_SLOTS

    @cached_property
    def mutated(self) -> tuple[str, ...]:
        """The names of the tensors that a call writes to."""
        return tuple(name for name, spec in self.tensors.items() if spec.mutated)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of a call's tensors, except those that the call writes to."""
        return tuple(name for name in self.brought if not self.tensors[name].mutated)

    @cached_property
    def brought(self) -> tuple[str, ...]:
        """The names of the tensors that are passed with each call; the others belong to the layer."""
        names: tuple[str, ...] = self.call._fields[1:]  # type: ignore[attr-defined]
        return names

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """The names of a layer's arguments."""
        return tuple(field.name for field in fields(self.layer) if field.init)

    @cached_property
    def required(self) -> frozenset[str]:
        """The names of the arguments that no call may omit."""
        return frozenset(self._arguments) - {name for names in self.features.values() for name in names}

    @property
    def field_features(self) -> Mapping[str, str]:
        """The features that allow more values in fields of the batch, each with a description."""
        return STATE_FEATURES if issubclass(self.batch_type, StateBatch) else PAGED_FEATURES

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The names of all features."""
        return tuple(self.features)

    @cached_property
    def features(self) -> Mapping[str, tuple[str, ...]]:
        """The arguments that belong to each feature; `batch` is one of them for `batch_features`.

        A feature that only allows more values of arguments, such as other strides, has no arguments.
        """
        table: dict[str, tuple[str, ...]] = dict.fromkeys(self.batch_features, ("batch",))
        for name, spec in self._arguments.items():
            if spec.feature is not None:
                table[spec.feature] = (*table.get(spec.feature, ()), name)
        wider = [*self.field_features]
        for tensor in (*self.batch.values(), *self.tensors.values()):
            wider += tensor.features
        return dict.fromkeys(wider, ()) | table

    @property
    def _arguments(self) -> Mapping[str, TensorSpec | OptionSpec]:
        return {**self.tensors, **self.options}

    def make(self, arguments: Mapping[str, Any]) -> Any:
        """Makes a call, with a layer of its own, from all arguments by name.

        Raises:
            ContractError: An argument is missing or unknown.
        """
        if not self.required <= arguments.keys() <= self._arguments.keys():
            self._fail_names(arguments)
        kept = {name: arguments[name] for name in self.kept if name in arguments}
        brought = {name: arguments[name] for name in self.brought if name in arguments}
        make: Any = self.call
        return make(layer=self.layer(**kept), **brought)

    def check(self, phase: str, call: Any, batch: SequenceBatch) -> None:
        """Checks a call and its batch with all features allowed: `check_batch`, then `check_call`.

        Raises:
            ContractError: An argument breaks the contract.
        """
        features = self.feature_names
        self.check_batch(phase, batch, features)
        self.check_call(call, batch, features)

    def needed_features(self, phase: str, call: Any, batch: SequenceBatch) -> frozenset[str]:
        """Checks a call and its batch, and returns the features that a backend needs to serve them.

        Raises:
            ContractError: An argument breaks the contract in a way that no feature allows.
        """
        needed = _Needed()
        self.check_batch(phase, batch, needed)
        self.check_call(call, batch, self.feature_names)
        self._check_call(call, batch, needed)
        return frozenset(needed)

    def check_batch(self, phase: str, batch: SequenceBatch, features: Collection[str] = ()) -> None:
        """Checks the batch that all layers of a step share. Tensor contents are not read.

        Args:
            phase: `prefill`, `decode` or `verify`.
            batch: The step's batch.
            features: The backend's features; only those about batches are used.

        Raises:
            ContractError: The batch breaks the contract, or needs a feature that the backend lacks.
        """
        if not isinstance(batch, self.batch_type):
            raise self.error("batch", type(batch).__name__, f"a {self.batch_type.__name__}")
        if any(length < 0 for length in batch.seqlens):
            raise self.error("batch.seqlens", str(min(batch.seqlens)), "lengths of 0 or more")
        if phase == "decode" and any(length != 1 for length in batch.seqlens):
            other = next(length for length in batch.seqlens if length != 1)
            raise self.error("batch.seqlens", f"a length of {other}", "1 for each sequence in decode")
        sizes = {"N": len(batch.seqlens), "T": sum(batch.seqlens)}
        owners = {"N": "batch.seqlens", "T": "batch.seqlens"}

        def check(tensors: Mapping[str, TensorSpec]) -> None:
            for name, spec in tensors.items():
                tensor = getattr(batch, name)
                self._check_tensor(f"batch.{name}", spec, tensor, batch.cu_seqlens, sizes, owners, features)

        check(self.batch)
        if isinstance(batch, StateBatch):
            self._check_slot_fields(batch, features)
        if isinstance(batch, PagedBatch) and batch.kv_bounds:
            self._check_has("batch.kv_bounds", "True", "False", "kv_bounds", features)
        if isinstance(batch, CheckpointBatch):
            self._check_feature("checkpoints", features, phase, "prefill")
            every = batch.checkpoint_every
            if type(every) is not int or every < 1:
                raise self.error("batch.checkpoint_every", repr(every), "an int of 1 or more")
            check(CHECKPOINTS)
            self._check_columns("batch.checkpoint_slots", batch.checkpoint_slots, batch, every)
        if isinstance(batch, PagedTreeBatch):
            self._check_feature("trees", features, phase, "verify")
        if isinstance(batch, RowStatesBatch):
            self._check_feature("row_states", features, phase, "verify")
            check(ROW_SLOTS)
            self._check_columns("batch.row_slots", batch.row_slots, batch)
        if isinstance(batch, DeferredBatch):
            self._check_feature("deferred_commit", features, phase, "verify")
            check(DEFERRED)
            self._check_columns("batch.pending_rows", batch.pending_rows, batch)
            if batch.read_only:
                raise self.error("batch.read_only", "True", "False in a DeferredBatch")
            if type(batch.record_count) is not int or batch.record_count < 0:
                raise self.error("batch.record_count", repr(batch.record_count), "an int of 0 or more")
        if isinstance(batch, StateBatch) and (phase == "verify") != isinstance(batch, VerifyBatch):
            found = f"{type(batch).__name__} in {phase}"
            raise self.error(
                "batch", found, "a VerifyBatch in verify, and another StateBatch in other phases"
            )
        if isinstance(batch, (VerifyBatch, PagedTreeBatch)):
            check(PARENTS)
            if batch.parent_rows is None:
                self._check_has("batch.parent_rows", "None", "the host's parents", "device_parents", features)
            else:
                self._check_parents(batch.seqlens, batch.parent_rows)

    def check_call(self, call: Any, batch: SequenceBatch, features: tuple[str, ...] = ()) -> None:
        """Checks a call whose batch is already checked. Tensor contents are not read.

        Args:
            call: The call.
            batch: The call's batch.
            features: The backend's features.

        Raises:
            ContractError: An argument breaks the contract, or needs a feature that the backend lacks.
        """
        if type(call) is not self.call:
            raise self.error("call", type(call).__name__, f"a {self.call.__name__}")
        layer: Layer = call[0]
        if type(layer) is not self.layer:
            raise self.error("layer", type(layer).__name__, f"a {self.layer.__name__}")
        rows = sum(batch.seqlens)
        values: list[object] = []
        try:
            for tensor in call[1:]:
                if tensor is None:
                    values.append(None)
                    continue
                shape: tuple[int | None, ...] = tensor.shape
                if rows > 1 and shape and shape[0] == rows:
                    shape = (None, *shape[1:])
                values.append((tensor.dtype, tensor.device, shape, tensor.stride()))
        except (AttributeError, TypeError, RuntimeError):  # an argument is no tensor, or has no strides
            self._check_call(call, batch, features)
            return
        # The key has everything that the check reads except the layer. A number of rows above 1 may differ
        # between steps, so it is replaced by None in the shapes.
        key = (type(batch), 0 if rows > 1 else rows, batch.cu_seqlens.device, features, *values)
        if key in layer.checked:
            return
        self._check_call(call, batch, features)
        if len(layer.checked) >= REMEMBERED:
            layer.checked.clear()
        layer.checked.add(key)

    def check_layer(self, layer: Any, features: Collection[str]) -> None:
        """Checks the arguments of a layer, as far as they don't depend on a call.

        Raises:
            ContractError: An option or a tensor breaks the contract, or needs a feature not in `features`.
        """
        if type(layer) is not self.layer:
            raise self.error("layer", type(layer).__name__, f"a {self.layer.__name__}")
        values = {name: getattr(layer, name) for name in self.kept}
        # A layer may have tensors for a class of batch that the backend doesn't support.
        self._check_options(values, {*features, *self.batch_features})
        sizes: dict[str, int] = {}
        owners: dict[str, str] = {}
        device = None
        for name in [name for name in self.kept if name in self.tensors]:
            tensor, spec = values[name], self.tensors[name]
            if tensor is None and (spec.optional or spec.feature is not None):
                continue
            if isinstance(tensor, torch.Tensor) and tensor.dtype not in _FLOAT_DTYPES:
                raise self.error(name, f"dtype {dtype_name(tensor.dtype)}", f"one of {', '.join(FLOATS)}")
            self._check_tensor(name, spec, tensor, tensor, sizes, owners, features)
            if device not in (None, tensor.device):
                raise self.error(name, f"device {tensor.device}", f"{device}, that of the other tensors")
            device = tensor.device

    def _check_options(self, arguments: Mapping[str, Any], features: Collection[str]) -> None:
        for feature, names in self.features.items():
            for name in names:
                if arguments.get(name) is not None and feature not in features:
                    raise self.error(name, "a value", f"None: this backend lacks the feature {feature}")
        for name, option in self.options.items():
            self._check_option(name, option, arguments[name])
        for option_name, value, needed in self.needs:
            if arguments.get(option_name) == value and arguments.get(needed) is None:
                raise self.error(needed, "None", f"a value where {option_name} is {value!r}")

    def _check_call(self, call: Any, batch: SequenceBatch, features: Collection[str]) -> None:
        layer, *brought = call
        arguments = {name: getattr(layer, name) for name in self.kept}
        arguments |= dict(zip(self.brought, brought, strict=True))
        for feature, kind in self.batch_features.items():
            if not isinstance(batch, kind):  # only batches of that class use these tensors
                arguments |= dict.fromkeys(arguments.keys() & set(self.features[feature]))
        self._check_options(arguments, features)
        first_name = self.inputs[0]
        first = arguments[first_name]
        if not isinstance(first, torch.Tensor):
            raise self.error(first_name, type(first).__name__, "a torch.Tensor")
        if first.dtype not in _FLOAT_DTYPES:
            raise self.error(first_name, f"dtype {dtype_name(first.dtype)}", f"one of {', '.join(FLOATS)}")
        if first.device != batch.cu_seqlens.device:
            raise self.error(
                "batch", f"device {batch.cu_seqlens.device}", f"{first.device}, the device of {first_name}"
            )
        sizes = {"T": sum(batch.seqlens)}
        owners = {"T": "batch.seqlens"}
        for name, spec in self.tensors.items():
            tensor = arguments.get(name)
            if spec.raw_with is not None and arguments.get(spec.raw_with) is not None:
                spec = spec.raw
            self._check_tensor(name, spec, tensor, first, sizes, owners, features)
        for whole, *parts in self.sums:
            if sizes[whole] != sum(sizes[part] for part in parts):
                found = ", ".join(f"{part} = {sizes[part]} ({owners[part]})" for part in parts)
                raise self.error(
                    owners[whole], f"{whole} = {sizes[whole]}", f"{' + '.join(parts)} with {found}"
                )
        for axis, divisor in self.multiples:
            if sizes[divisor] == 0 or sizes[axis] % sizes[divisor]:
                raise self.error(
                    owners[axis],
                    f"{axis} = {sizes[axis]}",
                    f"a multiple of {divisor} = {sizes[divisor]} ({owners[divisor]})",
                )

    def check_accepted(self, batch: SequenceBatch, accepted: object) -> None:
        """Checks the argument `accepted` of a commit. Its contents are not read.

        Raises:
            ContractError: `accepted` doesn't match `ACCEPTED`.
        """
        sizes, owners = {"N": len(batch.seqlens)}, {"N": "batch.seqlens"}
        self._check_tensor("accepted", ACCEPTED, accepted, batch.cu_seqlens, sizes, owners, ())

    def error(self, argument: str, found: str, valid: str) -> ContractError:
        """The error for one argument, with the value found and the valid ones."""
        return ContractError(
            f"{self.op}: {argument}: got {found}, expected {valid}",
            op=self.op,
            argument=argument,
            found=found,
            valid=(valid,),
        )

    def _fail_names(self, arguments: Mapping[str, Any]) -> None:
        asked = self.tensors.keys() | self.options.keys()
        for name in sorted(self.required - arguments.keys()):
            raise self.error(name, "nothing", "an argument of that name")
        unknown = min(arguments.keys() - asked)
        raise self.error(unknown, "an argument that the contract lacks", f"one of {', '.join(sorted(asked))}")

    def _check_option(self, name: str, spec: OptionSpec, value: Any) -> None:
        if type(value) not in spec.types:
            types = " or ".join("None" if t is type(None) else t.__name__ for t in spec.types)
            raise self.error(name, f"{value!r} of type {type(value).__name__}", types)
        if spec.values and value not in spec.values:
            raise self.error(name, repr(value), f"one of {', '.join(map(repr, spec.values))}")
        if value is None:
            return
        if spec.finite_nonzero and (value == 0 or not math.isfinite(value)):
            raise self.error(name, repr(value), "a finite number other than 0")
        if spec.sign and not value * spec.sign > 0:
            raise self.error(name, repr(value), f"{'more' if spec.sign > 0 else 'less'} than 0")

    def _check_feature(self, name: str, features: Collection[str], phase: str, valid: str) -> None:
        if phase != valid:
            raise self.error("batch", f"{name} in {phase}", f"{name} in {valid} only")
        if name not in features:
            raise self.error("batch", name, f"none: this backend lacks the feature {name}")

    def _check_has(self, name: str, found: str, valid: str, feature: str, features: Collection[str]) -> None:
        if feature not in features:
            raise self.error(name, found, f"{valid}: this backend lacks the feature {feature}")

    def _check_slot_fields(self, batch: StateBatch, features: Collection[str]) -> None:
        if batch.null_slot not in (-1, 0):
            raise self.error("batch.null_slot", repr(batch.null_slot), "-1 or 0")
        if batch.null_slot == 0:
            self._check_has("batch.null_slot", "0", "-1", "null_slot", features)
        if batch.read_only:
            self._check_has("batch.read_only", "True", "False", "read_only_states", features)

    def _check_columns(self, name: str, slots: torch.Tensor, batch: SequenceBatch, every: int = 1) -> None:
        """Checks that a table has a column for each `every` rows of the longest sequence."""
        wanted = max(batch.seqlens, default=0) // every
        if slots.shape[1] < wanted:
            rows = "row" if every == 1 else f"{every} rows"
            found = f"{slots.shape[1]} columns"
            raise self.error(name, found, f"at least {wanted}, one for each {rows} of the longest sequence")

    def _check_parents(self, seqlens: tuple[int, ...], parents: tuple[int, ...]) -> None:
        if len(parents) != sum(seqlens):
            raise self.error("batch.parent_rows", f"{len(parents)} parents", f"{sum(seqlens)}, one per row")
        row = 0
        for n, length in enumerate(seqlens):
            for i, parent in enumerate(parents[row : row + length]):
                if not -1 <= parent < i:
                    raise self.error(
                        "batch.parent_rows", f"{parent} for row {i} of sequence {n}", "-1, or a row before it"
                    )
            row += length

    def _join(self, known: str, other: str, sizes: dict[str, int], owners: dict[str, str]) -> None:
        """Sets the size of the axis `other` to that of the axis `known`."""
        if sizes.setdefault(other, sizes[known]) != sizes[known]:
            raise self.error(
                owners[known], f"{known} = {sizes[known]}", f"{other} = {sizes[other]} ({owners[other]})"
            )
        owners.setdefault(other, owners[known])

    def _check_tensor(
        self,
        name: str,
        spec: TensorSpec,
        tensor: Any,
        first: torch.Tensor,
        sizes: dict[str, int],
        owners: dict[str, str],
        features: Collection[str],
    ) -> None:
        if tensor is None and (spec.optional or spec.feature is not None):
            if spec.same_if_none is not None:
                self._join(*spec.same_if_none, sizes, owners)
            return
        if not isinstance(tensor, torch.Tensor):
            raise self.error(
                name, type(tensor).__name__, "a torch.Tensor" + (" or None" if spec.optional else "")
            )
        if tensor.layout != torch.strided:
            raise self.error(name, f"layout {tensor.layout}", "torch.strided")
        valid_dtypes = spec.torch_dtypes.get(first.dtype, spec.torch_dtypes[torch.int32])
        if tensor.dtype not in valid_dtypes:
            dtype = dtype_name(tensor.dtype)
            valid = f"one of: {', '.join(sorted(map(dtype_name, valid_dtypes)))}"
            for allowance in spec.also:
                if dtype in allowance.dtypes:
                    self._check_has(name, f"dtype {dtype}", valid, allowance.feature, features)
                    break
            else:
                raise self.error(name, f"dtype {dtype}", valid)
        if tensor.device != first.device:
            raise self.error(name, f"device {tensor.device}", f"{first.device}, that of the other tensors")
        shape = tensor.shape
        if len(shape) != len(spec.axes):
            raise self.error(name, f"shape {list(shape)}", f"[{', '.join(spec.axes)}]")
        for size, (axis, offset) in zip(shape, spec.parsed_axes, strict=True):
            if sizes.setdefault(axis, size - offset) != size - offset:
                known = ", ".join(
                    f"{a} = {sizes[a]} ({owners[a]})" for a, _ in spec.parsed_axes if a in owners
                )
                raise self.error(name, f"shape {list(shape)}", f"[{', '.join(spec.axes)}] with {known}")
            owners.setdefault(axis, name)
        if 0 in shape:
            return
        stride = tensor.stride()
        if spec.memory_orders:
            fits = (
                needed
                for order, free, needed in spec.memory_orders
                if _has_order(shape, stride, order, free, spec.mutated)
            )
            needed = next(fits, None)
            lacking = () if needed is None else tuple(each for each in needed if each not in features)
            if needed is None or lacking:
                valid = f"[{', '.join(spec.memory or ())}] dense in memory, last axis innermost"
                if lacking:
                    valid += f": this backend lacks the feature {' and '.join(lacking)}"
                raise self.error(name, f"strides {list(stride)} for shape {list(shape)}", valid)
        if spec.unit_axes and not _has_unit(shape, stride, spec.unit_axes):
            found = f"strides {list(stride)} for shape {list(shape)}"
            valid = f"stride 1 along {' or '.join(spec.unit_stride)}"
            for allowance in spec.also:
                if _has_unit(shape, stride, spec._positions(allowance.unit_stride)):
                    self._check_has(name, found, valid, allowance.feature, features)
                    break
            else:
                raise self.error(name, found, valid)


class _Needed(set[str]):
    """A set that claims to contain every feature, and collects the features that are looked up."""

    def __contains__(self, feature: object) -> bool:
        self.add(str(feature))
        return True


def _has_order(
    shape: tuple[int, ...], stride: tuple[int, ...], order: tuple[int, ...], free: int, written: bool
) -> bool:
    """Whether the strides are dense in `order` (innermost first), except for its outermost `free` axes.

    Their strides may be any positive numbers; if the tensor is written, they may only leave gaps. Axes of
    size 1 are ignored.
    """
    end = 1
    for number, axis in enumerate(order):
        if shape[axis] == 1:
            continue
        if number < len(order) - free and stride[axis] != end:
            return False
        if stride[axis] < (end if written else 1):
            return False
        end = stride[axis] * shape[axis]
    return True


def _has_unit(shape: tuple[int, ...], stride: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    return any(stride[axis] == 1 or shape[axis] == 1 for axis in axes)


def parse_axis(axis: str) -> tuple[str, int]:
    """Splits an axis such as `W-1` into its name and its constant.

    Raises:
        ValueError: The string is not an axis.
    """
    match = _AXIS.fullmatch(axis)
    if match is None:
        raise ValueError(f"an axis is a name, or a name and a constant such as 'W-1', not {axis!r}")
    return match[1], int((match[2] or "0").replace(" ", ""))


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype's name in registrations and messages, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


_FLOAT_DTYPES = frozenset(getattr(torch, name) for name in FLOATS)

_INDICES = ("int32", "int64")


def _indices(*axes: str, dtype: str, about: str) -> TensorSpec:
    """The specification of a table of indices, lengths or flags."""
    dtypes = _INDICES if dtype in _INDICES else ()
    views = Allowance(feature="index_views", dtypes=dtypes, free=len(axes))
    return TensorSpec(axes=axes, dtypes=(dtype,), memory=axes, also=(views,), about=about)


SEQUENCES: Mapping[str, TensorSpec] = {
    "cu_seqlens": _indices(
        "N+1", dtype="int32", about="sequence n owns rows cu_seqlens[n] to cu_seqlens[n + 1] - 1"
    )
}
"""The tensors of a `SequenceBatch`."""

STATE_SLOTS: Mapping[str, TensorSpec] = {
    **SEQUENCES,
    "read_slots": _indices("N", dtype="int64", about="slot of the initial state; -1 is padding"),
    "write_slots": _indices(
        "N",
        dtype="int64",
        about="slot of the final state; -1 where read_slots is -1; elsewhere, -1 is valid only if "
        "`read_only` is True",
    ),
    "has_initial_state": _indices(
        "N", dtype="bool", about="False: starts from zero and doesn't read the slot"
    ),
}
"""The tensors of a `StateBatch`."""

CHECKPOINTS: Mapping[str, TensorSpec] = {
    "checkpoint_slots": _indices(
        "N", "X", dtype="int64", about="slots of the intermediate states to store; -1: none"
    )
}
"""The tensor that a `CheckpointBatch` adds to a `StateBatch`."""

ROW_SLOTS: Mapping[str, TensorSpec] = {
    "row_slots": _indices("N", "X", dtype="int64", about="slots of the states after each row; -1: none")
}
"""The tensor that a `RowStatesBatch` adds to a `VerifyBatch`."""

DEFERRED: Mapping[str, TensorSpec] = {
    "pending_records": _indices("N", dtype="int64", about="number of the record to apply first; -1: none"),
    "pending_rows": _indices("N", "X", dtype="bool", about="whether to apply each row of that record"),
    "records": _indices("N", dtype="int64", about="number of the record that keeps the rows; -1: none"),
}
"""The tensors that a `DeferredBatch` adds to a `VerifyBatch`."""

ACCEPTED = TensorSpec(
    axes=("N",), dtypes=("int64",), memory=("N",), about="the last accepted row of each sequence; -1: none"
)
"""The argument `accepted` of `commit`."""

PARENTS: Mapping[str, TensorSpec] = {
    "parents": _indices(
        "T", dtype="int32", about="parent of each row, as an index within its sequence; -1: none"
    )
}
"""The tensor that a `VerifyBatch` adds to a `StateBatch`, and a `PagedTreeBatch` to a `PagedBatch`."""

PAGES: Mapping[str, TensorSpec] = {
    **SEQUENCES,
    "page_table": _indices(
        "N", "P", dtype="int32", about="pages of each sequence in order; undefined past its last page"
    ),
    "kv_lens": _indices("N", dtype="int32", about="cached tokens of each sequence, its rows included"),
}
"""The tensors of a `PagedBatch`."""

_PARENTS = "`parent_rows` may be None: only the device has the parents"
STATE_FEATURES: Mapping[str, str] = {
    "device_parents": _PARENTS,
    "null_slot": "`null_slot` may be 0: slot 0 means the same as -1",
    "read_only_states": "`read_only` may be True: a sequence may have a slot to read and -1 to write",
}
"""The features that allow more values in fields of a `StateBatch`, each with a description."""

PAGED_FEATURES: Mapping[str, str] = {
    "device_parents": _PARENTS,
    "kv_bounds": "`kv_bounds` may be True: `kv_seqlens` are then upper bounds of `kv_lens`",
}
"""The features that allow more values in fields of a `PagedBatch`, each with a description."""
