"""Shell completion of arguments."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence
from contextlib import redirect_stdout

from switchrail import _core
from switchrail.errors import SwitchrailError
from switchrail.foreign import one_line

SECONDS = 5.0
"""Time limit for loading each plugin while a shell waits, in seconds."""

_key = ""
"""The KEY in the `KEY=NAME` to complete, if bash passes only the NAME; see `join_words`."""


def join_words(environment: MutableMapping[str, str]) -> None:
    """Corrects the variables that bash passes to a completion: joins words that bash split at equals signs.

    Of the word at the cursor, only the part after the last equals sign stays: bash completes only this part.
    """
    global _key
    count = environment.get("COMP_CWORD", "")
    if not count.isdecimal():
        return
    words: list[str] = []
    for word in environment.get("COMP_WORDS", "").split("\n")[: int(count) + 1]:
        if words and (word == "=" or words[-1].endswith("=")):
            words[-1] += word
        else:
            words.append(word)
    head, _, name = words.pop().rpartition("=")
    option, _, key = head.partition("=") if head.startswith("--") else ("", "", head)
    _key = key
    words += [*([option] if option else []), name]
    environment["COMP_WORDS"], environment["COMP_CWORD"] = "\n".join(words), str(len(words) - 1)


def backend_choices(incomplete: str) -> list[str]:
    """Completes `--backend`: first with `KEY=`, then with the names of the backends for the key's ops."""
    given, equals, _ = incomplete.rpartition("=")
    key = given or _key
    if not key:
        return [f"{op}{phase}=" for op in (*_core.OPS, "linear") for phase in ("", *_PHASES)]
    op = key.partition(".")[0]
    names = _names(_core.LINEAR_OPS if op == "linear" else (op,))
    return [f"{given}{equals}{name}" for name in ("auto", *names)]


def backend_names() -> list[str]:
    """The names of the registered backends."""
    return _names(_core.OPS)


def ops() -> list[str]:
    """The names of the ops."""
    return list(_core.OPS)


def phases() -> list[str]:
    """The names of the phases."""
    return list(_core.PHASES)


def dtypes() -> list[str]:
    """The names of the dtypes in which a model can run."""
    from switchrail.engine.dtypes import DTYPES

    return list(DTYPES)


def devices() -> list[str]:
    """The built-in device kinds, and the names of the installed platform plugins."""
    from switchrail.platforms.builtin import KINDS
    from switchrail.plugins.environment import PLATFORMS
    from switchrail.runtime import Runtime

    return [*KINDS, *(one_line(plugin.name) for plugin in Runtime().discover() if plugin.group == PLATFORMS)]


_PHASES = tuple(f".{phase}" for phase in _core.PHASES)


def _names(of: Sequence[str]) -> list[str]:
    from switchrail.current import current_runtime

    runtime = current_runtime()
    try:
        with redirect_stdout(sys.__stdout__):  # the shell reads the completions from `sys.stdout`
            runtime.load(timeout=SECONDS)
        return sorted({one_line(backend.name) for op in of for backend in runtime.backends(op)})
    except SwitchrailError:  # the command itself will report it
        return []
