"""An installed vendor plugin serves a model's layers, while two plugins of another vendor are installed."""

import json
import re
from pathlib import Path

import pytest
from switchrail import Engine, SamplingParams
from switchrail.cli.app import app
from switchrail.errors import (
    ArgumentError,
    CheckpointError,
    ConfigError,
    RegistrationError,
    UnknownBackendError,
)
from switchrail.testing import isolated
from typer.testing import CliRunner

from tests.families.made import make

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "kjv-qwen3-next"
PROMPT = "And the LORD said unto"
NEW_TOKENS = 8
DISTRIBUTIONS = {"acme": "acme-gdn", "castor": "twin-gdn", "pollux": "twin-gdn"}


@pytest.fixture
def runtime():
    with isolated() as runtime:
        runtime.load()
        yield runtime


@pytest.fixture
def speak(runtime):
    """Run the prompt with chosen backends. Return the tokens, and the engine, which is closed."""

    def speak(**backends):
        with Engine(CHECKPOINT, runtime=runtime, device="cpu", backends=backends) as engine:
            output = engine.generate([PROMPT], SamplingParams(max_new_tokens=NEW_TOKENS))[0]
        assert len(output.tokens) == NEW_TOKENS
        return output.tokens, engine

    return speak


def linear_layers(engine):
    return [layer.id for layer in engine.plan.layout.layers if "gated_delta" in layer.ops]


def test_found_through_their_entry_points(installed, runtime):
    found = {plugin.name: plugin for plugin in runtime.plugins if plugin.name in DISTRIBUTIONS}
    assert {name: plugin.distribution for name, plugin in found.items()} == DISTRIBUTIONS
    assert {plugin.state for plugin in found.values()} == {"loaded"}
    assert {name: runtime.backend("gated_delta", name).op for name in DISTRIBUTIONS} == dict.fromkeys(
        DISTRIBUTIONS, "gated_delta"
    )


def test_called_once_a_linear_layer_and_step(installed, speak):
    _, engine = speak(gated_delta="acme")
    layers = linear_layers(engine)
    assert 0 < len(layers) < len(engine.plan.layout.layers)
    backends = {
        engine.bound.backend("gated_delta", phase, i) for phase in ("prefill", "decode") for i in layers
    }
    assert len(backends) == 1
    assert engine.stats.steps == NEW_TOKENS
    assert backends.pop().calls == len(layers) * engine.stats.steps


def test_its_configuration_changes_the_tokens(installed, runtime, speak):
    plain, _ = speak(gated_delta="torch")
    assert speak(gated_delta="acme")[0] == plain
    # The next norm cancels a positive factor, so a negative one is used.
    runtime.configure("gated_delta", "acme", scale=-1.0)
    assert speak(gated_delta="acme")[0] != plain
    assert speak(gated_delta="torch")[0] == plain


def test_two_more_beside_it(installed, runtime, speak):
    runtime.configure("gated_delta", "castor", brightness=1.9)
    runtime.configure("gated_delta", "pollux", planet="b")
    with pytest.raises(ConfigError, match="brightness"):
        runtime.configure("gated_delta", "pollux", brightness=1.9)
    choices = {"gated_delta.prefill": "castor", "gated_delta.decode": "pollux"}
    tokens, engine = speak(**choices)
    assert tokens == speak(gated_delta="acme")[0]
    layer = linear_layers(engine)[0]
    castor, pollux = (engine.bound.backend("gated_delta", phase, layer) for phase in ("prefill", "decode"))
    assert (type(castor).__name__, castor.config.brightness) == ("Castor", 1.9)
    assert (type(pollux).__name__, pollux.config.planet) == ("Pollux", "b")


def acme_checkpoint(folder):
    """A small LFM2 checkpoint, whose config has Acme's model type."""
    folder = make("lfm2", folder / "acme")
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config |= {"model_type": "acme_hybrid", "architectures": ["AcmeHybridForCausalLM"]}
    file.write_text(json.dumps(config))
    return folder


def test_a_family_of_models(installed, runtime, tmp_path):
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    tokens = []
    for folder in (make("lfm2", tmp_path / "known"), acme_checkpoint(tmp_path)):
        with Engine(folder, runtime=runtime, device="cpu", options={"max_length": 64}) as engine:
            tokens.append(engine.generate([[1, 2, 3]], params)[0].tokens)
    assert tokens[0] == tokens[1]
    assert engine.plan.layout.model == "acme_hybrid"
    with isolated():
        explained = CliRunner().invoke(app, ["explain", str(folder), "--device", "cpu"])
    assert explained.exit_code == 0, explained.output


def test_a_family_that_nobody_brought(tmp_path):
    with isolated() as runtime, pytest.raises(CheckpointError, match="acme_hybrid"):
        Engine(acme_checkpoint(tmp_path), runtime=runtime, device="cpu")


def test_a_model_type_has_one_family(runtime):
    with runtime.transaction() as registry:
        registry.family("acme_other", "acme_gdn.model:FAMILY")
    with pytest.raises(RegistrationError, match="a family for model type 'acme_other'"):
        runtime.family("acme_other", "elsewhere:FAMILY")
    with pytest.raises(ArgumentError, match="kinds"):
        runtime.family("acme_third", "elsewhere:FAMILY", kinds=3)


def test_not_installed_and_still_chosen(runtime, speak):
    assert not DISTRIBUTIONS.keys() & {backend.name for backend in runtime.backends()}
    with pytest.raises(UnknownBackendError, match="acme") as caught:
        speak(gated_delta="acme")
    assert {"reference", "torch"} <= set(caught.value.valid)


def test_a_name_that_is_nearly_right(installed, speak):
    with pytest.raises(UnknownBackendError, match="castro") as caught:
        speak(gated_delta="castro")
    assert caught.value.nearest[0] == "castor"


def test_explained(installed):
    command = ["explain", str(CHECKPOINT), "--device", "cpu", "--layer", "0"]
    choices = ["--backend", "linear=torch", "--backend", "linear.decode=acme"]
    with isolated():
        done = CliRunner().invoke(app, [*command, *choices])
    assert done.exit_code == 0, done.output
    _, prefill, decode, *_ = done.output.split("\n\n")
    title, _, first, *_ = prefill.splitlines()
    assert title.startswith("gated_delta prefill, layers 0")
    assert re.search(r"^torch .* serves: chosen for linear *$", first)
    title, _, first, *others = decode.splitlines()
    assert title.startswith("gated_delta decode, layers 0")
    assert re.search(r"^acme .* of acme-gdn 1.2.0 +serves: chosen for linear.decode *$", first)
    castor = next(line for line in others if line.startswith("castor"))
    assert re.search(r" of twin-gdn 0.3.0 +fits, but acme was chosen for linear.decode *$", castor)


def test_in_processes_of_their_own(processes, site, tmp_path, speak):
    config = tmp_path / "routes.toml"
    config.write_text(
        """
        [backends]
        linear = "torch"
        "linear.decode" = "acme"

        [config.gated_delta.acme]
        scale = -1
        """
    )

    def run(*path):
        program = f"import sys; sys.path[:0] = {[*map(str, path)]}; from switchrail.cli import main; main()"
        command = ["run", CHECKPOINT, "--device", "cpu", "--prompt", PROMPT, "--max-new-tokens", NEW_TOKENS]
        return processes.run(program, [*command, "--config", config, "--json"])

    done = run(site)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["outputs"][0]["tokens"] != list(speak(gated_delta="torch")[0])
    gated_delta = [route for route in document["routes"] if route["op"] == "gated_delta"]
    assert {(r["phase"], r["backend"]) for r in gated_delta} == {("prefill", "torch"), ("decode", "acme")}
    found = {plugin["name"]: plugin["origin"]["distribution"] for plugin in document["plugins"]}
    assert found.items() >= DISTRIBUTIONS.items()

    gone = run()
    assert (gone.returncode, gone.stdout) == (2, "")
    assert re.search(r"^switchrail: .*acme", gone.stderr, re.M)
    assert "Traceback" not in gone.stderr


def test_in_transformers(installed, runtime):
    """The vendor's kernel runs in `generate` of a transformers model: alone, padded, and with beams."""
    import switchrail.bridges.transformers as sr
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT, padding_side="left")
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}

    def generate(texts, **more):
        return model.generate(
            **tokenizer(texts, return_tensors="pt", padding=True), **options, **more
        ).tolist()

    calls = ([PROMPT], {}), ([PROMPT, "In"], {}), ([PROMPT, "In"], {"num_beams": 2})
    expected = [generate(texts, **more) for texts, more in calls]
    with sr.use(model, runtime=runtime, backends={"gated_delta": "acme"}) as handle:
        layers = linear_layers(handle)
        kernel = handle.bound.backend("gated_delta", "prefill", layers[0])
        for number, (texts, more) in enumerate(calls, 1):
            assert generate(texts, **more) == expected[number - 1]
            assert kernel.calls == number * NEW_TOKENS * len(layers)
        assert re.search(r"gated_delta decode, layers 0, .*: acme of .*acme-gdn", handle.explain())
