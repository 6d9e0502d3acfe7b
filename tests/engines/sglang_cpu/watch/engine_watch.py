"""A plugin of Switchrail whose hook watches the batches of SGLang's scheduler.

For each batch, a line of JSON goes to the file that ENGINE_WATCH names. It has the process and its parent,
the batch's mode, the bytes that torch allocated, the number of calls seen by a hook of SGLang's own on the
same function, and the fields of `served`.
"""

import json
import os

FILE = "ENGINE_WATCH"
TARGET = "sglang.srt.managers.scheduler.Scheduler.run_batch"
seen = []


def register(registry):
    """Put the hook on SGLang's scheduler, if a file is named."""
    if os.environ.get(FILE):
        registry.hook(TARGET, run_batch, "around")


def sglangs_hook():
    """Put one of SGLang's own hooks on the same function. An entry point makes SGLang call this."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, lambda *args, **kwargs: seen.append(1), HookType.BEFORE)


def run_batch(original, scheduler, *args, **kwargs):
    """Run a batch and write its line."""
    from torch.profiler import ProfilerActivity, profile

    mode = (args[0] if args else kwargs["batch"]).forward_mode.name
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = original(scheduler, *args, **kwargs)
    allocated = sum(max(event.self_cpu_memory_usage, 0) for event in profiled.events())
    line = {
        "process": os.getpid(),
        "parent": os.getppid(),
        "mode": mode,
        "allocated": allocated,
        "seen": len(seen),
        **served(scheduler.tp_worker.model_runner.attn_backend),
    }
    with open(os.environ[FILE], "a") as file:
        file.write(json.dumps(line) + "\n")
    return result


def served(backend):
    """What Switchrail serves of SGLang's backend, for its linear layers and for full attention.

    The fields are the routes, the number of calls of the first layer's backend by phase, and the number of
    forward passes that bypassed Switchrail.
    """
    linear = getattr(getattr(backend, "linear_attn_backend", None), "switchrail", None)
    full = getattr(backend, "full_attn_backend", backend)
    found = {}
    if linear is not None:
        found["backends"] = routes(linear)
        phases = linear.steps.dispatchers
        found["calls"] = {phase: calls(linear, recurrence(phases[phase]), phase) for phase in phases}
        found["bypassed"] = linear.steps.bypassed
    if hasattr(full, "steps"):
        found["full"] = [(phase, name) for op, phase, name in routes(full) if op == full.op]
        found["full_calls"] = {phase: calls(full, full.op, phase) for phase in full.steps.dispatchers}
        found["full_bypassed"] = full.steps.bypassed
    return found


def routes(served):
    """The op, phase and backend of each route of the served layers."""
    dispatchers = served.steps.dispatchers.values()
    return sorted(
        {
            (op, phase, name)
            for dispatcher in dispatchers
            for _, op, phase, name in dispatcher.bound.plan.table
            if op in dispatcher.ops
        }
    )


def recurrence(dispatcher):
    """The op of the linear layers' recurrence, or `short_conv` if they only have a convolution."""
    return min(dispatcher.ops - {"short_conv"}, default="short_conv")


def calls(served, op, phase):
    """The number of calls of the backend of the op's first layer; None if the backend doesn't count them."""
    bound = served.steps.dispatchers[phase].bound
    first = min(layer for layer, other, _, _ in bound.plan.table if other == op)
    return getattr(bound.backend(op, phase, first), "calls", None)
