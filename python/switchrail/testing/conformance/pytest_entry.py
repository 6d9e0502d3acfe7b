"""The suite as a pytest function."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from switchrail.platforms import Platform
from switchrail.runtime import Runtime
from switchrail.testing import pytest_summary
from switchrail.testing.conformance.cases import Case, select_named
from switchrail.testing.conformance.memory import Unavailable
from switchrail.testing.conformance.run import causes_of
from switchrail.testing.isolated import isolated

_Record = Callable[[str, object], None]


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
    """Makes a pytest function from the conformance suite, with one parameter per case.

    ```
    from switchrail.testing import backend_test

    test_acme = backend_test("acme")
    ```

    The function can be marked like any other. At the end, pytest prints a summary of the failures; under
    pytest-xdist this needs `-p switchrail.testing.pytest_summary`. Cases that the backend does not claim are
    skipped, with the reason.

    Args:
        name: The backend's name.
        op: The op to check; by default all ops that have a backend of that name.
        phase: The phase to check; by default all.
        dtype: The name of the dtype to check; by default all.
        device: The device, in any form that `Runtime.find_platform` takes; by default the runtime's platform.
        quick: Whether to use shorter sequences, and to run most cases in one dtype only.
        runtime: The runtime with the backend; by default a new one with the installed plugins loaded.

    Raises:
        UnknownBackendError: There is no such backend.
        PlatformError: The device does not exist.
        SwitchrailError: Another argument is invalid.
    """
    with isolated() if runtime is None else nullcontext(runtime) as where:
        if runtime is None:
            where.load()
        platform = where.find_platform(device)
        selection = select_named(where, name, platform=platform, op=op, phase=phase, dtype=dtype, quick=quick)
    parameters = [pytest.param(case, id=case.id) for case in selection.cases]
    for left in selection.left_out:
        parameters.append(pytest.param(None, id=left.id, marks=pytest.mark.skip(reason=left.reason)))

    @pytest.mark.parametrize("case", parameters)
    def test(case: Case, request: pytest.FixtureRequest, record_property: _Record) -> None:
        plugins = request.config.pluginmanager
        if not plugins.is_registered(pytest_summary):
            plugins.register(pytest_summary)
        told: dict[str, Any] = {"id": case.id, "causes": [], "possible": [], "traits": [*case.check.traits]}
        record_property(pytest_summary.PROPERTY, told)
        try:
            case()
        except Unavailable as reason:
            pytest.skip(str(reason))
        except Exception as failure:
            told |= {name: list(causes) for name, causes in causes_of(failure).items()}
            raise

    return test
