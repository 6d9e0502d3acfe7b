"""Checkpoints that can't be read: each says what is wrong, and the process goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from switchrail.engine import Engine, SamplingParams
from switchrail.errors import CheckpointError, UnknownDtypeError


@pytest.fixture
def broken(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint, for a test to break."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def refused(make_engine: Callable[..., Engine], path: Path, *words: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        make_engine(path)
    for word in words:
        assert word in str(caught.value)
    return caught.value


def edit_config(path: Path, **changes: object) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_no_folder(make_engine: Callable[..., Engine], tmp_path: Path) -> None:
    refused(make_engine, tmp_path / "nowhere", "nowhere")


def test_no_config(make_engine: Callable[..., Engine], tmp_path: Path) -> None:
    refused(make_engine, tmp_path, "no config.json")


@pytest.mark.parametrize(("text", "words"), [("{", "can't be read"), ("[1]", "not an object")])
def test_config_is_no_object(make_engine: Callable[..., Engine], broken: Path, text: str, words: str) -> None:
    (broken / "config.json").write_text(text)
    refused(make_engine, broken, "config.json", words)


def test_unknown_model_type(make_engine: Callable[..., Engine], broken: Path) -> None:
    edit_config(broken, model_type="qwen3_nxt")
    error = refused(make_engine, broken, "'qwen3_nxt'", "nearest: qwen3_next")
    assert error.nearest == ("qwen3_next",)


@pytest.mark.parametrize("model_type", [None, [], 5])
def test_a_model_type_that_is_no_name(
    make_engine: Callable[..., Engine], broken: Path, model_type: object
) -> None:
    edit_config(broken, model_type=model_type)
    refused(make_engine, broken, repr(model_type), "valid: qwen3_next")


def test_truncated_weights(make_engine: Callable[..., Engine], broken: Path) -> None:
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert refused(make_engine, broken, "model.safetensors is broken").path == str(file)


def test_weights_without_a_header(make_engine: Callable[..., Engine], broken: Path) -> None:
    (broken / "model.safetensors").write_bytes(b"no weights")
    refused(make_engine, broken, "model.safetensors is broken")


def test_no_weights(make_engine: Callable[..., Engine], broken: Path) -> None:
    (broken / "model.safetensors").unlink()
    refused(make_engine, broken, "no model.safetensors")


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ('{"weight_map": {"a": "missing-00001.safetensors"}}', "missing-00001"),
        ("{}", "index.json can't be read"),
    ],
)
def test_broken_index(make_engine: Callable[..., Engine], broken: Path, index: str, words: str) -> None:
    (broken / "model.safetensors.index.json").write_text(index)
    refused(make_engine, broken, words)


def test_other_weights(make_engine: Callable[..., Engine], broken: Path) -> None:
    file = broken / "model.safetensors"
    weights = load_file(file)
    weights["model.surplus.weight"] = weights.pop("model.norm.weight")
    save_file(weights, file, metadata={"format": "pt"})
    error = refused(make_engine, broken, "1 missing: model.norm.weight", "1 unexpected: model.surplus.weight")
    assert error.missing == ("model.norm.weight",)


def test_weights_of_another_shape(make_engine: Callable[..., Engine], broken: Path) -> None:
    edit_config(broken, intermediate_size=112)
    refused(make_engine, broken, "mlp")


@pytest.mark.parametrize("left", [(), ("tokenizer_config.json",)])
def test_no_tokenizer(make_engine: Callable[..., Engine], broken: Path, left: tuple[str, ...]) -> None:
    for file in broken.glob("*token*"):
        if file.name not in left:
            file.unlink()
    refused(make_engine, broken, "tokenizer")


def test_convolution_with_another_activation(make_engine: Callable[..., Engine], broken: Path) -> None:
    edit_config(broken, hidden_act="gelu")
    refused(make_engine, broken, "layer 0", "'gelu'", "silu")


@pytest.mark.parametrize("dtype", ["float33", "float64", torch.int8])
def test_unknown_dtype(make_engine: Callable[..., Engine], dtype: object) -> None:
    with pytest.raises(UnknownDtypeError, match="bfloat16"):
        make_engine(dtype=dtype)


def test_a_failure_leaves_the_runtime_usable(make_engine: Callable[..., Engine], tmp_path: Path) -> None:
    import switchrail

    runtime = switchrail.Runtime()
    with pytest.raises(CheckpointError):
        make_engine(tmp_path, runtime=runtime)
    assert make_engine(runtime=runtime).generate(["a"], SamplingParams(max_new_tokens=2))[0].finish_reason


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", torch.float16])
def test_dtype_is_that_asked_for(make_engine: Callable[..., Engine], dtype: str | torch.dtype) -> None:
    engine = make_engine(dtype=dtype)
    assert str(engine.dtype).endswith(str(dtype).removeprefix("torch."))
    assert engine.pools.kv["mha"].caches(1)[0].dtype == engine.pools.state.windows[0].dtype == engine.dtype
    assert engine.pools.state.states[0].dtype == torch.float32
    assert (
        engine.generate(["the"], SamplingParams(max_new_tokens=3, ignore_eos=True))[0].finish_reason
        == "length"
    )


def test_on_a_cpu_the_default_is_float32(make_engine: Callable[..., Engine], broken: Path) -> None:
    edit_config(broken, dtype="bfloat16")
    assert make_engine(broken).dtype == torch.float32
