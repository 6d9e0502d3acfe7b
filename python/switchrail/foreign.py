"""Foreign text made fit for terminals and logs: names and versions of metadata, exceptions, model output.

Control characters could move the cursor, erase a line or change what the terminal does next; marks of text
direction could show a name in another order. Both are shown as Python escapes them in a string.
What is longer than its limit is cut, and says how much is missing.
"""

from __future__ import annotations

import re

LINE = 2_000
"""The most characters of a text that is shown in one line."""

LINES = 20_000
"""The most characters of a text that is shown in several lines."""

# DEL, C1; marks, embeddings, overrides and isolates of direction; separators of lines and paragraphs: as in
# the core's `shown`. And lone surrogates, which no terminal's encoding has.
_OTHERS = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[\x00-\x1f{_OTHERS}]")
_CONTROL_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f{_OTHERS}]")

_NOTHING = re.compile("(?!)")


def one_line(text: object) -> str:
    """A text in one line of at most `LINE` characters: its line ends are escaped too."""
    return _shown(str(text), _CONTROL, LINE)


def in_lines(text: object) -> str:
    """A text of at most `LINES` characters that keeps its line ends and tabs."""
    return _shown(str(text), _CONTROL_IN_LINES, LINES)


def cut(text: str) -> str:
    """A text as it is, at most `LINES` characters of it, to be kept."""
    return _shown(text, _NOTHING, LINES)


def encodable(text: str) -> str:
    """A text without lone surrogates, which messages and file names may have."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def escaped(text: str) -> str:
    """A whole text, with its line ends and tabs."""
    return _CONTROL_IN_LINES.sub(_escape, text)


def json_escaped(document: str) -> str:
    """A JSON document in which every control character is escaped as JSON has it; it means the same."""
    return _CONTROL_IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _shown(text: str, control: re.Pattern[str], limit: int) -> str:
    start = control.sub(_escape, text[:limit])
    if len(text) <= limit and len(start) <= limit:
        return start
    # The note about the cut fits in the limit too, so that a text which was cut is not cut again.
    room = limit - len(f"… ({len(text):,} more characters)")
    kept, length = 0, 0
    for character in text[:room]:
        length += len(control.sub(_escape, character))
        if length > room:
            break
        kept += 1
    return f"{control.sub(_escape, text[:kept])}… ({len(text) - kept:,} more characters)"


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
