"""Times the engine and transformers on slices (few layers at real widths) of three families of models.

    python -m benchmarks.families                        # Kimi-Linear, MiniMax, Nemotron-H; B = 1, 32, 128
    python -m benchmarks.families --family minimax --batch 32 --json FILE
    python -m benchmarks.families --tiny                 # a trial with small widths on a CPU

Weights are random, in bfloat16. *prefill* is a run of B prompts of 200 to 600 tokens with one new token each,
*step* the additional time per further token. The engine's times are medians of 5 runs, after one uncounted
run. transformers runs `generate` once after a warm-up, with its own cache, on padded prompts.

The floor is computed from this device's measured speeds. For *step*, it is the time for copying the bytes
that a step needs: the weights, the states twice, and the cached tokens. Of the experts' weights, it counts
the expected share that B tokens use if they choose at random. For *prefill*, the floor is the time of the
products with the weights, without the output layer's, at the speed of a large product in bfloat16.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers
from switchrail.engine import Engine

from benchmarks.arguments import make_parser
from benchmarks.serving import runs, transformers_peer
from benchmarks.serving.ours import Ours
from benchmarks.serving.slices import save_random

BATCHES = (1, 32, 128)
LINEAR, FULL = "linear_attention", "full_attention"

_COMMON: dict[str, Any] = {
    "vocab_size": 3072,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "tie_word_embeddings": False,
}
SLICES: dict[str, dict[str, Any]] = {
    "kimi_linear": {
        "layer_types": [LINEAR, LINEAR, LINEAR, FULL],
        "num_hidden_layers": 4,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "moe_intermediate_size": 1024,
        "num_local_experts": 64,
        "num_experts_per_tok": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "linear_num_heads": 32,
        "linear_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    },
    "minimax": {
        "layer_types": [LINEAR, LINEAR, LINEAR, FULL],
        "num_hidden_layers": 4,
        "hidden_size": 6144,
        "intermediate_size": 9216,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "block_size": 256,
    },
    "nemotron_h": {
        "layers_block_type": ["mamba", "mlp", "mamba", "mlp", "mamba", "attention", "mlp", "mamba", "mlp"],
        "hidden_size": 4096,
        "intermediate_size": 21504,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}
"""The config of each slice, by model type: published widths, but fewer layers and experts."""

_TINY = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "block_size": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
}

ROW = "{name:12} {family} B={batch:<4} prefill {prefill_ms:9.2f} ms  step {step_ms:8.3f} ms"


def make(family: str, folder: Path, *, is_tiny: bool, device: str) -> Path:
    """Save a slice with random weights and the repository's tokenizer."""
    sizes = SLICES[family]
    if is_tiny:
        sizes = {key: _TINY.get(key, value) for key, value in sizes.items()}
    config = transformers.CONFIG_MAPPING[family].from_dict({**_COMMON, **sizes})
    save_random(config, folder, device)
    return folder


def speeds(device: str) -> tuple[float, float]:
    """Bytes per second of a copy (read and written), and operations per second of a bfloat16 product."""
    is_small = device == "cpu"
    source = torch.empty(2**24 if is_small else 2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    size = 512 if is_small else 8192
    left = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    out = torch.empty_like(left)
    copy = _fastest(lambda: target.copy_(source), device)
    product = _fastest(lambda: torch.mm(left, left, out=out), device)
    return 2 * source.nbytes / copy, 2 * size**3 / product


def _fastest(run: Any, device: str) -> float:
    found = []
    for _ in range(10):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return min(found)


def floor(engine: Engine, batch: int, prompt_tokens: int, speed: tuple[float, float]) -> dict[str, float]:
    """The floors of a prefill and of a decode, in milliseconds."""
    model = engine._runner.model
    config = model.config
    embedding = model.get_input_embeddings().weight
    experts: int = getattr(config, "num_local_experts", None) or getattr(config, "n_routed_experts", 1)
    share = config.num_experts_per_tok / experts if experts > 1 else 1.0
    read = used = 0.0
    for name, weight in model.named_parameters():
        if weight is embedding:
            continue
        is_expert = ".experts." in name
        read += weight.nbytes * (1 - (1 - share) ** batch if is_expert else 1)
        if weight is not model.get_output_embeddings().weight:
            used += weight.numel() * (share if is_expert else 1)
    pools = engine.pools
    states = [*pools.state.states.values(), *pools.state.windows.values()]
    slot = sum(one.nbytes / len(one) for one in states)
    token = sum(
        one.nbytes / (one.shape[0] * one.shape[1]) for pool in pools.kv.values() for one in pool.tensors()
    )
    held = prompt_tokens + batch * runs.NEW_TOKENS / 2
    moved = read + 2 * batch * slot + held * token
    bytes_per_second, operations_per_second = speed
    return {
        "prefill_ms": 2 * used * prompt_tokens / operations_per_second * 1e3,
        "step_ms": moved / bytes_per_second * 1e3,
    }


def measure(
    family: str, options: argparse.Namespace, batches: Sequence[int], device: str
) -> list[dict[str, Any]]:
    """Measure one slice: the engine, then the floor, then transformers."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = make(family, Path(folder) / family, is_tiny=options.tiny, device=device)
        chosen = {"max_sequences": max(batches), "max_length": 1024, **options.options}
        with Engine(path, device=device, dtype="bfloat16", options=chosen) as engine:
            speed = speeds(device)
            print(f"{family}: copies {speed[0] / 1e9:.0f} GB/s, products {speed[1] / 1e12:.1f} TFLOP/s")
            for row in runs.batches([Ours(engine)], batches, options.repeats, {}):
                rows.append({**row, "family": family})
                least = floor(engine, row["batch"], row["prompt_tokens"], speed)
                rows.append({"name": "floor", "family": family, "batch": row["batch"], **least})
            reasons = [state.reason for state in engine.graphs]
            print(f"{family}: {reasons.count(None)} of {len(reasons)} graphs captured")
            for reason in sorted({reason for reason in reasons if reason is not None}):
                print(f"  not captured: {reason}")
        for row in rows:
            print(ROW.format(**row), flush=True)
        if not options.no_transformers:
            gc.collect()
            torch.cuda.empty_cache()
            for row in peer(path, batches, device):
                rows.append({**row, "family": family})
                print(ROW.format(**rows[-1]), flush=True)
    return rows


def peer(path: Path, batches: Sequence[int], device: str) -> Iterator[dict[str, Any]]:
    """Measure transformers, each batch in its own process, because a device error may end the process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        for batch in batches:
            try:
                yield from pool.submit(transformers_peer.measure, path, [batch], device).result()
            except RuntimeError as error:
                print(f"transformers failed with {batch} sequences: {str(error).splitlines()[0]}", flush=True)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = make_parser("families", __doc__)
    parser.add_argument("--family", action="append", choices=SLICES, help="only this slice; repeatable")
    parser.add_argument("--batch", type=int, action="append", help="only this batch size; repeatable")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="engine options")
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="a trial with small widths on a CPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    options = parser.parse_args(arguments)
    device = "cpu" if options.tiny else "cuda"
    batches = options.batch or ((1, 2) if options.tiny else BATCHES)
    rows = []
    for family in options.family or SLICES:
        rows += measure(family, options, batches, device)
    if options.json is not None:
        named = "CPU" if options.tiny else torch.cuda.get_device_name()
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        options.json.write_text(json.dumps({"device": named, **versions, "rows": rows}, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
