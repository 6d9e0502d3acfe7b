"""The example platform of `tests/plugins/acme-platform`, installed by pip, runs the small checkpoint."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import switchrail
from switchrail import Engine, RuntimeState, SamplingParams
from switchrail.cli.app import app
from switchrail.errors import BackendUnfitError, NoBackendError, PlatformError, UnknownBackendError
from switchrail.platforms import detect
from switchrail.testing import isolated
from typer.testing import CliRunner

from tests.processes import Helper

from .conftest import CHECKPOINT

SOURCE = Path(__file__).parents[1] / "plugins" / "acme-platform"
PROMPTS = ["In the beginning", "And the LORD said unto Moses", "The"]
PARAMS = SamplingParams(max_new_tokens=24)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example distribution installed by pip."""
    work = tmp_path_factory.mktemp("acme")
    shutil.copytree(SOURCE, work / "source")  # building leaves files behind
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", work / "site", work / "source"], check=True
    )
    return work / "site"


@pytest.fixture
def acme(
    site: Path, runtime: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch
) -> Iterator[switchrail.Runtime]:
    """A runtime with the distribution installed and loaded."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("ACME_DEVICE", "cpu")
    runtime.load()
    yield runtime
    for name in [name for name in sys.modules if name.split(".")[0] == "acme_platform"]:
        del sys.modules[name]


def generate(engine: Engine) -> list[tuple[int, ...]]:
    outputs = engine.generate(PROMPTS, PARAMS)
    assert [output.finish_reason for output in outputs] == ["length"] * len(PROMPTS)
    return [output.tokens for output in outputs]


def check_engine(runtime: switchrail.Runtime, expected: list[tuple[int, ...]], **arguments: Any) -> None:
    """Check the tokens on Acme's platform, and that its backends, pools and operations were used."""
    import acme_platform.operations as operations
    from acme_platform import memory

    before = operations.calls
    with Engine(CHECKPOINT, runtime=runtime, **arguments) as engine:
        assert engine.platform is runtime.platform
        assert engine.platform.kind == "oot:acme"
        assert {backend for *_, backend in engine.plan.table} == {"acme_ops"}
        assert engine.options.page_size == 32
        pools = engine.pools
        assert type(pools.kv["mha"]) is memory.AcmeKVPool
        assert type(pools.state) is memory.AcmeStatePool
        assert type(pools.pages) is memory.AcmeAllocator
        assert all(
            tensor.untyped_storage().nbytes() > tensor.nbytes and tensor.data_ptr() % memory.ALIGNMENT == 0
            for tensor in pools.tensors()
        )
        assert generate(engine) == expected
        rows = engine.stats.prefill_tokens + engine.stats.decode_tokens
        layers = sum("attention" in layer.ops for layer in engine.plan.layout.layers)
        assert pools.kv["mha"].written == rows * layers
        norms = sum(type(part).__name__ == "Qwen3NextRMSNorm" for part in engine._runner.model.modules())
        assert operations.calls - before == norms * engine.stats.steps


def test_the_same_tokens_as_on_the_cpu(acme: switchrail.Runtime) -> None:
    with Engine(CHECKPOINT, runtime=acme, device="cpu") as engine:
        assert engine.platform.is_cpu()
        expected = generate(engine)
    check_engine(acme, expected)


@pytest.mark.gpu
def test_the_same_tokens_as_on_cuda(acme: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_DEVICE", "cuda")
    choices = dict.fromkeys(("attention", "gated_delta", "short_conv"), "torch")
    # float32 and one page size, so that no tie of two tokens is decided differently
    sizes = {"dtype": "float32", "options": {"page_size": 32}}
    with Engine(CHECKPOINT, runtime=acme, device="cuda", backends=choices, **sizes) as engine:
        assert engine.platform.is_cuda()
        expected = generate(engine)
    check_engine(acme, expected, dtype="float32")
    assert acme.platform.device.startswith("cuda:")


@pytest.mark.gpu
def test_each_of_its_devices_has_a_number(acme: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_DEVICE", "cuda")
    assert acme.find_platform("acme:0").device == "cuda:0"


def test_a_device_without_a_number_is_the_first(acme: switchrail.Runtime) -> None:
    assert acme.find_platform("acme:0") is acme.platform
    with pytest.raises(PlatformError, match=r"no device 'acme:1' here; valid: acme:0$"):
        acme.find_platform("acme:1")


def test_its_identity(acme: switchrail.Runtime) -> None:
    identity = switchrail.current_platform.identity
    assert (identity.kind, identity.device) == ("oot:acme", "cpu")
    assert identity.name.startswith("Acme A1 (")
    assert str(identity.capability) == "4.2"
    assert identity.total_memory == detect("cpu").identity.total_memory


def test_without_its_device_it_declines(acme: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACME_DEVICE")
    assert not acme.platform.is_out_of_tree()
    with pytest.raises(PlatformError, match="'acme' of acme-platform declines"):
        acme.use_platform("acme")


def test_a_default_backend_that_cannot_serve_is_an_error(acme: switchrail.Runtime) -> None:
    """A platform's default backend that can't serve raises an error; no other backend is chosen silently."""
    acme.register(
        "acme_ops", "nowhere:X", op="gated_delta", devices=["oot:acme"], dtypes=["float64"], override=True
    )
    with pytest.raises(
        BackendUnfitError,
        match=r"(?s)float64.*gated_delta.prefill=acme_ops is a default of platform oot:acme, and not",
    ) as caught:
        Engine(CHECKPOINT, runtime=acme)
    assert (caught.value.key, caught.value.platform) == ("gated_delta.prefill", "oot:acme")
    acme.clear("gated_delta", "acme_ops")
    acme.clear("gated_delta", "acme_ops")
    with pytest.raises(UnknownBackendError, match="is a default of platform oot:acme"):
        Engine(CHECKPOINT, runtime=acme)
    with pytest.raises(BackendUnfitError, match="does not run on oot:acme") as own:
        Engine(CHECKPOINT, runtime=acme, backends={"linear": "torch"})
    assert "not your choice" not in str(own.value)


@pytest.mark.parametrize("key", ["linear", "linear.decode", "gated_delta", "gated_delta.decode"])
def test_the_users_choice_comes_first(key: str, acme: switchrail.Runtime) -> None:
    path = "switchrail.ops.gated_delta.torch:TorchGatedDelta"
    acme.register("own", path, op="gated_delta", devices=["oot:acme"])
    with Engine(CHECKPOINT, runtime=acme, backends={key: "own"}) as engine:
        found = {(op, phase): backend for _, op, phase, backend in engine.plan.table}
        because = {(decision.op, decision.phase): decision.because for decision in engine.plan.decisions}
    prefill = "acme_ops" if key.endswith(".decode") else "own"
    assert found["gated_delta", "decode"] == "own"
    assert found["gated_delta", "prefill"] == prefill
    assert because["gated_delta", "decode"] == f"chosen for {key}"
    for op in ("attention", "short_conv"):
        assert found[op, "decode"] == "acme_ops"
        assert because[op, "decode"] == f"chosen for {op}.decode"


def test_without_the_backends_of_the_family_nothing_serves_it(acme: switchrail.Runtime) -> None:
    bare = switchrail.Runtime()
    with pytest.raises(NoBackendError, match="does not run on oot:acme"):
        Engine(
            CHECKPOINT,
            runtime=bare,
            device=acme.platform,
            backends=dict.fromkeys(("attention", "gated_delta", "short_conv"), "auto"),
        )


@pytest.mark.parametrize("asked", ["acme", "instance"])
def test_a_restored_process_has_the_same_platform(
    asked: str, acme: switchrail.Runtime, site: Path, processes: Helper, tmp_path: Path
) -> None:
    acme.use_platform(acme.platform if asked == "instance" else asked)
    program = (
        "import os, pickle, sys\n"
        f"sys.path.insert(0, {str(site)!r})\n"
        "platform = pickle.load(open(sys.argv[1], 'rb')).restore().platform\n"
        "print(platform.kind, platform.device)"
    )
    state = tmp_path / "state"
    state.write_bytes(pickle.dumps(RuntimeState.of(acme)))
    done = processes.run(program, [state])
    assert done.stdout.split() == ["oot:acme", "cpu"], done.stderr


def run() -> Any:
    command = ["run", str(CHECKPOINT), "--prompt", PROMPTS[0], "--max-new-tokens", "6", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_denial_keeps_the_platforms_defaults_unless_it_denies_them(
    acme: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.toml"
    monkeypatch.setenv("SWITCHRAIL_POLICY", str(policy))
    policy.write_text('[deny]\nlinear = ["reference"]\n')
    plan = Engine(CHECKPOINT, runtime=acme).plan
    assert {decision.because for decision in plan.decisions if decision.op == "gated_delta"} == {
        "chosen for gated_delta.prefill",
        "chosen for gated_delta.decode",
    }
    policy.write_text('[deny]\nlinear = ["acme_ops"]\n')
    with pytest.raises(NoBackendError, match="acme_ops: denied for linear"):
        Engine(CHECKPOINT, runtime=acme)


def test_on_the_command_line(
    acme: switchrail.Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "switchrail")
    document = run()
    assert document["platform"]["kind"] == "oot:acme"
    assert document["platform"]["capability"] == [4, 2]
    assert {route["backend"] for route in document["routes"]} == {"acme_ops"}
    defaults = [text for text in caplog.messages if text.startswith("defaults of platform oot:acme: ")]
    assert "gated_delta.decode=acme_ops" in defaults[0]
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", "cpu")
    with isolated() as other:
        found = run()
        states = {plugin.name: (plugin.state, plugin.reason) for plugin in other.plugins}
    assert found["platform"]["kind"] == "cpu"
    assert found["outputs"] == document["outputs"]
    reason = 'acme-platform provides the platform "acme", but "cpu" is in use'
    assert states["acme_ops"] == ("blocked", reason)
