"""MLA's prefill in the engine, with the options `ragged_prefill` and `chunked_prefix`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import switchrail
from switchrail.engine import Engine, EngineOptions
from switchrail.errors import ConfigError
from switchrail.ops.mla import prefix
from switchrail.ops.mla.reference import ReferenceMla
from switchrail.ops.mla.torch import TorchMla

from tests.families.conftest import OPTIONS, Family

Get = Callable[[str], Family]
MODELS = ("kimi_linear", "deepseek_v3")


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, tuple[int, ...] | None, bool]]:
    """What each call of `plan_chunked_prefix` plans, as a tuple.

    The tuple has the number of the batch's rows, how many of them are planned as ragged, the cached tokens in
    each chunk of the prefix (None if the batch attends to latents instead), and whether tokens are cached.
    """
    seen: list[Any] = []
    step = TorchMla.plan_chunked_prefix

    def noted(self: Any, plan: Any, batch: Any, ragged: bool, chunked: bool) -> None:
        step(self, plan, batch, ragged, chunked)
        found = plan.prefix
        rows = sum(batch.seqlens)
        own = 0 if found is None else sum(found.own.ragged.seqlens)
        chunks = None if found is None else tuple(sum(chunk.ragged.seqlens_k) for chunk in found.chunks)
        seen.append((rows, own, chunks, batch.kv_seqlens != batch.seqlens))

    monkeypatch.setattr(TorchMla, "plan_chunked_prefix", noted)
    monkeypatch.setattr(prefix, "CHUNK", 20)
    return seen


@pytest.mark.parametrize(
    ("model_type", "chunk", "options"),
    [
        ("kimi_linear", 7, {}),
        ("deepseek_v3", 64, {}),
        ("deepseek_v3", 7, {"ragged_prefill": True, "chunked_prefix": False}),
        ("kimi_linear", 64, {"ragged_prefill": False, "chunked_prefix": True}),
        ("deepseek_v3", 64, {"ragged_prefill": False, "chunked_prefix": False}),
    ],
)
def test_a_prefill_in_pieces(
    model_type: str, chunk: int, options: dict[str, Any], planned: list[Any], family_of: Get
) -> None:
    """With each option on and off, logits match those of transformers.

    Rows are planned as ragged exactly if `ragged_prefill` allows it and, where tokens are cached,
    `chunked_prefix` does too.
    """
    family = family_of(model_type)
    prompts = family.prompts((1, 2, 33, 70))
    family.check(prompts, family.run(prompts, 3, prefill_chunk=chunk, **options))
    ragged, chunked = (options.get(name) is not False for name in ("ragged_prefill", "chunked_prefix"))
    assert any(cached for *_, cached in planned)
    for rows, own, chunks, cached in planned:
        expanded = ragged and (chunked or not cached)
        assert own == (rows if expanded else 0)
        assert (chunks is not None) == expanded
    if ragged and chunked:
        assert () in {chunks for _, _, chunks, _ in planned}, (
            "no batch was planned without chunks of a prefix"
        )
        assert any(len(chunks) > 1 for _, _, chunks, _ in planned), "no prefix took more than one chunk"


def test_one_token_at_a_time(planned: list[Any], family_of: Get) -> None:
    family = family_of("kimi_linear")
    prompts = family.prompts((1, 30))
    family.check(prompts, family.run(prompts, 2, prefill_chunk=1))
    assert all(rows == own for rows, own, *_ in planned)


@pytest.mark.parametrize("option", ["ragged_prefill", "chunked_prefix"])
def test_a_needed_step_that_is_missing_is_an_error_before_the_model_is_loaded(
    option: str, family_of: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    def engine(backend: str, value: bool | None) -> Engine:
        options = {**OPTIONS, option: value}
        return Engine(
            family_of("deepseek_v3").path,
            runtime=switchrail.Runtime(),
            device="cpu",
            backends={"mla": backend},
            options=options,
        )

    for backend, value in (("reference", None), ("reference", False), ("torch", True)):
        with engine(backend, value) as made:
            expected = {"reference": ReferenceMla, "torch": TorchMla}[backend]
            assert type(made.bound.backend("mla", "prefill", 0)) is expected
    monkeypatch.setattr("switchrail.engine.loading.load", None)
    with pytest.raises(
        ConfigError, match=f"{option} is True, but mla.prefill=reference lacks the step plan_chunked_"
    ):
        engine("reference", True)


def test_options_are_checked() -> None:
    for option in ("ragged_prefill", "chunked_prefix"):
        with pytest.raises(ConfigError, match=f"{option}.* None, True or False"):
            EngineOptions(**{option: 1})
    assert EngineOptions(chunked_prefix=False).step_flags == {"ragged": True, "chunked": False}
