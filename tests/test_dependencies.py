"""The check of the crates' dependencies finds the problems that it should find."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ALLOWED = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"}


@pytest.fixture(scope="module")
def dependencies() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "dependencies", Path(__file__).parents[1] / "rust" / "dependencies.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("expression", "permitted"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only/MIT", True),
        ("Unlicense / LGPL-2.1", False),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND Unicode-3.0", True),
        ("(MIT OR Apache-2.0) AND Zlib", False),
        ("GPL-3.0-only AND Zlib OR MIT", True),
        ("Zlib OR MIT AND GPL-3.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("MIT WITH LLVM-exception", False),
        ("GPL-2.0 WITH Classpath-exception-2.0 OR Apache-2.0", True),
    ],
)
def test_licence_expressions(dependencies: ModuleType, expression: str, permitted: bool) -> None:
    assert dependencies.permits(expression, ALLOWED) is permitted


@pytest.mark.parametrize(
    "expression", ["", "MIT OR", "OR MIT", "(MIT", "MIT)", "MIT Apache-2.0", "MIT AND AND MIT"]
)
def test_invalid_licence_expressions(dependencies: ModuleType, expression: str) -> None:
    with pytest.raises(ValueError, match=r"missing|open|too much"):
        dependencies.permits(expression, ALLOWED)


def test_problems_are_named(dependencies: ModuleType) -> None:
    def package(name: str, **other: Any) -> dict[str, Any]:
        sound = {"name": name, "version": "1.2.0", "license": "MIT", "dependencies": []}
        return sound | {"source": dependencies.CRATES_IO} | other

    packages = [
        package(
            "sound", dependencies=[{"name": "own", "req": "*", "path": "/own"}, {"name": "b", "req": "^1"}]
        ),
        package("own", source=None),
        package("unnamed", license=None),
        package("copyleft", license="GPL-3.0-only"),
        package("elsewhere", source="git+https://example.org/elsewhere"),
        package("loose", dependencies=[{"name": "any", "req": "*"}]),
    ]
    assert list(dependencies.problems(packages, ["MIT", "Zlib"])) == [
        "unnamed 1.2.0: it states no licence",
        "copyleft 1.2.0: its licence is GPL-3.0-only; allowed: MIT, Zlib",
        "elsewhere 1.2.0: it comes from git+https://example.org/elsewhere; allowed: crates.io",
        "loose 1.2.0: it accepts any version of any",
    ]
