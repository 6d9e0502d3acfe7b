"""A plugin of Switchrail whose hook watches the batches of SGLang's scheduler.

For each batch, a line of JSON goes to the file that ENGINE_WATCH names. It has the process, the mode, the
calls counted so far by the backends of the first linear layer and of the full layers, and the bytes that
torch allocated.
"""

import json
import os

FILE = "ENGINE_WATCH"


def register(registry):
    """Put the hook on SGLang's scheduler, if a file is named."""
    if os.environ.get(FILE):
        registry.hook("sglang.srt.managers.scheduler.Scheduler.run_batch", run_batch, "around")


def run_batch(original, scheduler, *args, **kwargs):
    """Run a batch and write its line."""
    from torch.profiler import ProfilerActivity, profile

    mode = (args[0] if args else kwargs["batch"]).forward_mode.name
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = original(scheduler, *args, **kwargs)
    allocated = sum(max(event.self_cpu_memory_usage, 0) for event in seen.events())
    line = {
        "process": os.getpid(),
        "parent": os.getppid(),
        "mode": mode,
        "allocated": allocated,
        **served(scheduler.tp_worker.model_runner.attn_backend),
    }
    with open(os.environ[FILE], "a") as file:
        file.write(json.dumps(line) + "\n")
    return result


def served(backend):
    """The objects through which Switchrail serves SGLang's hybrid backend, and their numbers of calls."""
    linear = getattr(backend.linear_attn_backend, "switchrail", None)
    full = getattr(backend.full_attn_backend, "bound", None)
    found = {}
    if linear is not None:
        table = linear.bound.plan.table
        found["backends"] = sorted(
            {(op, phase, name) for _, op, phase, name in table if op in linear.steps.dispatcher.ops}
        )
        first = min(layer for layer, op, _, _ in table if op == "gated_delta")
        found["calls"] = {
            phase: getattr(linear.bound.backend("gated_delta", phase, first), "calls", None)
            for phase in linear.asked
        }
        found["bypassed"] = linear.steps.bypassed
    if full is not None:
        found["full"] = sorted({(phase, name) for _, op, phase, name in full.plan.table if op == "attention"})
        found["full_bypassed"] = backend.full_attn_backend.steps.bypassed
    return found
