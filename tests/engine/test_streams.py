"""An engine launches all operations of its steps on its own device stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from switchrail.engine import Engine, SamplingParams
from switchrail.platforms.cpu import CpuHardware, CpuPlatform
from torch.utils._python_dispatch import TorchDispatchMode

inside: list[int] = []


class StreamHardware(CpuHardware):
    """Counts its streams, and records the current one."""

    made = 0

    def own_stream(self) -> Callable[[], AbstractContextManager[object]]:
        StreamHardware.made += 1
        number = StreamHardware.made

        @contextmanager
        def stream() -> Iterator[None]:
            inside.append(number)
            try:
                yield
            finally:
                inside.remove(number)

        return stream


class StreamPlatform(CpuPlatform):
    hardware_class = StreamHardware


class Where(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the stream on which each operation runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(tuple(inside))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("params", [{}, {"n": 2, "temperature": 1.0, "seed": 1}], ids=str)
def test_each_engine_launches_on_its_own_stream(
    make_engine: Callable[..., Engine], params: dict[str, Any]
) -> None:
    """Admissions, forks, the model and the choice of tokens all run on the engine's stream."""
    engines = [make_engine(device=StreamPlatform()) for _ in range(2)]
    assert not inside
    seen = []
    for engine in engines:
        with Where() as where:
            engine.generate([[1, 2, 3], [4, 5]], SamplingParams(max_new_tokens=3, ignore_eos=True, **params))
        seen.append(where.seen)
    first = StreamHardware.made - 1
    assert seen == [{(first,)}, {(first + 1,)}]


def test_a_step_that_raises_leaves_its_stream(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(device=StreamPlatform())

    def broken(*_: object) -> Any:
        raise RuntimeError("no tokens")

    engine._core._choose = broken
    with pytest.raises(RuntimeError, match="no tokens"):
        engine.generate([[1, 2, 3]])
    assert not inside
