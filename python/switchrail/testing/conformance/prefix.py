"""The check of `plan_chunked_prefix`, the optional step of MLA's prefill."""

from __future__ import annotations

from typing import Any

from switchrail.ops.backend import AnyBackend
from switchrail.ops.batch import Bounds, Phase, SequenceBatch
from switchrail.ops.delegate import Delegate, Delegated
from switchrail.testing.compare import Error, verify
from switchrail.testing.conformance.bounds import BOUNDS
from switchrail.testing.conformance.setting import Measured, Setting

STEP = "plan_chunked_prefix"


class Completed(Delegate):
    """A backend whose plans are completed by `plan_chunked_prefix`.

    Args:
        backend: The backend.
        **flags: The flags of the step.
    """

    def __init__(self, backend: AnyBackend, **flags: bool) -> None:
        super().__init__({"backend": backend}, lambda phase, batch: "backend")
        self._flags = flags

    def plan(self, phase: Phase, batch: SequenceBatch, bounds: Bounds | None = None) -> Delegated:
        """Plan, and complete the plan."""
        plan = super().plan(phase, batch, bounds)
        self.optional_steps()[STEP](plan=plan, batch=batch, **self._flags)
        return plan


def chunked_prefix(setting: Setting) -> Measured:
    """Checks prefills with different flags of the step, with a cached prefix and without."""
    bound = BOUNDS["usual"][setting.dtype]
    worst = Measured(Error(0.0, 0.0), bound)
    sizes: dict[str, Any] = {
        "nope_size": 128,
        "value_size": 128,
        "heads": 2,
    }  # head sizes of widespread models
    for kv_lengths in (None, (9, 14, 2, 50)):
        call = setting.call((9, 1, 0, 20), kv_lengths=kv_lengths, padding=(1,), **sizes)
        for ragged, chunked in ((True, True), (True, False), (False, True)):
            backend = Completed(setting.backend, ragged=ragged, chunked=chunked)
            worst |= Measured(verify(backend, call, bound=bound), bound)
    return worst
