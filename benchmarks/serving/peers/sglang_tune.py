"""Tunes SGLang's kernel for experts, as SGLang's tuner does: `sglang_tune.py FOLDER EXPERTS`.

EXPERTS is the number of experts. The other sizes are those of the slice of Qwen3-Next in `slices.py`.

For a few numbers of rows, times some settings of SGLang's kernel and writes the fastest for each number to
FOLDER. SGLang reads them if SGLANG_MOE_CONFIG_DIR is FOLDER. Several processes compile the kernels
beforehand, because compiling takes most of the time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

HIDDEN, INNER, TOP_K = 2048, 512, 10
PROCESSES = 8
ROWS = (1, 8, 32, 64, 128, 256, 1024, 8192)

FEW = (
    (16, 32, 64, 1, 4, 3), (16, 64, 64, 1, 4, 4), (16, 64, 128, 1, 4, 4), (16, 128, 64, 1, 4, 4),
    (16, 128, 128, 1, 4, 3), (16, 64, 256, 1, 4, 3), (16, 128, 128, 1, 8, 4), (16, 256, 64, 1, 4, 4),
    (32, 64, 128, 1, 4, 4), (32, 128, 64, 1, 4, 4), (32, 128, 128, 1, 4, 3), (64, 64, 64, 1, 4, 4),
    (64, 128, 64, 1, 4, 4),
)  # fmt: skip
MANY = (
    (64, 64, 32, 8, 4, 3), (64, 128, 64, 8, 4, 4), (64, 128, 64, 16, 4, 3), (128, 128, 64, 8, 8, 4),
    (128, 128, 64, 16, 4, 3), (128, 128, 64, 32, 8, 3), (128, 256, 64, 8, 8, 4), (128, 256, 64, 16, 8, 3),
    (64, 256, 64, 8, 8, 4), (128, 128, 128, 8, 8, 3),
)  # fmt: skip
"""Settings for few rows and for many: rows, columns and depth of a block, blocks per group, warps, stages."""

NAMES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")


def settings(rows):
    found = FEW if rows <= 128 else (*FEW[8:], *MANY) if rows <= 1024 else MANY
    return [dict(zip(NAMES, one, strict=True)) for one in found]


class Experts:
    """SGLang's experts with random weights."""

    def __init__(self, count):
        import torch
        from sglang.srt import server_args

        # the only server arguments that SGLang's experts need
        server_args.set_global_server_args_for_scheduler(
            SimpleNamespace(enable_fused_moe_sum_all_reduce=False, enable_deterministic_inference=False)
        )
        options = {"dtype": torch.bfloat16, "device": "cuda"}
        self.count = count
        self.gate_up = torch.randn(count, 2 * INNER, HIDDEN, **options) * HIDDEN**-0.5
        self.down = torch.randn(count, HIDDEN, INNER, **options) * INNER**-0.5

    def inputs(self, rows):
        import torch

        x = torch.randn(rows, HIDDEN, dtype=torch.bfloat16, device="cuda")
        weights, ids = torch.rand(rows, self.count, device="cuda").topk(TOP_K)
        return x, self.gate_up, self.down, weights, ids.int()

    def run(self, setting, inputs):
        from sglang.srt.layers.moe.moe_runner import triton_utils
        from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe import fused_experts_impl

        with triton_utils.override_config(setting):
            return fused_experts_impl(*inputs)

    def milliseconds(self, setting, inputs):
        """Median milliseconds of five calls in a captured graph."""
        import torch

        self.run(setting, inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(5):
                self.run(setting, inputs)
        times = []
        for _ in range(7):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times)


def compile_part(count, part):
    experts = Experts(count)
    every = {tuple(one.values()): (rows, one) for rows in ROWS for one in settings(rows)}
    for rows, one in list(every.values())[part::PROCESSES]:
        try:
            experts.run(one, experts.inputs(rows))
        except Exception as error:  # too large for the device
            print(one, error)


def main():
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    if len(sys.argv) > 3:
        compile_part(count, int(sys.argv[3]))
        return
    parts = [subprocess.Popen([sys.executable, *sys.argv, str(part)]) for part in range(PROCESSES)]
    for part in parts:
        part.wait()

    import triton
    from sglang.srt.layers.moe.moe_runner.triton_utils import get_config_file_name

    experts = Experts(count)
    best = {}
    for rows in ROWS:
        inputs = experts.inputs(rows)
        times = []
        for one in settings(rows):
            try:
                times.append((experts.milliseconds(one, inputs), list(one.values())))
            except Exception as error:
                print(rows, one, error)
        least, chosen = min(times)
        best[str(rows)] = dict(zip(NAMES, chosen, strict=True))
        print(
            f"{rows} rows: {least / 5 * 1e3:.1f} us with {chosen}, "
            f"{times[0][0] / 5 * 1e3:.1f} with the first setting"
        )
    path = folder / "configs" / f"triton_{triton.__version__.replace('.', '_')}"
    path.mkdir(parents=True, exist_ok=True)
    name = get_config_file_name(count, INNER, None)
    (path / name).write_text(json.dumps(best, indent=1))
    print(f"wrote {path / name}")


if __name__ == "__main__":
    main()
