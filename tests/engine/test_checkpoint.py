"""Checkpoints that can't be read raise errors that name the problem. Other unusual checkpoints load."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from switchrail.engine import Engine, SamplingParams
from switchrail.errors import CheckpointError, ConfigError, LayoutError, SwitchrailError, UnknownDtypeError
from transformers import AutoModelForCausalLM

from .conftest import CONFIG, make_checkpoint


@pytest.fixture(scope="session")
def checkpoint(small_checkpoint: Path) -> Path:
    return small_checkpoint


def check_same(first: Engine, second: Engine) -> None:
    """Check that two engines have the same weights, and generate the same tokens."""
    found, expected = (engine._runner.model.state_dict() for engine in (first, second))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    outputs = [engine.generate([[3, 4]], params)[0].tokens for engine in (first, second)]
    assert outputs[0] == outputs[1]


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


@pytest.mark.parametrize(("text", "words"), [("{", "can't be read"), ("[1]", "expected an object")])
def test_a_config_that_is_not_an_object(
    make_engine: Callable[..., Engine], broken: Path, text: str, words: str
) -> None:
    (broken / "config.json").write_text(text)
    refused(make_engine, broken, "config.json", words)


def test_unknown_model_type(make_engine: Callable[..., Engine], broken: Path) -> None:
    edit_config(broken, model_type="qwen3_nxt")
    error = refused(make_engine, broken, "'qwen3_nxt'", "nearest: qwen3_next")
    assert error.nearest[0] == "qwen3_next"


@pytest.mark.parametrize("model_type", [None, [], 5])
def test_a_model_type_that_is_not_a_name(
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


FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "adapter_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
]

IN_PLACE: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a broken link": lambda file: file.symlink_to("nowhere"),
    "a link to itself": lambda file: file.symlink_to(file.name),
    "1 GB": lambda file: (file.touch(), os.truncate(file, 1 << 30)),
    "no text": lambda file: file.write_bytes(b"\xff\xfe{}"),
    "JSON without end": lambda file: file.write_text("[" * 200_000),
    "half an object": lambda file: file.write_text('{"a": '),
    "nothing": lambda file: file.write_text(""),
    "null": lambda file: file.write_text("null"),
    "a list": lambda file: file.write_text("[1]"),
    "a number": lambda file: file.write_text("1" + "0" * 5000),
}


ALSO_TEMPLATES = ("JSON without end", "half an object", "nothing", "null", "a list", "a number")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (name, what)
        for name in FILES
        for what in IN_PLACE
        if name != "chat_template.jinja" or what not in ALSO_TEMPLATES
    ],
)
def test_a_folder_pipe_or_device_in_place_of_a_file(
    name: str, what: str, make_engine: Callable[..., Engine], broken: Path
) -> None:
    """A folder, a pipe, a broken link or wrong content in place of a file raises an error; nothing hangs."""
    (broken / name).unlink(missing_ok=True)
    IN_PLACE[what](broken / name)
    refused(make_engine, broken)


@pytest.mark.parametrize("what", ALSO_TEMPLATES)
def test_any_text_is_a_template(what: str, make_engine: Callable[..., Engine], broken: Path) -> None:
    IN_PLACE[what](broken / "chat_template.jinja")
    assert make_engine(broken).max_length == 1024


@pytest.mark.parametrize(
    "path", [None, 5, b"here", ["here"], "a\0b", "", "x" * 5000, "x/" + "y" * 5000], ids=str
)
def test_invalid_paths(make_engine: Callable[..., Engine], path: Any) -> None:
    refused(make_engine, path)


def test_a_hub_cache_consists_of_links(
    make_engine: Callable[..., Engine], checkpoint: Path, tmp_path: Path
) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "5f3a"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(checkpoint.iterdir()):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    check_same(make_engine(snapshot), make_engine(checkpoint))


@pytest.fixture
def sharded(broken: Path) -> Path:
    """The tiny checkpoint in several files, with an index."""
    file = broken / "model.safetensors"
    weights = load_file(file)
    file.unlink()
    names = sorted(weights)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2])):
        shard = f"model-{number}.safetensors"
        save_file({name: weights[name] for name in part}, broken / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, shard)
    write_index(broken, weight_map)
    return broken


def write_index(path: Path, weight_map: object) -> None:
    document = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(document))


def read_index(path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    return found


def test_weights_in_several_files(
    make_engine: Callable[..., Engine], sharded: Path, checkpoint: Path
) -> None:
    check_same(make_engine(sharded), make_engine(checkpoint))


@pytest.mark.parametrize("weight_map", [None, [], {}, "model.safetensors", 5, ["model.safetensors"]])
def test_an_index_that_lists_nothing(
    make_engine: Callable[..., Engine], sharded: Path, weight_map: object
) -> None:
    write_index(sharded, weight_map)
    refused(make_engine, sharded, "index.json can't be read: weight_map is")


@pytest.mark.parametrize(
    "name",
    [
        "../copy/model-0.safetensors",
        "sub/../../copy/model-0.safetensors",
        "/etc/passwd",
        "/etc/passwd.safetensors",
        "C:\\model-0.safetensors",
        "..\\model-0.safetensors",
        "model-0.safetensors\0.safetensors",
        "model-0.bin",
        "",
        None,
        5,
        ["model-0.safetensors"],
        {"file": "model-0.safetensors"},
    ],
    ids=repr,
)
def test_an_index_that_leaves_the_folder(
    make_engine: Callable[..., Engine], sharded: Path, name: object
) -> None:
    write_index(sharded, read_index(sharded) | {"model.norm.weight": name})
    refused(make_engine, sharded, "for model.norm.weight; valid: a .safetensors file in the folder")


def test_an_index_with_a_name_that_no_file_can_have(
    make_engine: Callable[..., Engine], sharded: Path
) -> None:
    write_index(sharded, read_index(sharded) | {"model.norm.weight": "x" * 5000 + ".safetensors"})
    refused(make_engine, sharded, "has no xxx")


def test_an_index_with_wrong_files(make_engine: Callable[..., Engine], sharded: Path) -> None:
    index = read_index(sharded)
    other = {"model-0.safetensors": "model-1.safetensors", "model-1.safetensors": "model-0.safetensors"}
    write_index(sharded, index | {"model.norm.weight": other[index["model.norm.weight"]]})
    refused(make_engine, sharded, "index.json names model.norm.weight in model-", "doesn't contain it")
    write_index(sharded, index | {"model.extra.weight": "model-0.safetensors"})
    error = refused(make_engine, sharded, "model.extra.weight")
    assert error.missing == ("model.extra.weight",)


def test_a_tensor_stored_twice(make_engine: Callable[..., Engine], sharded: Path) -> None:
    for shard in sharded.glob("model-*.safetensors"):
        weights = load_file(shard)
        weights["model.norm.weight"] = torch.zeros(64)
        save_file(weights, shard, metadata={"format": "pt"})
    refused(make_engine, sharded, "model.norm.weight is in model-0.safetensors and in model-1.safetensors")


def test_two_sets_of_weights(make_engine: Callable[..., Engine], sharded: Path, checkpoint: Path) -> None:
    shutil.copy(checkpoint / "model.safetensors", sharded)
    refused(make_engine, sharded, "model.safetensors beside model.safetensors.index.json")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_weights_of_another_dtype(
    make_engine: Callable[..., Engine], broken: Path, dtype: torch.dtype
) -> None:
    file = broken / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"] = weights["model.norm.weight"].to(dtype)
    save_file(weights, file, metadata={"format": "pt"})
    refused(make_engine, broken, "model.norm.weight in", "is of dtype", "valid: F64, F32, F16, BF16")


def raw_weights(tensors: dict[str, Any], data: bytes) -> bytes:
    head = json.dumps(tensors).encode()
    return len(head).to_bytes(8, "little") + head + data


LYING_HEADS = {
    "a shape that isn't the data's": raw_weights(
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"\0" * 4
    ),
    "offsets beyond the file": raw_weights(
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 4
    ),
    "offsets that overlap": raw_weights(
        {
            "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        },
        b"\0" * 4,
    ),
    "a product that overflows": raw_weights(
        {"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}}, b""
    ),
    "negative": raw_weights({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"\0" * 4),
    "no dtype": raw_weights({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
    "one name twice": (
        lambda head: len(head).to_bytes(8, "little") + head + b"\0" * 8  # type: ignore[misc]
    )(
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
        b' "a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}'
    ),
    "a head larger than the file": (1 << 60).to_bytes(8, "little") + b"{}",
}


@pytest.mark.parametrize("what", LYING_HEADS)
def test_weight_files_with_wrong_headers(make_engine: Callable[..., Engine], broken: Path, what: str) -> None:
    (broken / "model.safetensors").write_bytes(LYING_HEADS[what])
    refused(make_engine, broken, "model.safetensors is broken")


ENDS: list[object] = [True, "<end>", 1.5, -1, 320, 10**30, [-1], [256, "x"], [[256]], [True], {}, {"a": 1}]


@pytest.mark.parametrize("ends", ENDS, ids=repr)
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_invalid_end_tokens(
    make_engine: Callable[..., Engine], broken: Path, file: str, ends: object
) -> None:
    if file == "config.json":
        (broken / "generation_config.json").unlink()
        edit_config(broken, eos_token_id=ends)
    else:
        (broken / file).write_text(json.dumps({"eos_token_id": ends}))
    refused(make_engine, broken, "eos_token_id")


@pytest.mark.parametrize(("ends", "expected"), [(5, {5}), ([5, 6], {5, 6}), ([], set()), (None, {256})])
def test_end_tokens(
    make_engine: Callable[..., Engine], broken: Path, ends: object, expected: set[int]
) -> None:
    edit_config(broken, eos_token_id=None)
    (broken / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    assert make_engine(broken)._end_tokens == expected


NONSENSE: list[object] = [None, True, "x", 1.5, -1, 0, 10**12, 10**30, float("nan"), [], {}, [-1]]


@pytest.mark.parametrize("key", ["max_position_embeddings", "dtype", *sorted(CONFIG.keys() - {"dtype"})])
def test_a_field_of_the_config(
    key: str, make_engine: Callable[..., Engine], broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each nonsense value of a field is accepted or raises a typed error.

    The sizes 10**12 and 10**30 are refused before weights are read, except in a few fields.
    """
    original = AutoModelForCausalLM.from_pretrained
    value: object = None
    late = []

    def load(*arguments: Any, **keywords: Any) -> Any:
        if value in (10**12, 10**30) and not key.endswith(("_token_id", "experts_per_tok", "sparse_step")):
            late.append(value)
            raise RuntimeError("not refused before")
        return original(*arguments, **keywords)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", load)
    before = (broken / "config.json").read_text()
    right = json.loads(before)[key]
    found = set()
    for value in NONSENSE:
        edit_config(broken, **{key: value})
        try:
            make_engine(broken).close()
        except SwitchrailError as error:
            found.add(type(error))
    assert not late
    assert found <= {CheckpointError, ConfigError, LayoutError, UnknownDtypeError}
    assert found or key in ("bos_token_id", "pad_token_id"), f"no value of {key} was refused"
    edit_config(broken, **{key: right})
    make_engine(broken).close()


def test_sequences_that_are_too_long(make_engine: Callable[..., Engine], broken: Path) -> None:
    """An engine refuses lengths above 2**31 - 1, and lengths whose page table doesn't fit in memory."""
    edit_config(broken, max_position_embeddings=10**12)
    with pytest.raises(
        ConfigError, match=r"max_position_embeddings is 1e\+12 in .*; valid: at most 2147483647"
    ):
        make_engine(broken)
    edit_config(broken, max_position_embeddings=2**31 - 1)
    with pytest.raises(ConfigError, match=r"page table for 2147483647 tokens each \(\d+ MiB\)"):
        make_engine(broken, options={"num_pages": 9, "max_sequences": 2000})
    assert make_engine(broken, options={"max_length": 64}).max_length == 64


def test_a_config_that_names_other_files(make_engine: Callable[..., Engine], broken: Path) -> None:
    edit_config(broken, transformers_weights="../elsewhere.safetensors")
    refused(make_engine, broken, "transformers_weights", "valid: model.safetensors")


def test_code_in_the_folder_is_not_run(make_engine: Callable[..., Engine], broken: Path) -> None:
    (broken / "own.py").write_text(f"open({str(broken / 'ran')!r}, 'w')\nclass Own: pass\n")
    (broken / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}})
    )
    edit_config(broken, auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"})
    with contextlib.suppress(CheckpointError):
        make_engine(broken).close()
    assert not (broken / "ran").exists()


def test_embeddings_that_are_shared(make_engine: Callable[..., Engine], tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, tie_word_embeddings=True)
    with safe_open(path / "model.safetensors", framework="pt") as weights:
        assert "lm_head.weight" not in weights.keys()  # noqa: SIM118
    assert make_engine(path).generate([[3]], SamplingParams(max_new_tokens=8))[0].tokens


def test_a_failure_leaves_the_runtime_usable(make_engine: Callable[..., Engine], tmp_path: Path) -> None:
    import switchrail

    runtime = switchrail.Runtime()
    with pytest.raises(CheckpointError):
        make_engine(tmp_path, runtime=runtime)
    assert make_engine(runtime=runtime).generate(["a"], SamplingParams(max_new_tokens=2))[0].finish_reason


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", torch.float16])
def test_the_requested_dtype_is_used(make_engine: Callable[..., Engine], dtype: str | torch.dtype) -> None:
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
