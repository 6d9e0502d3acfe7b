"""The suite as a pytest function."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from switchrail.platforms import Platform
from switchrail.runtime import Runtime
from switchrail.testing.conformance.cases import Case, select_named
from switchrail.testing.conformance.memory import Unavailable
from switchrail.testing.isolated import isolated


def backend_test(
    name: str,
    *,
    op: str | None = None,
    phase: str | None = None,
    dtype: str | None = None,
    device: Platform | str | None = None,
    quick: bool = False,
    runtime: Runtime | None = None,
) -> Callable[..., None]:
    """Makes a pytest function of the conformance suite, with one parameter for each case.

    ```
    from switchrail.testing import backend_test

    test_acme = backend_test("acme")
    ```

    The function is marked like any other one. What the backend does not claim is skipped, with the reason.

    Args:
        name: The backend's name.
        op: Only this op; else every op that has the name.
        phase: Only this phase.
        dtype: Only this dtype, by name.
        device: Where, as `Runtime.find_platform` takes it; else the runtime's platform.
        quick: Shorter sequences, and most cases in one dtype only.
        runtime: Where it is registered; else a new one with the installed plugins loaded.

    Raises:
        UnknownBackendError: There is no such backend.
        PlatformError: The device is not there.
        SwitchrailError: Another argument means nothing.
    """
    with isolated() if runtime is None else nullcontext(runtime) as where:
        if runtime is None:
            where.load()
        platform = where.platform if device is None else where.find_platform(device)
        selection = select_named(where, name, platform=platform, op=op, phase=phase, dtype=dtype, quick=quick)
    parameters = [pytest.param(case, id=case.id) for case in selection.cases]
    for left in selection.left_out:
        parameters.append(pytest.param(None, id=left.id, marks=pytest.mark.skip(reason=left.reason)))

    @pytest.mark.parametrize("case", parameters)
    def test(case: Case) -> None:
        try:
            case()
        except Unavailable as reason:
            pytest.skip(str(reason))

    return test


__all__ = ["backend_test"]
