"""How fast the engine serves a slice of Qwen3-Next at real widths on a GPU: prefill, decode, whole runs.

    python benchmarks/serving.py                              # 12 layers, 64 experts; B = 1, 32, 128, 256
    python benchmarks/serving.py --layers 4 --capture off     # eager decodes
    python benchmarks/serving.py --profile 32 --json FILE     # and the kernels of a decode of 32 sequences

The slice has hidden size 2,048, three gated delta layers to one of attention, 10 experts a token, a
vocabulary of 3,072 and random bfloat16 weights. B prompts of 200 to 600 tokens, 64 new tokens each, greedy.
`prefill` is the time until every prompt has its first token, `step` what each of the 63 others takes,
`tokens/s` new tokens over all of the time: medians of `--repeats` runs after one that is not counted. Before
anything is timed, float32 tokens of four layers have to be the same captured and eager."""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import switchrail
import torch
import transformers
from switchrail.engine import Engine, SamplingParams
from transformers import AutoModelForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM

BATCHES = (1, 32, 128, 256)
NEW_TOKENS = 64
PEER_TOKENS = 16
SHORTEST, LONGEST, LONG = 200, 600, 8192
TOKENIZER = Path(__file__).parent.parent / "tests/checkpoints/kjv-qwen3-next"
WIDTHS: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "max_position_embeddings": 32768,
    "eos_token_id": 0,
    "pad_token_id": 1,
}


def make_checkpoint(folder: Path, layers: int, experts: int, vocabulary: int) -> Path:
    """Saves a slice with random weights and the tokenizer of the repository's checkpoint."""
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        num_hidden_layers=layers, num_experts=experts, vocab_size=vocabulary, dtype="bfloat16", **WIDTHS
    )
    with torch.device("cuda"):
        model = Qwen3NextForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder)
    del model
    torch.cuda.empty_cache()
    return folder


def make_prompts(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(2, 3000) for _ in range(draw.randint(SHORTEST, LONGEST))] for _ in range(count)]


def run(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> tuple[float, float]:
    """Seconds until every prompt has its first token, and until all have their last."""
    start = time.perf_counter()
    requests = [engine.submit(prompt, params) for prompt in prompts]
    first = None
    while engine.busy:
        engine.step()
        if first is None and all(request.tokens for request in requests):
            first = time.perf_counter() - start
    assert first is not None
    return first, time.perf_counter() - start


def check(folder: Path) -> None:
    """Holds captured decodes to eager ones, in float32.

    Raises:
        SystemExit: They give other tokens, or could not be captured.
    """
    prompts = make_prompts(2, seed=1)
    params = SamplingParams(max_new_tokens=24, ignore_eos=True)
    found = []
    for capture in ("off", "decode"):
        options = {"max_sequences": 2, "max_length": 1024, "capture": capture}
        with Engine(folder, dtype="float32", device="cuda", options=options) as engine:
            found.append([output.tokens for output in engine.generate(prompts, params)])
            graphs = engine._runner.graphs
            if graphs is not None and graphs.refused:
                raise SystemExit(f"not every decode could be captured: {graphs.refused}")
    if found[0] != found[1]:
        raise SystemExit("captured decodes give other tokens than eager ones")
    print("float32 tokens of captured decodes are those of eager ones", flush=True)


def measure(engine: Engine, batch: int, repeats: int, sampled: bool = False) -> dict[str, float]:
    params = SamplingParams(
        max_new_tokens=NEW_TOKENS, ignore_eos=True, **({"temperature": 0.7, "top_p": 0.9} if sampled else {})
    )
    prompts = make_prompts(batch)
    times = [run(engine, prompts, params) for _ in range(repeats + 1)][1:]
    prefill = statistics.median(first for first, _ in times)
    whole = statistics.median(last for _, last in times)
    step = statistics.median((last - first) / (NEW_TOKENS - 1) for first, last in times)
    return {
        "batch": batch,
        "prompt_tokens": sum(map(len, prompts)),
        "prefill_ms": prefill * 1e3,
        "step_ms": step * 1e3,
        "tokens_per_second": batch * NEW_TOKENS / whole,
    }


@torch.inference_mode()
def measure_transformers(folder: Path, batches: Sequence[int]) -> list[dict[str, float]]:
    """Its own `generate` with its cache, on prompts padded to one length; the second of two runs."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval().to("cuda")
    rows = []
    for batch in batches:
        prompts = make_prompts(batch)
        width = max(map(len, prompts))
        ids = torch.tensor([[1] * (width - len(p)) + p for p in prompts], device="cuda")
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device="cuda")

        def seconds(count: int, ids: torch.Tensor = ids, mask: torch.Tensor = mask) -> float:
            torch.cuda.synchronize()
            start = time.perf_counter()
            model.generate(
                ids, attention_mask=mask, do_sample=False, max_new_tokens=count, min_new_tokens=count
            )
            torch.cuda.synchronize()
            return time.perf_counter() - start

        seconds(2)
        first, whole = seconds(1), seconds(PEER_TOKENS)
        step = (whole - first) / (PEER_TOKENS - 1)
        rows.append({"batch": batch, "prefill_ms": first * 1e3, "step_ms": step * 1e3})
    return rows


def profile(engine: Engine, batch: int, steps: int = 20) -> None:
    """Prints which kernels a decode's time goes to."""
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    requests = [engine.submit(prompt, params) for prompt in make_prompts(batch)]
    while not all(request.tokens for request in requests):
        engine.step()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        start = time.perf_counter()
        for _ in range(steps):
            engine.step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    while engine.busy:
        engine.step()
    kernels = [row for row in found.key_averages() if row.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in kernels) / steps
    launches = sum(row.count for row in kernels) // steps
    whole = seconds / steps * 1e3
    print(f"a decode of {batch}: {whole:.2f} ms, {total / 1e3:.2f} of them in {launches} kernels")
    for row in kernels[:24]:
        each = row.self_device_time_total / steps
        print(f"  {each:8.1f} us {row.count / steps:6.1f} x  {row.key[:110]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=3072)
    parser.add_argument("--batch", type=int, action="append", help="only these numbers of sequences")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--capture", choices=("decode", "off"), default="decode")
    parser.add_argument("--rows", type=int, default=8192, help="of one step")
    parser.add_argument("--sampled", action="store_true", help="temperature 0.7, top_p 0.9")
    parser.add_argument("--profile", type=int, action="append", default=[], metavar="B")
    parser.add_argument(
        "--peer", type=int, action="append", default=[], metavar="B", help="time transformers' generate too"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    options = parser.parse_args()
    batches = options.batch or BATCHES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check(make_checkpoint(folder / "check", 4, 16, 3072))
        torch.cuda.empty_cache()
        path = make_checkpoint(folder / "slice", options.layers, options.experts, options.vocabulary)
        start = time.perf_counter()
        sizes = {
            "max_sequences": max(batches),
            "max_tokens_per_step": options.rows,
            "max_length": LONG + NEW_TOKENS,
            "capture": options.capture,
        }
        with Engine(path, device="cuda", options=sizes) as engine:
            print(f"engine made in {time.perf_counter() - start:.1f} s", flush=True)
            rows = []
            for batch in batches:
                rows.append(measure(engine, batch, options.repeats, options.sampled))
                print(
                    "B={batch:<4} {prompt_tokens:7} prompt tokens  prefill {prefill_ms:8.1f} ms  "
                    "step {step_ms:6.2f} ms  {tokens_per_second:8.0f} tokens/s".format(**rows[-1]),
                    flush=True,
                )
            long = [make_prompts(1)[0] * (LONG // SHORTEST)]
            long[0] = long[0][:LONG]
            one = SamplingParams(max_new_tokens=1, ignore_eos=True)
            times = [run(engine, long, one)[0] for _ in range(options.repeats + 1)][1:]
            print(f"one prompt of {LONG}: {statistics.median(times) * 1e3:.1f} ms", flush=True)
            for batch in options.profile:
                profile(engine, batch)
        gc.collect()
        torch.cuda.empty_cache()
        peer = measure_transformers(path, options.peer)
        for row in peer:
            print(
                "transformers B={batch:<4} prefill {prefill_ms:8.1f} ms  step {step_ms:6.2f} ms".format(**row)
            )
    if options.json:
        document = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "switchrail": switchrail.__version__,
            "layers": options.layers,
            "experts": options.experts,
            "long_prompt_ms": statistics.median(times) * 1e3,
            "rows": rows,
            "transformers_rows": peer,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
