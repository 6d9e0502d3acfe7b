"""SGLang on a CPU, with its Triton kernels in Triton's interpreter, where a launch takes milliseconds."""

import contextlib
import os

os.environ["TRITON_INTERPRET"] = "1"  # Triton reads this when it is imported


def platform():
    """The path of the platform's class, or None if the Switchrail plugin acme-platform is to provide one."""
    return None if os.environ.get("ACME_DEVICE") else "sglang_on_cpu_platform:InterpretedCpu"


def interpret():
    """Adapt torch, Triton and SGLang's helpers, in this process."""
    import torch
    import triton.runtime.autotuner

    if not hasattr(torch.cpu, "device"):
        torch.cpu.device = lambda index=None: contextlib.nullcontext()
    torch.Tensor.pin_memory = lambda self, device=None: self  # SGLang pins some tensors itself
    # Without a driver Triton can't time an autotuned kernel's configurations, so the first one is used.
    triton.runtime.autotuner.Autotuner._bench = lambda self, *args, config=None, **kwargs: [1.0, 1.0, 1.0]
    import sglang_on_cpu_helpers

    sglang_on_cpu_helpers.adapt()
    sglang_on_cpu_helpers.adapt_drafts()
    sglang_on_cpu_helpers.adapt_mamba2()
    sglang_on_cpu_helpers.adapt_attention()
