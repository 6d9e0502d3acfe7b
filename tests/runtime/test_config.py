from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import switchrail
from pydantic import BaseModel, Field, model_validator
from switchrail import Runtime
from switchrail.errors import ConfigError, UnknownBackendError
from switchrail.ops import GatedDeltaBackend

LAYOUT = switchrail.Layout.from_kinds("tiny", ["gated_delta"])


class Mode(enum.Enum):
    FAST = "fast"
    EXACT = "exact"


@dataclass
class Tiles:
    rows: int = 16


@dataclass(frozen=True)
class Settings:
    scale: float = 1.0
    chunk: int = 64
    mode: Mode = Mode.FAST
    sizes: tuple[int, ...] = (1, 2)
    tiles: Tiles = field(default_factory=Tiles)
    folder: Path | None = None


class Model(BaseModel):
    scale: float = Field(1.0, gt=0)
    chunk: int = 64


class Acme(GatedDeltaBackend):
    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self.config


def config_of(runtime: Runtime, name: str = "acme") -> Any:
    plan = runtime.plan(LAYOUT, device="cpu", dtype="float32", preferences={"gated_delta": name})
    return runtime.bind(plan).lookup("gated_delta", "decode", 0)()


def test_defaults_are_set_at_registration(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta", config=Settings)
    runtime.register("seven", Acme, op="gated_delta", config=Settings(scale=7.0, mode=Mode.EXACT))
    runtime.register("model", Acme, op="gated_delta", config=Model(chunk=8))
    runtime.register("none", Acme, op="gated_delta")
    assert config_of(runtime) == Settings()
    assert config_of(runtime, "seven") == Settings(scale=7.0, mode=Mode.EXACT)
    assert config_of(runtime, "model") == Model(chunk=8)
    assert config_of(runtime, "none") is None
    assert runtime.backend("gated_delta", "seven").effective_config["scale"] == 7.0


def test_the_users_values_override_the_defaults(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta", config=Settings(scale=7.0))
    before = config_of(runtime)
    runtime.configure(
        "gated_delta", "acme", chunk=8, mode=Mode.EXACT, sizes=[3], tiles={"rows": 4}, folder="x"
    )
    expected = Settings(7.0, 8, Mode.EXACT, (3,), Tiles(4), Path("x"))
    assert config_of(runtime) == expected
    assert before == Settings(scale=7.0)
    runtime.configure("gated_delta", "acme", scale=2)
    assert config_of(runtime) == Settings(scale=2.0)
    runtime.configure("gated_delta", "acme")
    assert config_of(runtime) == Settings(scale=7.0)


def test_each_plan_gets_an_object_of_its_own(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta", config=Model)
    assert config_of(runtime) is not config_of(runtime)


def test_a_field_can_have_any_name(runtime: Runtime) -> None:
    @dataclass
    class Named:
        op: str = "a"
        name: str = "b"
        self: str = "c"

    runtime.register("acme", Acme, op="gated_delta", config=Named)
    runtime.configure("gated_delta", "acme", op="A", name="B", self="C")
    assert config_of(runtime) == Named("A", "B", "C")


def test_values_belong_to_the_registration(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta", config=Settings)
    runtime.register("other", Acme, op="gated_delta", config=Settings)
    runtime.configure("gated_delta", "acme", scale=2.0)
    assert (config_of(runtime).scale, config_of(runtime, "other").scale) == (2.0, 1.0)
    runtime.register("acme", Acme, op="gated_delta", config=Settings(scale=5.0), override=True)
    assert config_of(runtime).scale == 5.0


@pytest.mark.parametrize("config", [Settings, Model])
@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"sclae": 2.0}, ["no field 'sclae'", "nearest: scale", "valid fields: scale, chunk"]),
        ({"scale": "2.0"}, ["scale is '2.0'", "valid number"]),
        ({"chunk": 2.5}, ["chunk is 2.5", "valid integer"]),
        ({"chunk": True}, ["chunk is True", "valid integer"]),
        ({"chunk": None, "scale": []}, ["chunk is None", "scale is []"]),
        ({"scale": float("nan")}, ["not JSON compliant"]),
        ({"scale": object()}, ["object"]),
    ],
)
def test_values_that_do_not_fit(
    runtime: Runtime, config: Any, values: dict[str, Any], parts: list[str]
) -> None:
    runtime.register("acme", Acme, op="gated_delta", config=config)
    before = runtime.backend("gated_delta", "acme")
    with pytest.raises(ConfigError) as caught:
        runtime.configure("gated_delta", "acme", **values)
    for part in ["gated_delta backend 'acme'", *parts]:
        assert part in str(caught.value)
    assert runtime.backend("gated_delta", "acme") == before


def test_the_error_has_the_facts_as_fields(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta", config=Model)
    with pytest.raises(ConfigError) as caught:
        runtime.configure("gated_delta", "acme", scal=1.0, scale=-1.0)
    assert len(caught.value.problems) == 2
    assert caught.value.valid == ("scale", "chunk")
    assert caught.value.nearest == ("scale",)


def test_nested_values_are_checked_too(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta", config=Settings)
    with pytest.raises(ConfigError, match=r"no field 'tiles\.row'"):
        runtime.configure("gated_delta", "acme", tiles={"row": 4})


def test_a_backend_without_configuration_takes_none(runtime: Runtime) -> None:
    runtime.register("acme", Acme, op="gated_delta")
    with pytest.raises(ConfigError, match="takes no configuration"):
        runtime.configure("gated_delta", "acme", scale=1.0)
    with pytest.raises(UnknownBackendError, match="nearest: acme"):
        runtime.configure("gated_delta", "acne", scale=1.0)


@dataclass
class Checked:
    scale: float = 1.0
    raises: str = "ValueError"

    def __post_init__(self) -> None:
        if self.scale > 2:
            raise {"ValueError": ValueError, "KeyError": KeyError, "TypeError": TypeError}[self.raises](
                "high"
            )


class CheckedModel(BaseModel):
    scale: float = 1.0

    @model_validator(mode="after")
    def check(self) -> CheckedModel:
        if self.scale > 2:
            raise ValueError("high")
        return self


@pytest.mark.parametrize("config", [Checked, CheckedModel])
def test_a_check_of_all_fields_together(runtime: Runtime, config: Any) -> None:
    runtime.register("acme", Acme, op="gated_delta", config=config)
    with pytest.raises(
        ConfigError,
        match=r"'acme': the values {.*'scale': 3.0.*} don't go together: Value error, high; valid",
    ):
        runtime.configure("gated_delta", "acme", scale=3.0)


@pytest.mark.parametrize("raises", ["KeyError", "TypeError"])
def test_a_check_that_raises_something_else(runtime: Runtime, raises: str) -> None:
    runtime.register("acme", Acme, op="gated_delta", config=Checked)
    with pytest.raises(ConfigError, match=rf"making a Checked of .* raised {raises}\('high'\)") as caught:
        runtime.configure("gated_delta", "acme", scale=3.0, raises=raises)
    assert type(caught.value.__cause__).__name__ == raises


@dataclass
class Unreadable:
    lock: threading.Lock | None = None  # type: ignore[valid-type]


@dataclass
class Nowhere:
    field: DoesNotExist | None = None  # type: ignore[name-defined]  # noqa: F821


@dataclass
class NoJson:
    call: Callable[[], int] | None = len  # type: ignore[assignment]


@dataclass
class BrokenDefault:
    scale: float = field(default_factory=lambda: 1 / 0)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Unreadable, "the type Unreadable can't be read: "),
        (Nowhere, "the type Nowhere can't be read: .*DoesNotExist"),
        (NoJson, "valid: values that JSON can represent"),
        (BrokenDefault, "making a BrokenDefault of {} raised ZeroDivisionError"),
    ],
)
def test_a_type_that_can_not_be_read(runtime: Runtime, config: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"configuration of gated_delta backend 'acme': .*{words}"):
        runtime.register("acme", Acme, op="gated_delta", config=config)


@pytest.mark.parametrize(
    "value",
    ["\ud800", {"\ud800": 1}, 10**5000, b"\xff", float("inf")],
    ids=lambda value: type(value).__name__,
)
def test_values_that_json_lacks(runtime: Runtime, value: object) -> None:
    @dataclass
    class Loose:
        value: Any = None

    runtime.register("acme", Acme, op="gated_delta", config=Loose)
    with pytest.raises(ConfigError, match="valid: values that JSON can represent"):
        runtime.configure("gated_delta", "acme", value=value)


@dataclass
class NoDefault:
    scale: float


@dataclass
class WrongDefault:
    scale: float = "much"  # type: ignore[assignment]


@pytest.mark.parametrize(
    "config", [NoDefault, WrongDefault, Settings(scale="much"), dict, {"scale": 1.0}, 42]
)  # type: ignore[arg-type]
def test_invalid_configurations_are_refused(runtime: Runtime, config: Any) -> None:
    before = runtime.backends()
    with pytest.raises(ConfigError, match="configuration of gated_delta backend 'acme'"):
        runtime.register("acme", Acme, op="gated_delta", config=config)
    assert runtime.backends() == before
