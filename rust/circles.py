"""Checks that the Rust modules of each folder have no circular dependency; a subfolder counts as one module.

python rust/circles.py
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

Module = tuple[str, ...]

COMMENTS_TEXTS_TESTS = re.compile(r'//[^\n]*|"(?:[^"\\]|\\.)*"|#\[cfg\(test\)\]\s*mod tests.*', re.DOTALL)
NAME = re.compile(
    r"^pub(?:\([a-z]+\))? (?:const |unsafe )*(?:struct|enum|fn|trait|type|const|static) (\w+)"
    r"|^macro_rules! (\w+)|^(?:mirror|names)! \{[^}]*?^    (?:pub )?(\w+)[(,]",
    re.MULTILINE,
)
# A private `use`, or a path within a line. `pub use` only re-exports a name, so it makes no dependency.
REFERENCE = re.compile(r"(?<!pub )(?<!\) )\b(crate|super)::(\{[^;]*|(?:\w+::)*\{[^;]*|[\w:]+)")


def circles(source: Path) -> Iterator[list[str]]:
    """For each folder with circular dependencies, one of them, as a list of module names."""
    texts: dict[Module, str] = {}
    for path in source.rglob("*.rs"):
        parts = path.relative_to(source).with_suffix("").parts
        module = parts[:-1] if parts[-1] in ("lib", "mod") else parts
        texts[module] = COMMENTS_TEXTS_TESTS.sub("", path.read_text("utf-8"))
    homes = {
        name: module
        for module, text in texts.items()
        for found in NAME.findall(text)
        for name in found
        if name
    }
    arrows: dict[Module, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, text in texts.items():
        for start, path in REFERENCE.findall(text):
            folder = () if start == "crate" else module[:-1]
            for name in re.findall(r"(?<!\w::)\b\w+", path):
                home = (*folder, name) if (*folder, name) in texts else homes.get(name, module)
                depth = next((i for i, (a, b) in enumerate(zip(module, home, strict=False)) if a != b), None)
                if depth is not None:
                    arrows[module[:depth]][module[depth]].add(home[depth])
    for folder in arrows.values():
        try:
            TopologicalSorter(folder).prepare()
        except CycleError as error:
            yield error.args[1]


def main() -> int:
    """Prints the circular dependencies; returns 1 if there are any."""
    found = [
        f"{crate.parent.name}: {' <- '.join(circle)}"
        for crate in sorted(Path(__file__).parent.glob("*/src"))
        for circle in circles(crate)
    ]
    print(*found, f"{len(found)} circles", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
