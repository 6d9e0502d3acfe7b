"""A user's backends of MLA."""

import switchrail
from switchrail.ops import MlaBackend
from switchrail.ops.mla.torch import TorchMla


class Prefill(TorchMla):
    pass


class Other(TorchMla):
    pass


class Nothing(MlaBackend):
    pass


def report(state):
    """A description of the worker's runtime, and of its overridden phases after `clear` for prefill."""
    runtime = switchrail.current_runtime()
    (plan,) = state.make_plans(runtime)
    bound = runtime.bind(plan)

    def overridden():
        return [runtime.is_overridden("mla", "torch", phase) for phase in ("prefill", "decode")]

    found = {
        "fingerprint": runtime.fingerprint(),
        "overridden": overridden(),
        "served": {phase: type(bound.backend("mla", phase, 1)).__name__ for phase in ("prefill", "decode")},
    }
    runtime.clear("mla", "torch", phase="prefill")
    return {**found, "cleared": overridden()}
