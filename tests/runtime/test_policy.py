"""The policy file, which every program reads, prefers, denies and configures backends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import switchrail
from switchrail import Layout, Runtime
from switchrail.cli.app import app
from switchrail.cli.choices import read_choices
from switchrail.doctor.environment import check_environment, check_policy
from switchrail.errors import (
    BackendUnfitError,
    ConfigError,
    PreferenceError,
    UnknownBackendError,
    UnknownOpError,
)
from switchrail.ops.gated_delta.torch import TorchGatedDelta
from switchrail.testing import isolated
from typer.testing import CliRunner

Write = Callable[[str], Path]


@pytest.fixture
def runtime() -> Runtime:
    runtime = switchrail.Runtime()
    runtime.register("fast", "nowhere:Fast", op="gated_delta", priority=9)
    runtime.register("wide", "nowhere:Wide", op="gated_delta", priority=5)
    runtime.register("late", "nowhere:Late", op="gated_delta", phases=("decode",), priority=7)
    return runtime


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    file = tmp_path / "policy.toml"
    monkeypatch.setenv("SWITCHRAIL_POLICY", str(file))

    def write(text: str) -> Path:
        file.write_text(text)
        return file

    return write


def chosen(runtime: Runtime, phase: str, **preferences: str) -> tuple[str, str]:
    found = runtime.resolve(
        "gated_delta", phase, device="cpu", dtype="float32", preferences=preferences or None
    )
    return found.chosen, found.because


def test_an_order_and_a_denial(runtime: Runtime, policy: Write) -> None:
    policy('[backends]\ngated_delta = ["late", "wide"]\n')
    assert chosen(runtime, "decode") == ("late", "first that fits in the order for gated_delta")
    assert chosen(runtime, "prefill")[0] == "wide"
    policy('[deny]\nlinear = ["fast"]\n"gated_delta.decode" = ["late", "wide"]\n')
    assert chosen(runtime, "prefill")[0] == "wide"
    assert chosen(runtime, "decode")[0] == "torch"
    policy('[backends]\nlinear = "wide"\n')
    assert chosen(runtime, "decode") == ("wide", "chosen for linear")


@pytest.mark.parametrize("key", ["gated_delta.decode", "gated_delta", "linear.decode", "linear"])
def test_a_denial_holds_beside_any_other_key(runtime: Runtime, policy: Write, key: str) -> None:
    policy(f'[backends]\n"gated_delta.decode" = ["late"]\n[deny]\n"{key}" = ["late", "fast"]\n')
    assert chosen(runtime, "decode")[0] == "wide"
    policy(f'[deny]\n"{key}" = ["fast", "late"]\n')
    for own in ("gated_delta.decode", "gated_delta", "linear.decode", "linear"):
        assert chosen(runtime, "decode", **{own: "auto"})[0] == "wide", own
        assert chosen(runtime, "decode", **{own: "late, torch"})[0] == "torch", own
        assert chosen(runtime, "decode", **{own: "!wide"})[0] == "torch", own


def test_a_denial_for_a_narrower_key_keeps_the_choice_for_a_wider_one(
    runtime: Runtime, policy: Write
) -> None:
    policy('[backends]\nlinear = ["wide"]\n[deny]\n"gated_delta.decode" = ["fast"]\n')
    assert chosen(runtime, "decode")[0] == "wide"
    policy('[backends]\nlinear = ["wide"]\n')
    assert chosen(runtime, "decode", linear="!fast")[0] == "wide"
    policy("[deny]\nlinear = []\n")
    assert chosen(runtime, "decode")[0] == "fast"


def test_a_choice_that_does_not_fit_is_refused_also_beside_denials(runtime: Runtime, policy: Write) -> None:
    runtime.register("cuda", "nowhere:Cuda", op="gated_delta", devices=("cuda",))
    policy('[backends]\nlinear = "cuda"\n[deny]\nlinear = ["reference"]\n')
    with pytest.raises(BackendUnfitError, match="does not run on cpu"):
        chosen(runtime, "decode")
    policy('[deny]\nlinear = ["reference"]\n')
    with pytest.raises(BackendUnfitError, match="does not run on cpu"):
        chosen(runtime, "decode", linear="cuda")


def test_a_choice_that_is_denied_is_refused_with_both_keys(runtime: Runtime, policy: Write) -> None:
    policy('[backends]\n"gated_delta.decode" = "fast"\n[deny]\nlinear = ["fast"]\n')
    with pytest.raises(BackendUnfitError, match=r"chosen for gated_delta.decode, .*: denied for linear"):
        chosen(runtime, "decode")
    policy('[deny]\nlinear = ["fast"]\n')
    with pytest.raises(BackendUnfitError, match=r"chosen for gated_delta, .*: denied for linear"):
        chosen(runtime, "decode", gated_delta="fast")


@pytest.mark.parametrize("text", ['[backends]\nkda = ["auto", "torch"]\n', '[deny]\nkda = ["auto"]\n'])
def test_auto_can_only_end_an_order(runtime: Runtime, policy: Write, text: str) -> None:
    policy('[backends]\ngated_delta = ["wide", "auto"]\n')
    assert chosen(runtime, "decode")[0] == "wide"
    policy(text)
    with pytest.raises(PreferenceError, match=r"preference kda: got .*auto stands for all other backends"):
        chosen(runtime, "decode")


def test_options_of_the_command_keep_what_the_configuration_denies(runtime: Runtime, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[backends]\nkda = ["torch"]\nlinear = "late"\n[deny]\nlinear = ["fast"]\n')
    assert read_choices(file, ["linear=auto", "gated_delta=!wide"]).backends == {
        "kda": "torch, auto",
        "linear": "auto, !fast",
        "gated_delta": "!wide",
    }


def test_a_plan_applies_the_policy_and_says_why(runtime: Runtime, policy: Write) -> None:
    policy('[backends]\ngated_delta = ["wide"]\n[deny]\ngated_delta = ["fast"]\n')
    plan = runtime.plan(Layout.from_kinds("toy", ["gated_delta"]), device="cpu", dtype="float32")
    decision = next(one for one in plan.decisions if one.phase == "decode" and one.op == "gated_delta")
    reasons = {other.name: other.reasons for other in decision.rejected}
    assert decision.chosen == "wide"
    assert reasons["fast"] == ["denied for gated_delta"] or reasons["fast"] == ("denied for gated_delta",)
    assert "wide comes first in the order" in reasons["late"][0]


def test_a_programs_choices_take_precedence(runtime: Runtime, policy: Write) -> None:
    policy('[backends]\ngated_delta = ["wide"]\n')
    assert chosen(runtime, "decode", gated_delta="fast")[0] == "fast"
    assert chosen(runtime, "decode", linear="fast")[0] == "fast"
    runtime_decode = runtime.resolve(
        "gated_delta", "decode", device="cpu", dtype="float32", preferences={"linear.decode": "fast"}
    )
    runtime_prefill = runtime.resolve(
        "gated_delta", "prefill", device="cpu", dtype="float32", preferences={"linear.decode": "fast"}
    )
    assert (runtime_decode.chosen, runtime_prefill.chosen) == ("fast", "wide")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[backend]\n", "valid: \\[backends\\], \\[deny\\]"),
        ("[deny]\nkda = 'torch'\n", "deny.kda; valid: a list of names"),
        ("[backends]\nkda = ['a,b']\n", "backends.kda"),
        ("[backends]\nkda.decode = 'torch'\n", "quotes around a key"),
        ("backends = 3\n", "valid: a table"),
        ("[config.gated_delta]\nfast = 3\n", "config.gated_delta.fast; valid: a table"),
        ("[[", "can't be read"),
    ],
)
def test_an_invalid_file_is_an_error_that_names_it(
    runtime: Runtime, policy: Write, text: str, words: str
) -> None:
    file = policy(text)
    with pytest.raises(ConfigError, match=words) as caught:
        chosen(runtime, "decode")
    assert "SWITCHRAIL_POLICY" in caught.value.message
    assert str(file) in caught.value.message
    assert "SWITCHRAIL_POLICY" in {finding.subject for finding in check_environment(runtime)}


def test_a_name_that_nobody_registered(runtime: Runtime, policy: Write) -> None:
    policy('[deny]\ngated_delta = ["fats"]\n')
    with pytest.raises(UnknownBackendError, match="fats") as caught:
        chosen(runtime, "decode")
    assert caught.value.nearest[0] == "fast"


@dataclass
class Sizes:
    """The configuration of the backend `sized`."""

    rows: int = 1


class Sized(TorchGatedDelta):
    """A backend with a configuration."""

    def __init__(self, config: Sizes) -> None:
        super().__init__()
        self.rows = config.rows


def planned(runtime: Runtime) -> dict[str, object]:
    """The configuration of the backend `sized` in a new plan."""
    layout = Layout.from_kinds("small", ["gated_delta"])
    plan = runtime.plan(layout, device="cpu", dtype="float32", preferences={"linear": "sized"})
    (found,) = (backend.effective_config for backend in plan.backends if backend.name == "sized")
    return found


def test_the_policy_configures_backends(runtime: Runtime, policy: Write) -> None:
    runtime.register("sized", "nowhere:Sized", op="gated_delta", config=Sizes)
    policy("[config.gated_delta.sized]\nrows = 8\n")
    assert planned(runtime) == {"rows": 8}
    runtime.configure("gated_delta", "sized", rows=4)
    assert planned(runtime) == {"rows": 4}


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("[config.gated_delta.sized]\nrow = 8\n", ConfigError, "SWITCHRAIL_POLICY is .*row"),
        ("[config.gated_delta.fast]\nrows = 8\n", ConfigError, "takes no configuration"),
        (
            "[config.gated_delta.size]\nrows = 8\n",
            UnknownBackendError,
            r"SWITCHRAIL_POLICY is .*nearest: .*sized.*table \[config.gated_delta.size\]",
        ),
        (
            "[config.gated_dleta.sized]\nrows = 8\n",
            UnknownOpError,
            r"SWITCHRAIL_POLICY is .*nearest: .*gated_delta.*table \[config.gated_dleta.sized\]",
        ),
    ],
)
def test_an_invalid_configuration(
    runtime: Runtime, policy: Write, text: str, error: type[Exception], words: str
) -> None:
    runtime.register("sized", "nowhere:Sized", op="gated_delta", config=Sizes)
    policy(text)
    with pytest.raises(error, match=words):
        planned(runtime)


def test_all_mistakes_are_found_and_the_rest_is_applied(runtime: Runtime, policy: Write) -> None:
    runtime.register("sized", "nowhere:Sized", op="gated_delta", config=Sizes)
    policy("[config.gated_delta]\nnobodys = {}\nsized.rows = 8\nfast.rows = 8\n")
    with pytest.raises(UnknownBackendError, match="nobodys"):
        planned(runtime)
    assert [type(error) for error in runtime.apply_policy()] == [UnknownBackendError, ConfigError]
    assert [finding.subject for finding in check_policy(runtime)] == ["SWITCHRAIL_POLICY"] * 2
    runtime.skips_policy_errors = True
    assert planned(runtime) == {"rows": 8}


def test_explain_works_beside_a_configuration_of_an_unknown_backend(policy: Write) -> None:
    policy("[config.gated_delta.nobodys]\nrows = 8\n")
    checkpoint = Path(__file__).parents[1] / "checkpoints/kjv-qwen3-next"
    with isolated():
        result = CliRunner().invoke(app, ["explain", str(checkpoint), "--json", "--device", "cpu"])
    assert (result.exit_code, bool(json.loads(result.stdout)["routes"])) == (0, True)
    assert "no gated_delta backend 'nobodys'" in result.stderr
    with isolated():
        assert CliRunner().invoke(app, ["plan", str(checkpoint), "--device", "cpu"]).exit_code == 2


@pytest.mark.parametrize("work", ["plan", "resolve"])
def test_the_file_is_read_once(
    runtime: Runtime, policy: Write, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    read: list[Path] = []
    policy('[backends]\ngated_delta = ["wide"]\n')
    original = switchrail.policy.read_tables

    def reading(file: Path) -> dict[str, object]:
        read.append(file)
        return original(file)

    monkeypatch.setattr(switchrail.policy, "read_tables", reading)
    if work == "plan":
        runtime.plan(Layout.from_kinds("toy", ["gated_delta"]), device="cpu", dtype="float32")
    else:
        chosen(runtime, "decode")
    assert len(read) == 1


def test_a_backend_built_alone_is_configured(runtime: Runtime, policy: Write) -> None:
    """The policy file configures a backend that is built alone, even if it is wrong about other backends."""
    runtime.register("sized", Sized, op="gated_delta", config=Sizes)
    policy("[config.gated_delta.sized]\nrows = 8\n[config.gated_delta.fast]\nrows = 8\n")
    built = runtime.build("gated_delta", "sized")
    assert isinstance(built, Sized)
    assert built.rows == 8
    with pytest.raises(ConfigError, match=r"SWITCHRAIL_POLICY is .*takes no configuration"):
        runtime.build("gated_delta", "fast")


def test_a_plugin_plans_while_it_is_loaded(policy: Write, install: Callable[..., Path]) -> None:
    """If a plugin makes a plan while it is loaded, the policy's configurations don't become the plugin's."""
    install(
        "acme_plans",
        """
import switchrail
from switchrail import Layout

def register(registry):
    layout = Layout.from_kinds("small", ["gated_delta"])
    switchrail.current_runtime().plan(layout, device="cpu", dtype="float32")
""",
    )
    policy("[config.gated_delta.sized]\nrows = 8\n")
    with isolated() as runtime:
        runtime.register("sized", "nowhere:Sized", op="gated_delta", config=Sizes)
        runtime.load(["acme_plans"], strict=True)
        assert runtime.backend("gated_delta", "sized").effective_config == {"rows": 8}
