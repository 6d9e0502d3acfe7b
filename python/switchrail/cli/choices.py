"""The choices of a command's user: the configuration file and `--backend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import switchrail
from switchrail.errors import ConfigError, SwitchrailError
from switchrail.policy import choices_of, preferences_of, read_tables, with_denials
from switchrail.waiting import PATIENCE

if TYPE_CHECKING:
    from switchrail.runtime import Runtime


def installed_backends() -> str:
    """A sentence that names the installed backends by op, or says why they can't be listed."""
    try:
        runtime = loaded_runtime(Choices())
    except SwitchrailError as error:  # the help is shown without the names
        return f"Installed names can't be listed: {error}"
    names: dict[str, set[str]] = {}
    for backend in runtime.backends():
        names.setdefault(backend.op, set()).add(backend.name)
    return "Installed: " + "; ".join(f"{op}: {', '.join(['auto', *sorted(names[op])])}" for op in names) + "."


@dataclass(frozen=True)
class Choices:
    """The user's choices.

    Attributes:
        backends: Backend names by preference key.
        config: The user's values for backends' configurations, by op and backend name.
        engine: Values for `EngineOptions`.
    """

    backends: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)


def read_choices(file: Path | None, backends: Sequence[str] | None) -> Choices:
    """The choices of the configuration file and of `--backend`.

    `--backend` takes precedence over the file's choices, but the backends that the file denies stay denied.

    Raises:
        ConfigError: The file can't be read or has invalid content, or a choice is not KEY=NAME.
    """
    tables = {} if file is None else read_tables(file, "engine")
    chosen: dict[str, str] = {}
    for choice in backends or ():
        key, separator, name = choice.partition("=")
        if not (key and separator and name):
            raise ConfigError(
                f"--backend is {choice!r}; valid: KEY=NAME, such as gated_delta=torch", found=choice
            )
        chosen[key] = name
    listed = {} if file is None else preferences_of(file, tables)
    choices = choices_of(listed) | choices_of(chosen)
    return Choices(with_denials(choices, listed, chosen), tables.get("config", {}), tables.get("engine", {}))


def loaded_runtime(choices: Choices) -> Runtime:
    """The current runtime, with the installed plugins loaded and the chosen configuration applied."""
    runtime = switchrail.current_runtime()
    runtime.default_timeout = PATIENCE
    runtime.load()
    for op, backends in choices.config.items():
        for name, values in backends.items():
            runtime.configure(op, name, **values)
    return runtime
