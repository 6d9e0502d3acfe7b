"""The names of backends that SGLang's users can choose."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from switchrail._core import LINEAR_OPS, PAGED_OPS
from switchrail.errors import UnknownBackendError
from switchrail.nearest import unknown

if TYPE_CHECKING:
    from enum import Enum

    from switchrail.bridges.sglang.versions import Version
    from switchrail.runtime import Runtime

OURS = "switchrail"
"""The name that lets Switchrail choose a backend. `switchrail:NAME` chooses the backend NAME."""


def is_ours(name: str | None) -> bool:
    """Whether a name is one of Switchrail's."""
    return name is not None and name.split(":")[0] == OURS


def backend_of(name: str) -> str | None:
    """The backend that one of Switchrail's names chooses; None for `OURS`."""
    return name.partition(":")[2] or None


def names_for(runtime: Runtime, ops: Iterable[str]) -> list[str]:
    """All names for layers of these ops: `OURS`, and one for each backend."""
    backends = {backend.name for op in ops for backend in runtime.backends(op)}
    return [OURS, *(f"{OURS}:{name}" for name in sorted(backends))]


def offer(runtime: Runtime, version: Version, undo: ExitStack) -> None:
    """Adds Switchrail's names to SGLang's lists of choices until `undo` closes.

    Also hooks SGLang's enum of linear attention backends. A listed name that the enum lacks gets a member;
    any other name raises an UnknownBackendError.
    """
    choices = import_module(version.choices)
    linear: list[str] = choices.LINEAR_ATTN_KERNEL_BACKEND_CHOICES
    lists = [(linear, LINEAR_OPS), (choices.ATTENTION_BACKEND_CHOICES, PAGED_OPS)]
    if version.chunked_prefixes:
        lists.append((choices.CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS, PAGED_OPS))
    for names, ops in lists:
        for name in names_for(runtime, ops):
            if name not in names:
                names.append(name)
                undo.callback(names.remove, name)
    enum = f"{version.linear_module}.LinearAttnKernelBackend"

    def member(kind: type[Enum], value: object) -> Enum:
        """A new enum member for a name that SGLang's enum lacks, so that each name has its own member."""
        valid = dict.fromkeys([*(each.value for each in kind), *linear])
        if value not in valid:
            raise unknown(
                UnknownBackendError,
                f"there is no linear attention backend {value!r}",
                value,
                valid,
                found=value,
            )
        made: Any = object.__new__(kind)
        made._name_ = made._value_ = value
        kind._value2member_map_[value] = made
        return made  # type: ignore[no-any-return]

    runtime.hooks.add(f"{enum}._missing_", member, "replace", source=OURS)
    if version.has_custom:

        def is_custom(result: bool, member: Any) -> bool:
            """Whether a plugin other than Switchrail owns the name.

            SGLang itself maps all names of plugins to one member, `CUSTOM`.
            """
            return result or (member.name not in type(member).__members__ and not is_ours(member.value))

        runtime.hooks.add(f"{enum}.is_custom", is_custom, "after", source=OURS)
