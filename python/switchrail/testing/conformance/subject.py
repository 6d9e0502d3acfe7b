"""The backend to check, with the capabilities that its registration claims."""

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
    """A backend and the capabilities that it claims.

    Attributes:
        op: The op.
        name: The backend's name.
        phases: The phases that it serves.
        capabilities: `Registration.capabilities`; a missing or empty entry means no restriction, or no
            `features`.
        build: Constructs the backend.
        misfit: Returns why the backend can't serve a phase in a dtype on the platform, or None if it can.
    """

    op: str
    name: str
    phases: tuple[str, ...]
    capabilities: Mapping[str, Any]
    build: Callable[[], AnyBackend]
    misfit: Callable[[str, str], str | None] = lambda phase, dtype: None

    @staticmethod
    def of(runtime: Runtime, op: str, name: str, platform: Platform, phase: str | None = None) -> Subject:
        """A registered backend with its current configuration, on a platform; see `Runtime.backend`.

        Raises:
            UnknownBackendError: There is no such backend.
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
        """The claims under a name such as `head_sizes`; empty for no restriction, or for no `features`."""
        return list(self.capabilities.get(kind) or ())

    @property
    def dtypes(self) -> list[str]:
        """The names of the dtypes of activations that the backend supports."""
        return self.claims("dtypes") or list(FLOATS)

    @property
    def features(self) -> frozenset[str]:
        """The optional features that the backend claims."""
        return frozenset(self.claims("features"))
