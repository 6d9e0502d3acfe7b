"""Prints the results of `importlib.metadata` of the running interpreter.

Each line of standard input is a JSON list of paths. Each line of standard output is the answer: the entry
points of Switchrail's groups, and the version of each distribution; or an exception's text. This script needs
only the standard library.
"""

from __future__ import annotations

import email
import json
import re
import sys
import warnings
from importlib import metadata

GROUPS = ("switchrail.plugins", "switchrail.platforms")

warnings.simplefilter("ignore")


def name_of(distribution: metadata.Distribution) -> str:
    name = distribution.metadata["Name"] or ""  # incomplete metadata has no name
    return re.sub(r"[-_.]+", "-", name).lower()


def target(entry: metadata.EntryPoint) -> tuple[str, list[str]]:
    """An entry point's target and extras; its raw text if importlib can't parse it."""
    if entry.pattern.match(entry.value) is None:
        return entry.value, []
    return (f"{entry.module}:{entry.attr}" if entry.attr else entry.module), list(entry.extras)


def entries() -> list[list[object]]:
    found = []
    for group in GROUPS:
        for entry in metadata.entry_points(group=group):
            distribution = name_of(entry.dist)
            found.append([group, distribution, entry.dist.version, entry.name, *target(entry)])
    return sorted(found, key=repr)


def versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        found.setdefault(name_of(distribution), distribution.version)
    return found


def main() -> None:
    # Import now the modules that are imported on first use; later imports would search the tested paths.
    email.message_from_string("Name: acme").get("Name").encode("cp437")
    given = sys.path[:]
    for line in sys.stdin:
        sys.path[:] = json.loads(line)
        try:
            answer = {"entries": entries(), "versions": versions()}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.path[:] = given
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
