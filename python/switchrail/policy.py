"""Reads the policy file: backends to prefer and to deny, and their configurations, for all programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from switchrail._core import LINEAR_OPS, PHASES
from switchrail.errors import ConfigError
from switchrail.files import check_file
from switchrail.nearest import nearest
from switchrail.variables import POLICY, blamed_on

TABLES: Final = {"backends": "a name or a list of names", "deny": "a list of names"}
"""The tables with preferences, and the valid values in them."""

CONFIG: Final = "config.OP.NAME"
"""The tables with values for a backend's configuration."""


def _read_toml(file: Path) -> dict[str, Any]:
    """The contents of a TOML file.

    Raises:
        ConfigError: The file can't be read.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]
    try:
        check_file(file)
        tables: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} can't be read: {error}", path=str(file)) from error
    return tables


def read_tables(file: Path, *more: str) -> dict[str, Any]:
    """The tables of a file with preferences and configurations.

    Args:
        file: The file.
        *more: The names of further valid tables.

    Raises:
        ConfigError: The file can't be read, has an unknown table, or a value in place of a table.
    """
    valid = {**{name: name for name in TABLES}, "config": CONFIG, **{name: name for name in more}}
    tables = _read_toml(file)
    for name, table in tables.items():
        if name not in valid:
            names, hint = nearest(name, valid)
            raise ConfigError(
                f"{file} has {name!r}{hint}; valid: {', '.join(f'[{one}]' for one in valid.values())}",
                path=str(file),
                found=name,
                valid=tuple(valid),
                nearest=names,
            )
        _check_tables(file, name, table, depth=1 + valid[name].count("."))
    return tables


def _check_tables(file: Path, name: str, table: object, depth: int) -> None:
    if not isinstance(table, dict):
        raise ConfigError(f"{file} has {table!r} for {name}; valid: a table", path=str(file), found=name)
    if depth > 1:
        for key, inner in table.items():
            _check_tables(file, f"{name}.{key}", inner, depth - 1)


def preferences_of(file: Path, tables: Mapping[str, Any]) -> dict[str, str]:
    """The preferences in the tables `backends` and `deny`. Their keys and names are not checked here.

    Args:
        file: The file, for messages.
        tables: Its contents; other tables are not read.

    Raises:
        ConfigError: A table has an invalid value.
    """
    found: dict[str, list[str]] = {}
    for name in TABLES:
        table = tables.get(name, {})
        for key, value in table.items():
            names = [value] if isinstance(value, str) and name == "backends" else value
            if not isinstance(names, list) or not all(_is_name(one) for one in names):
                raise ConfigError(
                    f"{file} has {value!r} for {name}.{key}; valid: {TABLES[name]}, and quotes around a key "
                    'with a dot, such as "linear.decode" = "torch"',
                    path=str(file),
                    found=key,
                )
            found.setdefault(key, []).extend(f"!{one}" if name == "deny" else one for one in names)
    # A single name is a demand: it is an error if that backend does not fit. After a list, even of one name,
    # `auto` lets another backend serve if none of the list fits.
    for key, value in tables.get("backends", {}).items():
        if isinstance(value, list) and "auto" not in value:
            found[key].append("auto")
    return {key: ", ".join(names) for key, names in found.items() if names}


def choices_of(preferences: Mapping[str, str]) -> dict[str, str]:
    """The preferences without the denied names."""
    wanted = {key: [one for one in _names(value) if one[:1] != "!"] for key, value in preferences.items()}
    return {key: ", ".join(names) for key, names in wanted.items() if names}


def denials_of(preferences: Mapping[str, str]) -> dict[str, list[str]]:
    """The denied names of preferences, each after a `!`, by key."""
    denied = {key: [one for one in _names(value) if one[:1] == "!"] for key, value in preferences.items()}
    return {key: names for key, names in denied.items() if names}


def with_denials(choices: Mapping[str, str], *others: Mapping[str, str]) -> dict[str, str]:
    """The choices, with the denied names of other preferences added."""
    found = {key: [value] for key, value in choices.items()}
    for other in others:
        for key, denied in denials_of(other).items():
            found.setdefault(key, []).extend(denied)
    return {key: ", ".join(values) for key, values in found.items()}


def _names(value: str) -> list[str]:
    return [name.strip() for name in value.split(",")]


def _is_name(found: object) -> bool:
    return isinstance(found, str) and found != "" and not set(found) & set(",!")


@dataclass(frozen=True, slots=True)
class Policy:
    """The contents of the file that `SWITCHRAIL_POLICY` names; empty if the variable is unset.

    Attributes:
        preferences: The chosen and the denied names, by key.
        config: Values for the backends' configurations, by op and backend name.
    """

    preferences: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    def completed(self, preferences: Mapping[str, str] | None) -> dict[str, str]:
        """A program's preferences, with the policy's added where the program has none.

        The policy's denials always apply.
        """
        given = preferences or {}
        own = choices_of(given)
        return with_denials(_remaining(choices_of(self.preferences), own) | own, given, self.preferences)


def read_policy() -> Policy:
    """Reads the file that `SWITCHRAIL_POLICY` names.

    Raises:
        ConfigError: The file can't be read or is invalid.
    """
    named = os.environ.get(POLICY)
    if not named:
        return Policy()
    file = Path(named)
    with blamed_on(POLICY, ConfigError):
        tables = read_tables(file)
        config = tables.get("config", {})
        return Policy(
            preferences_of(file, tables),
            {(op, name): values for op, backends in config.items() for name, values in backends.items()},
        )


def _remaining(policy: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, str]:
    """The policy's choices, without the ops and phases for which the program chose a backend."""
    remaining: dict[str, str] = {}
    for key, value in policy.items():
        op, _, phase = key.partition(".")
        scopes = (op, "linear") if op in LINEAR_OPS else (op,)
        taken = {one for one in PHASES if any(s in chosen or f"{s}.{one}" in chosen for s in scopes)}
        if phase not in taken and (phase or not taken):
            remaining[key] = value
        elif not phase:
            open_keys = (f"{op}.{one}" for one in PHASES if one not in taken)
            remaining |= {one: value for one in open_keys if one not in policy}
    return remaining
