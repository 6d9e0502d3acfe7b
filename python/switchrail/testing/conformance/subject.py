"""What is checked: a backend with the capabilities that its registration claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchrail.ops.backend import Backend
from switchrail.ops.contract import FLOATS

if TYPE_CHECKING:
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
    """

    op: str
    name: str
    phases: tuple[str, ...]
    capabilities: Mapping[str, Any]
    build: Callable[[], Backend]

    @staticmethod
    def of(runtime: Runtime, op: str, name: str) -> Subject:
        """The active backend of a name, with the configuration in effect.

        Raises:
            UnknownBackendError: There is none.
        """
        registration = runtime.backend(op, name)
        return Subject(
            op=op,
            name=name,
            phases=tuple(registration.phases),
            capabilities=registration.capabilities,
            build=lambda: runtime.build(op, name),
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

    @property
    def devices(self) -> list[str]:
        """The kinds of devices that it takes."""
        return [device["kind"] for device in self.claims("devices")]


__all__ = ["Subject"]
