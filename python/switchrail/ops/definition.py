"""The definition of an op: its name, its typical sizes, and access to its modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from switchrail._core import PAGED_OPS

if TYPE_CHECKING:
    from switchrail.ops.backend import AnyBackend
    from switchrail.ops.batch import Phase
    from switchrail.ops.contract import Contract
    from switchrail.ops.samples.sample import Sample
    from switchrail.ops.samples.scenario import Scenario, Timed

FLOATS = ("float64", "float32", "float16", "bfloat16")

SLOTS = ("device_parents", "index_views", "null_slot", "read_only_states")
"""Features of backends that accept more batches than the basic contract allows, for any op with a state."""

STATES = (*SLOTS, "checkpoints", "row_states", "strided_out", "strided_pool", "transposed_state")
"""The features that all ops with a state have."""

PAGES = ("device_parents", "index_views", "kv_bounds", "lse", "strided_out", "strided_pool", "trees")
"""The features that all ops over a paged cache have."""

RECURRENT: Mapping[str, Any] = {
    "state_dtypes": ("float64", "float32", "bfloat16", "float16"),
    "state_layouts": ("VK",),
    "features": (*STATES, "deferred_commit", "time_innermost"),
}
"""The claims of the `torch` and `reference` backends of ops with a recurrent state per head."""


@dataclass(frozen=True, kw_only=True)
class OpDefinition:
    """An op, as its folder exports it. The folder's modules are imported on first use.

    Attributes:
        op: The op's name, in the core and as the name of its folder.
        claims: The claims of the op's `torch` and `reference` backends, beyond the claims that all ops share.
        steps: The optional steps of the op's `torch` backend.
        arguments: Maps each axis of the contract to the argument of `generator` that sets the axis's size.
        head_size: Two axes: that of the head size of q and k, and that of v's head size. None for an op
            without heads.
        heads: The axes that count the heads of q and of v. An axis is None if there is always one head; the
            attribute is None for an op without heads.
        sizes: Sizes in widely used models, by axis.
    """

    op: str
    claims: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[str, ...] = ()
    arguments: Mapping[str, str]
    head_size: tuple[str, str] | None = None
    heads: tuple[str, str | None] | None = None
    sizes: tuple[Mapping[str, int], ...] = ()

    @property
    def paged(self) -> bool:
        """Whether the op reads a paged cache; if not, it has a state."""
        return self.op in PAGED_OPS

    @property
    def stem(self) -> str:
        """The op's name within class names, such as `GatedDelta`."""
        return "".join(part.capitalize() for part in self.op.split("_"))

    @cached_property
    def contract(self) -> Contract:
        """The op's contract."""
        contract: Contract = self._module("contract").CONTRACT
        return contract

    @cached_property
    def interface(self) -> type[AnyBackend]:
        """The base class of the op's backends."""
        return self._class("contract", f"{self.stem}Backend")

    @cached_property
    def reference(self) -> type[AnyBackend]:
        """The class of the reference backend, which computes in float64."""
        return self._class("reference", f"Reference{self.stem}")

    @cached_property
    def torch(self) -> type[AnyBackend]:
        """The class of the backend in plain torch."""
        return self._class("torch", f"Torch{self.stem}")

    @cached_property
    def generator(self) -> Callable[..., Sample]:
        """The function that makes random samples."""
        generator: Callable[..., Sample] = getattr(self._module("inputs"), f"{self.op}_call")
        return generator

    @property
    def scenarios(self) -> tuple[Scenario, ...]:
        """The conformance scenarios that are specific to this op."""
        scenarios: tuple[Scenario, ...] = getattr(self._module("inputs"), "SCENARIOS", ())
        return scenarios

    @property
    def timed(self) -> tuple[Timed, ...]:
        """The batches that the benchmarks time."""
        timed: tuple[Timed, ...] = getattr(self._module("inputs"), "TIMED", ())
        return timed

    def served(self, phase: Phase) -> Mapping[str, Any]:
        """Arguments of the generator. With them it makes calls of a phase in the form that models use."""
        served: Mapping[Phase, Mapping[str, Any]] = getattr(self._module("inputs"), "SERVED", {})
        return served.get(phase, {})

    def flops(self, case: Timed, axes: Mapping[str, int]) -> float:
        """The number of floating-point operations on tensor cores for a timed batch; 0 if not defined.

        Args:
            case: The batch.
            axes: The size of every axis.
        """
        flops = getattr(self._module("inputs"), "flops", None)
        return 0.0 if flops is None else flops(case, axes)

    def generated(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The generator's arguments for sizes of axes.

        Some axes are the sum of others (see the contract's `sums`). If exactly one addend is missing, it is
        computed.
        """
        sizes = dict(sizes)
        for whole, *parts in self.contract.sums:
            missing = [part for part in parts if part not in sizes]
            if whole in sizes and len(missing) == 1:
                sizes[missing[0]] = sizes[whole] - sum(sizes.get(part, 0) for part in parts)
        return {name: sizes[axis] for axis, name in self.arguments.items() if axis in sizes}

    def has_head_size(self, key: int, value: int) -> bool:
        """Whether the op can have these head sizes; False for an op without heads.

        If both are sizes of one axis, they must be equal. If `value`'s axis is an addend of `key`'s axis,
        `key` must be larger.
        """
        if self.head_size is None or self.head_size[0] == self.head_size[1]:
            return self.head_size is not None and key == value
        first, second = self.head_size
        return key > value or not any(
            first == whole and second in parts for whole, *parts in self.contract.sums
        )

    def _module(self, name: str) -> ModuleType:
        return import_module(f"switchrail.ops.{self.op}.{name}")

    def _class(self, module: str, name: str) -> type[AnyBackend]:
        found: type[AnyBackend] = getattr(self._module(module), name)
        return found
