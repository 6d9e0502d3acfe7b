"""Prints the time of each kernel in a decode step."""

from __future__ import annotations

import time

import torch
from switchrail.engine import Engine, SamplingParams

from benchmarks.serving.slices import make_prompts

STEPS = 20
SHOWN = 24
"""The number of kernels that are printed, the slowest first."""


def show(engine: Engine, batch: int) -> None:
    """Print the kernels of decode steps of `batch` sequences, according to torch's profiler."""
    params = SamplingParams(max_new_tokens=STEPS + 44, ignore_eos=True)
    requests = [engine.submit(prompt, params) for prompt in make_prompts(batch)]
    while not all(request.tokens for request in requests):
        engine.step()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        start = time.perf_counter()
        for _ in range(STEPS):
            engine.step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    while engine.busy:
        engine.step()
    kernels = [row for row in found.key_averages() if row.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in kernels) / STEPS
    launches = sum(row.count for row in kernels) // STEPS
    whole = seconds / STEPS * 1e3
    print(f"a decode of {batch}: {whole:.2f} ms, {total / 1e3:.2f} of them in {launches} kernels")
    for row in kernels[:SHOWN]:
        each = row.self_device_time_total / STEPS
        print(f"  {each:8.1f} us {row.count / STEPS:6.1f} x  {row.key[:110]}")
