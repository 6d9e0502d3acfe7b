"""Writes the King James Bible as plain text, from the Debian packages `bible-kjv` and `bible-kjv-text`.

    apt-get install bible-kjv
    python training/extract_kjv.py kjv.txt

Each verse is a line without its number. Chapters are separated by an empty line and have no headings.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

VERSE = re.compile(r"\s+(\d+) (\S.*)")
CHAPTERS, VERSES = 1_189, 31_102


def chapters(listing: str) -> list[list[str]]:
    """Splits the output of the `bible` program into chapters of verses.

    Args:
        listing: The output. Before each chapter are an empty line, a heading and another empty line. Each
            verse is a line ` NUMBER TEXT`.

    Returns:
        The verses' text, chapter by chapter, in the order of the listing.

    Raises:
        ValueError: A verse's number does not follow from the one before.
    """
    found: list[list[str]] = []
    for line in listing.splitlines():
        match = VERSE.fullmatch(line)
        if match is None:
            continue
        number, text = int(match[1]), match[2].strip()
        if number == 1:
            found.append([])
        if not found or number != len(found[-1]) + 1:
            raise ValueError(
                f"verse {number} does not follow in chapter {len(found)} of the listing: {line!r}"
            )
        found[-1].append(text)
    return found


def main() -> None:
    """Runs `bible` for the whole text and writes the result to the given file."""
    parser = argparse.ArgumentParser(description="Write the King James Bible as plain text.")
    parser.add_argument("output", type=Path)
    output: Path = parser.parse_args().output
    listing = subprocess.run(
        ["bible", "-l0", "Gen1:1-Rev22:21"],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    ).stdout
    found = chapters(listing)
    verses = sum(map(len, found))
    if (len(found), verses) != (CHAPTERS, VERSES):
        raise SystemExit(
            f"found {len(found)} chapters and {verses} verses; the whole text has {CHAPTERS} and {VERSES}"
        )
    output.write_text("\n\n".join("\n".join(chapter) for chapter in found) + "\n", encoding="utf-8")
    print(f"{output}: {len(found)} chapters, {verses} verses, {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
