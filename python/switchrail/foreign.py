"""Makes foreign text safe for terminals and logs: names in metadata, exceptions, model output.

Control characters could move the cursor, erase a line or change the terminal's state. Bidirectional marks
could reorder the letters on the screen. Both are shown as Python's string escapes. Text longer than a limit
is cut, and ends with the number of missing characters.
"""

from __future__ import annotations

import re

LINE = 2_000
"""Maximum characters of a text that is shown in one line."""

LINES = 20_000
"""Maximum characters of a text that is shown in several lines."""

# DEL and C1 controls; bidirectional marks, embeddings, overrides and isolates; line and paragraph separators;
# and lone surrogates, which no terminal can encode. The core's `shown` escapes the same characters, except
# lone surrogates, which Rust's strings can't contain.
_OTHERS = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[\x00-\x1f{_OTHERS}]")
_CONTROL_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f{_OTHERS}]")

_NOTHING = re.compile("(?!)")


def one_line(text: object) -> str:
    """The text in one line of at most `LINE` characters; control characters and line ends are escaped."""
    return _shown(str(text), _CONTROL, LINE)


def in_lines(text: object) -> str:
    """The text, escaped except for line ends and tabs, and cut to `LINES` characters."""
    return _shown(str(text), _CONTROL_IN_LINES, LINES)


def cut(text: str) -> str:
    """The text without escaping, cut to `LINES` characters, for storage."""
    return _shown(text, _NOTHING, LINES)


def encodable(text: str) -> str:
    """The text with lone surrogates escaped, for messages and file names."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def escaped(text: str) -> str:
    """The whole text. Line ends and tabs are kept; other control characters are escaped."""
    return _CONTROL_IN_LINES.sub(_escape, text)


def json_escaped(document: str) -> str:
    """An equal JSON document in which all control characters are escaped as in JSON."""
    return _CONTROL_IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _shown(text: str, control: re.Pattern[str], limit: int) -> str:
    start = control.sub(_escape, text[:limit])
    if len(text) <= limit and len(start) <= limit:
        return start
    # The limit includes the note about the cut, so cutting again changes nothing.
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
