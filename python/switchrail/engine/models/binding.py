"""Connects a loaded model to a dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from typing import Any

from torch import nn

from switchrail._core import Layout
from switchrail.engine.compiled import opaque
from switchrail.engine.models import blocks, operations
from switchrail.engine.models.contract import Connected, Connection, Keyword, MixerContract
from switchrail.engine.models.families import Family
from switchrail.engine.models.operations import ForwardOf
from switchrail.engine.watch import ENGINE
from switchrail.errors import CheckpointError, LayoutError
from switchrail.hooks import Hooks
from switchrail.pools import Shape

Mixer = tuple[int, nn.Module, MixerContract]
"""Layer id, module, contract."""


def find_mixers(model: nn.Module, family: Family, layers: Iterable[Any]) -> list[Mixer]:
    """Find the mixers (attention, recurrences and convolutions) of a model's layers.

    Args:
        model: The model with its head.
        family: The model's family.
        layers: The layout's layers, each with `id`, `kind` and `ops`.

    Raises:
        CheckpointError: The model has no layers where the family expects them.
        LayoutError: The model and the layout differ in the number of layers, or a layer has a kind that the
            family doesn't have, or lacks the mixer of its kind.
    """
    modules = family.layers_of(model)
    layers = list(layers)
    if len(modules) != len(layers):
        raise LayoutError(
            f"the layout has {len(layers)} layers, but the model has {len(modules)}", found=len(layers)
        )
    mixers: list[Mixer] = []
    for layer in layers:
        if layer.kind not in family.mixers:
            raise LayoutError(
                f"layer {layer.id} is of kind {layer.kind!r}; valid for {family.module}: "
                f"{', '.join(family.mixers)}",
                found=layer.kind,
                valid=tuple(family.mixers),
            )
        for name, contract in family.mixers[layer.kind].items():
            try:
                mixer = attrgetter(name)(modules[layer.id])
            except AttributeError:
                raise LayoutError(
                    f"layer {layer.id} is of kind {layer.kind!r} in the layout, but transformers made it "
                    f"without {name!r}",
                    found=layer.kind,
                ) from None
            mixers.append((layer.id, mixer, contract))
    return mixers


def read_shapes(mixers: Iterable[Mixer]) -> dict[tuple[int, str], Shape]:
    """The shape of the memory that each (layer id, op) of a model needs."""
    return {
        (layer, op): shape
        for layer, mixer, contract in mixers
        for op, shape in _shapes(layer, mixer, contract).items()
    }


def _shapes(layer: int, mixer: nn.Module, contract: MixerContract) -> dict[str, Shape]:
    try:
        return contract.shapes(mixer)
    except CheckpointError as error:
        raise CheckpointError(f"layer {layer} {error}", **error.fields) from error


def check_shapes(mixers: Iterable[Mixer], layout: Layout) -> None:
    """Compare the sizes of mixers with the sizes that a layout specifies.

    Raises:
        LayoutError: A size differs.
        CheckpointError: A mixer uses something that the engine does not support.
    """
    for layer, mixer, contract in mixers:
        kind = layout.layer(layer).kind
        for op, shape in _shapes(layer, mixer, contract).items():
            told, sizes = layout.shape(kind, op), dict[str, int | None](shape.sizes)
            if op == "attention":
                sizes["window"] = contract.window(mixer)
                if kind != "sliding_attention":
                    told.setdefault("window", None)
            for size, found in sizes.items():
                if told.get(size, found) != found:
                    raise LayoutError(
                        f"layer {layer} has {size} {found} for its {op}, but {told[size]} in the layout",
                        found=found,
                    )


def connect(
    model: nn.Module,
    mixers: Iterable[Mixer],
    family: Family,
    connection: Connection,
    forward_of: ForwardOf,
    *,
    is_compiled: bool = False,
) -> Callable[[], None]:
    """Connect a model to the dispatcher and the platform; other models in the process are not affected.

    Args:
        model: The model with its head.
        mixers: The model's mixers.
        family: The model's family.
        connection: The connection for the mixers.
        forward_of: Finds the platform's functions for operations.
        is_compiled: Whether `blocks.Blocks` will compile the model's layers.

    Returns:
        A function that removes the hooks on the mixers and on the modelling module's functions. Call it when
        the model is no longer used, or before the model is connected again.
    """
    functions: dict[str, Callable[..., Any]] = {}
    with ExitStack() as undo:
        for layer, mixer, contract in mixers:
            layers = contract.layers(mixer, partial(connection.pools.of, layer))
            for half in layers.values():
                connection.dispatcher.add(layer, half)
            mixer.__dict__.update(contract.methods)
            keyword = Keyword(Connected(layer, layers, connection), contract.packed)
            undo.callback(mixer.register_forward_pre_hook(keyword, with_kwargs=True).remove)
            functions.update(contract.hooks)
        wanted = [(f"{family.module}.{name}", hook, 0) for name, hook in functions.items()] + [
            (f"{path}.forward", operations.forward, operations.INNERMOST)
            for path in operations.bind(
                forward_of, model, family.module, family.operations, connection.running
            )
        ]
        if is_compiled:
            wanted += _compiled_methods(model, family)
        hooks = Hooks()
        undo.callback(hooks.clear)
        hooks.commit(
            [
                hooks.prepare(target, hook, "around", source=ENGINE, priority=priority)
                for target, hook, priority in wanted
            ]
        )
        return undo.pop_all().close


def _compiled_methods(model: nn.Module, family: Family) -> list[tuple[str, Callable[..., Any], int]]:
    """The hooks for compiled layers, as (target, hook, priority). Marks the modules of opaque classes."""
    found = {type(layer): (blocks.forward, blocks.INNER) for layer in family.layers_of(model)}
    for part in model.modules():
        if type(part).__name__ in family.opaque:
            opaque.make_opaque(part)
            found[type(part)] = opaque.forward, opaque.OUTERMOST
    return [(f"{cls.__module__}.{cls.__qualname__}.forward", *each) for cls, each in found.items()]


__all__ = ["Connection", "check_shapes", "connect", "find_mixers", "read_shapes"]
