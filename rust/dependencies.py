"""Checks the licences, sources and version requirements of the crates in Cargo.lock against deny.toml.

Reads `cargo metadata`, so nothing has to be built. `cargo deny check licenses bans sources` reads the same
deny.toml and checks more, but cargo-deny takes many minutes to compile.

    python rust/dependencies.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def permits(expression: str, allowed: Collection[str]) -> bool:
    """Whether allowed licences satisfy an SPDX licence expression; `/` is an old form of `OR`.

    Raises:
        ValueError: `expression` is not an SPDX licence expression.
    """
    tokens = re.findall(r"[()/]|[^\s()/]+", expression)

    def either() -> bool:
        value = both()
        while tokens and tokens[0] in ("OR", "/"):
            tokens.pop(0)
            value = both() or value
        return value

    def both() -> bool:
        value = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            value = one() and value
        return value

    def one() -> bool:
        first = tokens.pop(0) if tokens else ")"
        if first == "(":
            value = either()
            if not tokens or tokens.pop(0) != ")":
                raise ValueError(f"a parenthesis is open in {expression!r}")
            return value
        if first in (")", "/", "AND", "OR", "WITH"):
            raise ValueError(f"a licence is missing in {expression!r}")
        if tokens and tokens[0] == "WITH":
            first = " ".join([first, *(tokens.pop(0) for _ in tokens[:2])])
        return first in allowed

    value = either()
    if tokens:
        raise ValueError(f"{' '.join(tokens)!r} is too much in {expression!r}")
    return value


def problems(packages: Collection[Mapping[str, Any]], allowed: Collection[str]) -> Iterator[str]:
    """Problems with the packages of `cargo metadata`, one line each."""
    for package in packages:
        name = f"{package['name']} {package['version']}"
        if not package["license"]:
            yield f"{name}: it states no licence"
        elif not permits(package["license"], allowed):
            yield f"{name}: its licence is {package['license']}; allowed: {', '.join(sorted(allowed))}"
        if package["source"] not in (None, CRATES_IO):
            yield f"{name}: it comes from {package['source']}; allowed: crates.io"
        for other in package["dependencies"]:
            if other["req"] == "*" and "path" not in other:
                yield f"{name}: it accepts any version of {other['name']}"


def main() -> int:
    """Prints problems, and crates with several versions; returns 1 if there are problems."""
    policy = tomllib.loads((ROOT / "deny.toml").read_text())
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]
    answer = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    packages = json.loads(answer.stdout)["packages"]
    versions = defaultdict(list)
    for package in packages:
        versions[package["name"]].append(package["version"])
    for name, several in versions.items():
        if len(several) > 1:
            print(f"note: there are several versions of {name}: {', '.join(several)}")
    found = list(problems(packages, policy["licenses"]["allow"]))
    print(*found, f"{len(packages)} crates, {len(found)} problems", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
