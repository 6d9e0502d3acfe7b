"""`new-plugin` writes a distribution that installs, passes its own tests, and serves the engine.

It refuses wrong names and folders.
"""

import os
import subprocess
import sys

import pytest
from switchrail import Engine, SamplingParams
from switchrail._core import OPS
from switchrail.cli.new_plugin import write_plugin
from switchrail.errors import NewPluginError, UnknownOpError
from switchrail.testing import isolated
from switchrail.testing.conformance import select_named

RUN = ["attention", "gated_delta", "short_conv"]
"""The ops of the checkpoint."""
WITH_PLATFORM, WITH_HOOK = ["attention", "gated_delta", "mla"], ["gated_delta", "kda", "mla"]

BUILD = """
import os, sys
from setuptools.build_meta import build_wheel
wheels, *sources = sys.argv[1:]
for source in sources:
    os.chdir(source)
    build_wheel(wheels)
"""
"""Builds wheels in one process. Pip starts three for each source, so it builds only one plugin."""


def name_of(op):
    return f"made-{op.replace('_', '-')}"


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with a plugin for each op, and the folder in which they are installed."""
    folder = tmp_path_factory.mktemp("made")
    for op in OPS:
        files = write_plugin(
            folder / name_of(op), name_of(op), op=op, platform=op in WITH_PLATFORM, hook=op in WITH_HOOK
        )
        assert len(files) == 5 + (op in WITH_PLATFORM) + (op in WITH_HOOK)
        assert all(
            file.read_text("utf-8").endswith("\n") and "$" not in file.read_text("utf-8") for file in files
        )
    site, wheels = folder / "site", folder / "wheels"
    first, *others = (folder / name_of(op) for op in OPS)
    wheels.mkdir()
    subprocess.run([sys.executable, "-c", BUILD, wheels, *others], check=True)
    built = list(wheels.glob("*.whl"))
    assert len(built) == len(others)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "--target", site, first, *built], check=True)
    return folder, site


@pytest.fixture
def runtime(made, monkeypatch):
    monkeypatch.syspath_prepend(made[1])
    with isolated() as runtime:
        runtime.load([name_of(op) for op in OPS], strict=True)
        yield runtime
    for name in [name for name in sys.modules if name.startswith("made_")]:
        del sys.modules[name]


def test_their_own_tests(processes, made):
    """The tests of the written plugins pass. Of the conformance suite, only `ragged` and `refusals` run here.

    `tests/conformance/test_torch.py` runs all cases on the classes from which these backends inherit.
    `test_they_claim_no_more_than_they_inherit` compares the cases.
    """
    folder, site = made
    program = "import pytest; raise SystemExit(pytest.console_main())"
    command = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-rA"]
    command += ["-k", "not test_it_keeps_the_contract or ragged or refusals"]
    tests = [folder / name_of(op) / "tests" for op in OPS]
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = processes.run(program, [*command, *tests], cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout
    passed = [line.rpartition("::")[2] for line in done.stdout.splitlines() if line.startswith("PASSED")]
    assert passed.count("test_it_serves") == passed.count("test_it_registers_its_backend") == len(OPS)
    assert passed.count("test_its_platform") == len(WITH_PLATFORM)
    assert passed.count("test_its_hook_runs") == len(WITH_HOOK)
    for op in OPS:
        for phase in ("prefill", "decode"):
            assert f"test_it_keeps_the_contract[{op}/{phase}/float32/ragged]" in passed
            assert f"test_it_keeps_the_contract[{op}/{phase}/float32/refusals]" in passed


@pytest.mark.parametrize("op", OPS)
def test_they_claim_no_more_than_they_inherit(runtime, op):
    cases = []
    for name in (name_of(op), "torch"):
        platform = runtime.find_platform("cpu")
        found = select_named(runtime, name, platform=platform, op=op, quick=True).cases
        cases.append({case.id for case in found})
    assert len(cases[0]) > 50
    assert cases[0] <= cases[1]


def speak(runtime, checkpoint, **options):
    with Engine(checkpoint, runtime=runtime, **options) as engine:
        outputs = engine.generate(["In the beginning", "And"], SamplingParams(max_new_tokens=6))
    names = {(op, name) for _, op, _, name in engine.plan.table}
    return [output.tokens for output in outputs], names


def test_the_engine_with_them(runtime, checkpoint):
    plain, _ = speak(runtime, checkpoint, device="cpu", backends=dict.fromkeys(RUN, "torch"))
    tokens, names = speak(runtime, checkpoint, device="cpu", backends={op: name_of(op) for op in RUN})
    assert tokens == plain
    assert names == {(op, name_of(op)) for op in RUN}


@pytest.mark.parametrize("op", WITH_PLATFORM)
def test_the_engine_on_their_platform(runtime, checkpoint, monkeypatch, op):
    monkeypatch.setenv(f"MADE_{op.upper()}_DEVICE", "1")
    runtime.use_platform(name_of(op))
    _, names = speak(runtime, checkpoint)
    assert runtime.platform.kind == f"oot:made_{op}"
    assert names == {(each, name_of(op)) for each in RUN}


def test_the_command(switchrail, tmp_path):
    done = switchrail("new-plugin", "acme-Kernels", "--directory", tmp_path / "new", "--hook", "--platform")
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "new" / "acme_kernels" / "backend.py") in done.output.splitlines()
    project = (tmp_path / "new" / "pyproject.toml").read_text("utf-8")
    assert 'name = "acme-Kernels"' in project
    assert '"switchrail.plugins"]\n"acme-Kernels" = "acme_kernels:register"\n' in project
    assert '"switchrail.platforms"]\n"acme-Kernels" = "acme_kernels:activate"\n' in project


def test_the_default_folder_has_the_plugins_name(switchrail, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert switchrail("new-plugin", "acme", "--op", "kda").exit_code == 0
    assert (tmp_path / "acme" / "acme" / "backend.py").read_text("utf-8").count("TorchKda") == 2
    again = switchrail("new-plugin", "acme", "--op", "kda")
    assert again.exit_code == 2
    assert "acme already exists; valid: a new or empty folder" in again.stderr


def test_an_empty_folder_is_accepted_and_a_file_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    assert write_plugin(tmp_path / "empty", "acme", op="kda")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NewPluginError, match="already exists"):
        write_plugin(tmp_path / "file", "acme", op="kda")
    with pytest.raises(NewPluginError, match="can't be written"):
        write_plugin(tmp_path / "file" / "below", "acme", op="kda")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "not a valid distribution name"),
        ("-acme", "not a valid distribution name"),
        ("acme/../..", "not a valid distribution name"),
        ("acme gdn", "not a valid distribution name"),
        ("9lives", "'9lives', which Python can't import"),
        ("class", "'class', which Python can't import"),
        ("json", "a module 'json' already exists"),
        ("switchrail", "a module 'switchrail' already exists"),
        ("pytest", "a module 'pytest' already exists"),
        ("reference", "gated_delta already has backends"),
        ("auto", "gated_delta already has backends"),
    ],
)
def test_names_that_are_refused(tmp_path, name, problem):
    with pytest.raises(NewPluginError, match="valid: ") as caught:
        write_plugin(tmp_path / "new", name, op="gated_delta")
    assert problem in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert not (tmp_path / "new").exists()


def test_an_unknown_op(switchrail, tmp_path):
    with pytest.raises(UnknownOpError, match="gated_delta"):
        write_plugin(tmp_path / "new", "acme", op="gated_detla")
    assert not (tmp_path / "new").exists()
