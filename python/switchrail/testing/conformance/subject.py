"""What is checked: a backend with the capabilities that its registration claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchrail.errors import BackendUnfitError
from switchrail.ops.backend import AnyBackend
from switchrail.ops.contract import FLOATS
from switchrail.testing.inputs import CONTRACTS

if TYPE_CHECKING:
    from switchrail.platforms import Platform
    from switchrail.runtime import Runtime


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A backend, and what it claims.

    Attributes:
        op: The op.
        name: The backend's name.
        phases: The phases that it serves.
        capabilities: As `Registration.capabilities` has them; what is empty or left out restricts nothing.
        build: Constructs it.
        misfit: Why it can't serve a phase in a dtype where it is checked; None where it can.
    """

    op: str
    name: str
    phases: tuple[str, ...]
    capabilities: Mapping[str, Any]
    build: Callable[[], AnyBackend]
    misfit: Callable[[str, str], str | None] = lambda phase, dtype: None

    @staticmethod
    def of(runtime: Runtime, op: str, name: str, platform: Platform, phase: str | None = None) -> Subject:
        """A backend that is named as to `Runtime.backend`, with the configuration in effect, on a platform.

        Raises:
            UnknownBackendError: There is none.
        """
        registration = runtime.backend(op, name, phase)

        def misfit(phase: str, dtype: str) -> str | None:
            try:
                runtime.resolve(
                    op,
                    phase,
                    device=platform,
                    dtype=dtype,
                    state_layout=CONTRACTS[op].state_layout,
                    preferences={op: name},
                )
            except BackendUnfitError as error:
                return error.because
            return None

        return Subject(
            op=op,
            name=name,
            phases=tuple(registration.phases),
            capabilities=registration.capabilities,
            build=lambda: runtime.build(op, name, phase),
            misfit=misfit,
        )

    def claims(self, kind: str) -> list[Any]:
        """What it claims under a name such as `head_sizes`; empty where nothing is restricted."""
        return list(self.capabilities.get(kind) or ())

    @property
    def dtypes(self) -> list[str]:
        """The dtypes of activations that it takes."""
        return self.claims("dtypes") or list(FLOATS)

    @property
    def features(self) -> frozenset[str]:
        """What it can do besides."""
        return frozenset(self.claims("features"))


__all__ = ["Subject"]
