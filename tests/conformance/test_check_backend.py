"""The conformance suite as vendors use it: on the command line, and in two lines of a test file."""

import json
import sys

import pytest
from switchrail.cli.app import app
from switchrail.errors import UnknownBackendError, UnknownDtypeError, UnknownPhaseError
from switchrail.ops.short_conv.torch import TorchShortConv
from switchrail.testing import backend_test, isolated
from switchrail.testing.conformance import Subject, select
from switchrail.testing.conformance.cases import select_named
from typer.testing import CliRunner

from tests.distributions import write_distribution

VENDOR = """
import torch
from dataclasses import dataclass
from switchrail.ops.gated_delta.torch import TorchGatedDelta

@dataclass(frozen=True)
class Config:
    scale: float = 1.0

class Boreal(TorchGatedDelta):
    def run(self, call, batch, plan):
        super().run(call, batch, plan)
        call.out.mul_(self.config.scale)

class Broken(TorchGatedDelta):
    def run(self, call, batch, plan):
        raise OSError("no such device")

class InTorch(TorchGatedDelta):
    def run(self, call, batch, plan):
        torch.einsum("ab,bc->ac", call.q)

class Short(TorchGatedDelta):
    def run(self, call, batch):
        pass

class Unbuilt(TorchGatedDelta):
    def __init__(self, config=None):
        raise OSError("no such device")

class Escape(Exception):
    def __repr__(self):
        return "\\x1b[2J"

class Loud(TorchGatedDelta):
    def run(self, call, batch, plan):
        raise Escape

class Unnamed(Exception):
    def __str__(self):
        return self.name

class Mute(TorchGatedDelta):
    def run(self, call, batch, plan):
        raise Unnamed

class Unshown(Unnamed):
    def __repr__(self):
        return self.name

class Muter(TorchGatedDelta):
    def run(self, call, batch, plan):
        raise Unshown

class UnbuiltMuter(TorchGatedDelta):
    def __init__(self, config=None):
        raise Unshown

def register(registry):
    claims = {"op": "gated_delta", "phases": ("prefill",), "dtypes": ("float32",), "state_layouts": ("VK",)}
    registry.register("boreal", Boreal, config=Config, head_sizes=(24, (32, 48)), **claims)
    registry.register("broken", Broken, **claims)
    registry.register("intorch", InTorch, **claims)
    registry.register("loud", Loud, **claims)
    registry.register("mute", Mute, **claims)
    registry.register("muter", Muter, **claims)
    registry.register("unbuilt_muter", UnbuiltMuter, **claims)
    registry.register("short", "boreal_gdn:Short", **claims)
    registry.register("unbuilt", Unbuilt, **claims)
    registry.register("nowhere", "boreal_nowhere:Boreal", **claims)
    registry.register("cuda", Broken, devices=("cuda",), **claims)
    registry.register("turned", Broken, **{**claims, "state_layouts": ("KV",)})
"""


@pytest.fixture
def vendor(tmp_path, monkeypatch):
    write_distribution(tmp_path, "boreal-gdn", VENDOR, plugin="boreal")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("boreal_gdn", None)


@pytest.fixture
def check(vendor):
    def run(*arguments):
        with isolated():
            return CliRunner().invoke(app, ["check-backend", *arguments, "--device", "cpu"])

    return run


def test_a_good_backend(check):
    done = check("boreal", "--quick")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    rows = [line.split() for line in lines if line.startswith("gated_delta")]
    (op, phase, held, of, count, *error, where), *others = rows
    assert (op, phase, held, of, others) == ("gated_delta", "prefill", count, "of", [])
    assert error[1] == error[4] == "/"
    assert where.startswith("float32/")
    assert lines[-1].startswith(f"{count} cases: {count} passed; ")
    assert lines[-1].endswith(" s")
    assert "left out: gated_delta/decode, gated_delta/verify: it does not serve the phase" in lines


def test_a_line_for_each_case(check):
    done = check("boreal", "--quick", "-v")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    ragged = next(line.split() for line in lines if line.startswith("gated_delta  ragged"))
    assert ragged[2:5] == ["1", "of", "1"]
    assert lines[-1].endswith(" s")
    assert " passed; " in lines[-1]
    assert "head-size-32-48" in done.output
    assert "left out: gated_delta/decode, gated_delta/verify: it does not serve the phase" in lines


def test_a_bad_backend(check, vendor):
    (vendor / "config.toml").write_text("[config.gated_delta.boreal]\nscale = 1.01\n")
    done = check("boreal", "--quick", "--json", "--config", str(vendor / "config.toml"))
    assert done.exit_code == 1
    document = json.loads(done.output)
    assert list(document) == ["backend", "platform", "packages", "quick", "cases", "left_out"]
    cases = {case["id"].rsplit("/", 1)[1]: case for case in document["cases"]}
    assert cases["ragged"]["status"] == "failed"
    assert cases["ragged"]["message"].startswith("gated_delta: out is off by 1.00e-02")
    assert {cases[name]["status"] for name in ("none", "again", "neighbours", "guards")} == {"passed"}


def test_a_backend_that_raises(check):
    done = check("broken", "-k", "prefill/float32/ragged")
    assert done.exit_code == 1
    assert "failed: gated_delta/prefill/float32/ragged: it raised OSError('no such device')" in done.output
    assert done.output.splitlines()[-1].startswith("1 case: 1 failed; ")
    assert done.output.splitlines()[-3:-1] == [
        "1 failure, by cause:",
        "  1: it raised OSError (gated_delta/prefill/float32/ragged)",
    ]


def test_where_a_backend_raises(check, vendor):
    """The message names the backend's line, not the line in torch that raised. The traceback has both."""
    file = vendor / "boreal_gdn.py"
    number = 1 + next(n for n, line in enumerate(file.read_text().splitlines()) if "torch.einsum" in line)
    done = check("intorch", "-k", "prefill/float32/ragged", "--json")
    (case,) = json.loads(done.output)["cases"]
    assert case["message"].endswith(f" ({file}:{number})")
    assert f'File "{file}", line {number}, in run' in case["traceback"]
    assert "functional.py" in case["traceback"]
    told = check("intorch", "-k", "prefill/float32", "--quick").output
    assert "Traceback" not in told
    verbose = check("intorch", "-k", "prefill/float32", "--quick", "-v").output
    assert f'File "{file}", line {number}, in run' in verbose.replace("\n", "").replace("  ", " ")


def test_control_characters_in_an_exception_are_escaped(check):
    done = check("loud", "-k", "prefill/float32/ragged")
    assert "it raised \\x1b[2J" in done.output
    assert "\x1b" not in done.output


@pytest.mark.parametrize(
    ("name", "shown"),
    [("mute", "Unnamed()"), ("muter", "a Unshown, whose repr raised AttributeError")],
)
def test_an_exception_whose_message_fails_is_a_failure(check, name, shown):
    done = check(name, "-k", "prefill/float32/ragged")
    output = " ".join(done.output.split())
    assert f"failed: gated_delta/prefill/float32/ragged: it raised {shown}" in output
    assert done.output.splitlines()[-1].startswith("1 case: 1 failed; ")


def test_one_summary_over_all_failures(check, vendor):
    (vendor / "config.toml").write_text("[config.gated_delta.boreal]\nscale = 4.0\n")
    done = check("boreal", "-k", "a", "--quick", "--config", str(vendor / "config.toml"))
    lines = done.output.splitlines()
    first = next(n for n, line in enumerate(lines) if line.endswith(" failures, by cause:"))
    summary = "\n".join(lines[first:])
    assert "  all: got / expected is constant, so a factor is wrong (" in summary
    assert lines[first - 1].startswith("  got / expected is constant, so a factor is wrong: 4")
    assert "first wrong: out at sequence 0, row 0, head 0, column 0: got " in done.output
    again = check("boreal", "-k", "/ragged", "--json", "--config", str(vendor / "config.toml"))
    (case,) = json.loads(again.output)["cases"]
    assert case["causes"] == ["got / expected is constant, so a factor is wrong"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["boreel"], "there is no backend 'boreel'; nearest: boreal; valid: "),
        (["boreal", "--op", "kda"], "there is no kda backend 'boreal'"),
        (["boreal", "--op", "kad"], "kda"),
        (["boreal", "--phase", "decoding"], "unknown phase 'decoding'; nearest: decode"),
        (["boreal", "--phase", "decode"], "gated_delta/decode: it does not serve the phase"),
        (["boreal", "--dtype", "float31"], "unknown dtype 'float31'; nearest: float"),
        (["boreal", "-k", "nothing"], "cases for backend 'boreal' has 'nothing' in its id"),
        (["cuda"], "does not run on cpu, only on cuda"),
        (["turned"], "state layout"),
        (["boreal", "--dtype", "bfloat16"], "gated_delta/prefill/bfloat16: it does not claim bfloat16, only"),
        (["nowhere"], "gated_delta backend 'nowhere' can't be imported from 'boreal_nowhere:Boreal': "),
        (["unbuilt"], "gated_delta backend 'unbuilt' can't be built: OSError('no such device') ("),
        (["unbuilt_muter"], "can't be built: a Unshown, whose repr raised AttributeError ("),
        (
            ["short"],
            "gated_delta backend 'short' ('boreal_gdn:Short') can't be used: Short.run has parameters (call, "
            "batch): it lacks plan; expected (call, batch, plan)",
        ),
    ],
)
def test_choices_without_a_case_are_errors(check, arguments, message):
    done = check(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


def test_in_a_test_file_of_two_lines(processes, vendor):
    (vendor / "test_it.py").write_text(
        "from switchrail.testing import backend_test\n"
        "test_boreal = backend_test('boreal', device='cpu', quick=True)\n"
        "test_broken = backend_test('broken', device='cpu', quick=True)\n"
    )
    program = "import pytest; raise SystemExit(pytest.console_main())"
    command = ["-q", "-rs", "-p", "no:cacheprovider", "test_it.py"]
    chosen = ["-k", "test_boreal or guards"]
    environment = {"PYTHONPATH": str(vendor), "OMP_NUM_THREADS": "1", "PATH": ""}
    done = processes.run(program, [*command, *chosen], cwd=vendor, env=environment)
    assert done.returncode == 1, done.stderr
    assert "it does not serve the phase" in done.stdout
    assert "OSError: no such device" in done.stdout
    assert "1 failed" in done.stdout.splitlines()[-1]
    assert "  1: it raised OSError (gated_delta/prefill/float32/guards)\n" in done.stdout
    workers = ["-n", "1", "-p", "switchrail.testing.pytest_summary"]
    chosen = ["-k", "test_broken and guards"]
    done = processes.run(program, [*command, *chosen, *workers], cwd=vendor, env=environment)
    assert "  1: it raised OSError (gated_delta/prefill/float32/guards)\n" in done.stdout


def test_backend_test_refuses_unknown_names(vendor):
    with isolated() as runtime:
        runtime.load()
        with pytest.raises(UnknownBackendError, match="nearest: boreal"):
            backend_test("boreel", runtime=runtime, device="cpu")
        with pytest.raises(UnknownPhaseError):
            backend_test("boreal", runtime=runtime, device="cpu", phase="prefil")
        with pytest.raises(UnknownDtypeError):
            backend_test("boreal", runtime=runtime, device="cpu", dtype="f32")


def test_the_same_cases_every_time(vendor):
    with isolated() as runtime:
        runtime.load()
        subject = Subject.of(runtime, "gated_delta", "boreal", runtime.find_platform("cpu"))
        first, second = (select(subject, quick=quick) for quick in (True, True))
        whole = select(subject)
    ids = [case.id for case in first.cases]
    assert ids == [case.id for case in second.cases]
    assert len(set(ids)) == len(ids) > 40
    assert set(ids) < {case.id for case in whole.cases}
    assert {left.id for left in first.left_out} >= {"gated_delta/decode", "gated_delta/verify"}


def test_each_phase_is_that_of_its_registration():
    """A backend that overrides one phase of a name leaves the other phases to the overridden backend."""

    class Mine(TorchShortConv):
        pass

    with isolated() as runtime:
        runtime.register("torch", Mine, op="short_conv", phases=("prefill",), override=True)
        chosen = {"platform": runtime.find_platform("cpu"), "op": "short_conv", "dtype": "float32"}
        selection = select_named(runtime, "torch", **chosen, quick=True)
        one = select_named(runtime, "torch", **chosen, phase="decode", quick=True)
    kinds = {(case.setting.phase, type(case.setting.backend).__name__) for case in selection.cases}
    assert kinds == {("prefill", "Mine"), ("decode", "TorchShortConv"), ("verify", "TorchShortConv")}
    ids = [case.id for case in selection.cases]
    assert len(set(ids)) == len(ids)
    assert {(case.setting.phase, type(case.setting.backend)) for case in one.cases} == {
        ("decode", TorchShortConv)
    }
