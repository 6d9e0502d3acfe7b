"""A change of hooks in another thread is never missed, wherever the threads switch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import switchrail
import torch
from switchrail.engine.watch import HookWatch
from torch import nn
from torch.nn.modules import module as of_modules
from torch.utils import hooks as of_handles

from tests import interleaving

PLACES = ("engine/watch.py", "engine/module_hooks.py")
X = torch.ones(1)


def scaled(x: torch.Tensor) -> torch.Tensor:
    """A function that a model calls."""
    return x * 2


class Model(nn.Module):
    """A model with one layer, to whose result it applies `scaled`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(self.layer(x))


def add_on_the_layer(model: Model) -> Callable[[], object]:
    return model.layer.register_forward_hook(lambda *_: X * 3).remove


def add_before_the_layer(model: Model) -> Callable[[], object]:
    return model.layer.register_forward_pre_hook(lambda *_: (X * 3,)).remove


def add_on_all_modules(model: Model) -> Callable[[], object]:
    def hook(part: nn.Module, *_: object) -> Any:
        return X * 3 if part is model.layer else None

    return of_modules.register_module_forward_hook(hook).remove


def add_on_the_function(model: Model) -> Callable[[], object]:
    hooks = switchrail.Runtime().hooks
    hook = hooks.add(f"{__name__}.scaled", lambda x: x * 6, "replace")
    return lambda: hooks.remove(hook)


@pytest.mark.parametrize(
    ("add", "places"),
    [
        (add_on_the_layer, (of_modules.__file__, of_handles.__file__)),
        (add_before_the_layer, (of_modules.__file__, of_handles.__file__)),
        (add_on_all_modules, (of_modules.__file__, of_handles.__file__)),
        (add_on_the_function, ("hooks/chain.py",)),
    ],
)
@pytest.mark.parametrize("look", [False, True])
def test_a_hook_that_another_thread_adds(
    monkeypatch: pytest.MonkeyPatch,
    add: Callable[[Model], Callable[[], object]],
    places: tuple[str, ...],
    look: bool,
) -> None:
    """A capture has the same hooks as later eager steps, or is made again because a change is reported."""
    monkeypatch.setattr(interleaving, "SWITCH_EVERY", 1)
    assert all(Path(place).exists() for place in places if place.startswith("/"))

    def make() -> tuple[Callable[[], object], Callable[[], object], Callable[[], object]]:
        model = Model()
        watch = HookWatch(model)
        captured, removals = [model(X)], list[Callable[[], object]]()

        def step(always: bool = False) -> None:
            if always or watch.has_changed():
                watch.look()
                captured.append(model(X))

        def check() -> None:
            try:
                step()
                assert torch.equal(captured[-1], model(X))
            finally:
                for remove in removals:
                    remove()

        return lambda: removals.append(add(model)), lambda: step(look), check

    assert interleaving.every_interleaving(make, (*PLACES, *places)) > 20
