"""`rust/circles.py` reports circular references among the modules of a crate, and no other references."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "rust" / "circles.py"


@pytest.fixture(scope="module")
def circles() -> Any:
    spec = importlib.util.spec_from_file_location("circles", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.circles


def write(source: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


SOUND = {
    "lib.rs": "mod a;\nmod b;\npub use a::*;\npub use b::*;\n",
    "a/mod.rs": "mod x;\nmod y;\npub use x::X;\nuse crate::B;\npub struct A(pub X, pub B);\n",
    "a/x.rs": "use super::y;\npub struct X(y::Y);\n",
    "a/y.rs": "//! Not `crate::a::x`.\npub struct Y;\n\n#[cfg(test)]\nmod tests {\n    use crate::A;\n}\n",
    "b.rs": 'pub struct B;\npub const TEXT: &str = "crate::A";\n',
}


@pytest.mark.parametrize(
    ("changed", "members"),
    [
        ({}, set()),
        ({"b.rs": "use crate::{TEXT, A};\npub struct B(Option<A>);\n"}, {"a", "b"}),
        ({"b.rs": "pub struct B;\nfn a() -> crate::a::A {}\n"}, {"a", "b"}),
        ({"a/y.rs": "use super::{x::X as Other};\npub struct Y(Option<Box<Other>>);\n"}, {"x", "y"}),
        ({"a/y.rs": "use crate::X;\npub struct Y;\n"}, {"x", "y"}),
    ],
)
def test_exactly_the_circles_are_found(
    circles: Any, tmp_path: Path, changed: dict[str, str], members: set[str]
) -> None:
    write(tmp_path, SOUND | changed)
    assert {name for circle in circles(tmp_path) for name in circle} == members
