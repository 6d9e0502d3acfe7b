"""Removing one request from a long queue takes no search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from switchrail.engine import Engine, Request, SamplingParams

from .test_requests import is_idle

COUNT = 300
PARAMS = SamplingParams(max_new_tokens=2, ignore_eos=True)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records the objects with which a request is compared, as a search would do."""
    found: list[Any] = []

    def compare(request: Request, other: object) -> bool:
        found.append(other)
        return request is other

    monkeypatch.setattr(Request, "__eq__", compare)
    monkeypatch.setattr(Request, "__hash__", object.__hash__)
    return found


def closing(engine: Engine, requests: list[Request]) -> None:
    engine.close()


def cancelling_from_the_back(engine: Engine, requests: list[Request]) -> None:
    assert all(engine.cancel(request) for request in reversed(requests))
    assert is_idle(engine)


@pytest.mark.parametrize("leave", [closing, cancelling_from_the_back])
def test_removing_a_request_searches_no_queue(
    make_engine: Callable[..., Engine],
    compared: list[Any],
    leave: Callable[[Engine, list[Request]], None],
) -> None:
    engine = make_engine()
    requests = [engine.submit([1, 2], PARAMS) for _ in range(COUNT)]
    compared.clear()
    leave(engine, requests)
    assert len(compared) <= 2 * COUNT
