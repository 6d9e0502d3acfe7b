"""No hooks are left on a model if connecting it fails, or after its engine is closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from switchrail.engine import Engine
from switchrail.engine.models import binding
from switchrail.hooks import Hooks
from torch import nn


class Refused(Exception):
    pass


def hooks_on(model: nn.Module) -> int:
    return sum(len(part._forward_pre_hooks) for part in model.modules())


def test_nothing_remains_on_the_mixers_if_the_functions_cannot_be_hooked(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[nn.Module] = []
    connect = binding.connect

    def connecting(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        models.append(model)
        return connect(model, *args, **kwargs)

    def refuse(*args: object, **kwargs: object) -> None:
        assert hooks_on(models[0])
        raise Refused

    monkeypatch.setattr("switchrail.engine.runner.connect", connecting)
    monkeypatch.setattr(Hooks, "commit", refuse)
    with pytest.raises(Refused):
        make_engine()
    assert hooks_on(models[0]) == 0


def test_a_closed_engine_leaves_nothing_on_its_model(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    model = engine._runner.model
    assert hooks_on(model)
    engine.close()
    assert hooks_on(model) == 0
