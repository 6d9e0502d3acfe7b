"""Environment variables with invalid values: errors that name the variable, and no hang."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from switchrail import Runtime
from switchrail.cli.app import app
from switchrail.errors import (
    ConfigError,
    LockError,
    PlatformError,
    SwitchrailError,
    TimesError,
    UnknownPluginError,
)
from switchrail.variables import VARIABLES
from typer.testing import CliRunner

FILES: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to itself": lambda file: file.symlink_to(file.name),
    "3 GB": lambda file: (file.touch(), os.truncate(file, 3 << 30)),
    "half an object": lambda file: file.write_text('{"schema": '),
    "JSON without end": lambda file: file.write_text("[" * 200_000),
    "a list": lambda file: file.write_text("[1]"),
    "null": lambda file: file.write_text("null"),
    "no text": lambda file: file.write_bytes(b"\xff\xfe{}"),
    "nothing": lambda file: file.write_text(""),
    "another schema": lambda file: file.write_text('{"schema": 99}'),
}


def ask_times(runtime: Runtime) -> object:
    return runtime.resolve("attention", "decode", device=runtime.find_platform("cpu"), dtype="float32")


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize(
    ("variable", "ask", "error"),
    [("SWITCHRAIL_LOCK", Runtime.load, LockError), ("SWITCHRAIL_TIMES", ask_times, TimesError)],
)
def test_an_unusable_file_is_refused(
    variable: str,
    ask: Callable[[Runtime], object],
    error: type[SwitchrailError],
    what: str,
    tmp_path: Path,
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "file"
    FILES[what](file)
    monkeypatch.setenv(variable, str(file))
    with pytest.raises(error, match=f"^{variable} is '{file}': ") as caught:
        ask(runtime)
    assert str(file) in str(caught.value.fields["path"])
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert variable in result.stdout


@pytest.mark.parametrize(
    ("variable", "value", "ask", "error"),
    [
        ("SWITCHRAIL_LOCK", "", Runtime.load, LockError),
        ("SWITCHRAIL_LOCK", "/nowhere/at/all", Runtime.load, LockError),
        ("SWITCHRAIL_LOCK", "x" * 5000, Runtime.load, LockError),
        ("SWITCHRAIL_TIMES", "x" * 5000, ask_times, TimesError),
        ("SWITCHRAIL_PLATFORM", "nope", Runtime.load, PlatformError),
        ("SWITCHRAIL_PLATFORM", "nope", lambda runtime: runtime.platform, PlatformError),
        ("SWITCHRAIL_PLATFORM", "CPU", lambda runtime: runtime.platform, PlatformError),
        ("SWITCHRAIL_PLATFORM", "tpu", lambda runtime: runtime.platform, PlatformError),
        ("SWITCHRAIL_PLATFORM", "cpu:7", lambda runtime: runtime.platform, PlatformError),
        ("SWITCHRAIL_PLATFORM", "\x1b[2J", lambda runtime: runtime.platform, PlatformError),
        ("SWITCHRAIL_PLUGINS", "nope", Runtime.load, UnknownPluginError),
        ("SWITCHRAIL_PLUGINS", "nope", lambda runtime: runtime.platform, UnknownPluginError),
        ("SWITCHRAIL_PLUGINS", "*", Runtime.load, UnknownPluginError),
        ("SWITCHRAIL_PLUGINS", "x" * 5000, Runtime.load, UnknownPluginError),
        ("SWITCHRAIL_LOAD_TIMEOUT", "", Runtime.load, ConfigError),
        ("SWITCHRAIL_LOAD_TIMEOUT", "0", Runtime.load, ConfigError),
        ("SWITCHRAIL_LOAD_TIMEOUT", "nan", Runtime.load, ConfigError),
        ("SWITCHRAIL_LOAD_TIMEOUT", "5s", Runtime.load, ConfigError),
        ("SWITCHRAIL_LOAD_TIMEOUT", "1" * 5000, Runtime.load, ConfigError),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_an_invalid_value_of_a_variable_is_refused(
    variable: str,
    value: str,
    ask: Callable[[Runtime], Any],
    error: type[SwitchrailError],
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert variable in VARIABLES
    monkeypatch.setenv(variable, value)
    with pytest.raises(error, match=f"^{variable} is "):
        ask(runtime)


def test_errors_of_the_programs_values_do_not_name_the_variable(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHRAIL_PLUGINS", "")
    monkeypatch.setenv("SWITCHRAIL_PLATFORM", "cpu")
    with pytest.raises(UnknownPluginError, match=r"^unknown plugin"):
        runtime.load(["nope"])
    with pytest.raises(PlatformError, match=r"^there is no device"):
        runtime.use_platform("tpu")
