from __future__ import annotations

import builtins
import pickle
import re
from pathlib import Path

import pytest
from switchrail import errors
from switchrail.errors import SwitchrailError

RUST = Path(__file__).parents[2] / "rust"
CLASSES = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, SwitchrailError)
]


def test_each_error_is_a_built_in_one_too() -> None:
    assert len(CLASSES) > 20
    for cls in CLASSES:
        if cls is SwitchrailError:
            continue
        bases = [base for base in cls.__mro__ if vars(builtins).get(base.__name__) is base]
        assert bases[0] not in (Exception, BaseException, object), cls


@pytest.mark.parametrize("cls", CLASSES)
def test_message_and_fields_survive_pickling(cls: type[SwitchrailError]) -> None:
    error = cls("no such thing", found="tritn", valid=("torch", "triton"), nearest=("triton",))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == copy.message == "no such thing"
    assert (copy.found, copy.valid, copy.nearest) == ("tritn", ("torch", "triton"), ("triton",))
    assert copy.fields == error.fields


def test_fields_that_were_not_given_are_empty() -> None:
    error = errors.UnknownBackendError("gone")
    assert (error.valid, error.nearest, error.fields) == ((), (), {})


def test_every_code_of_the_core_has_its_class() -> None:
    codes = set()
    for source in (RUST / "switchrail" / "src").rglob("*.rs"):
        text = source.read_text()
        for body in re.findall(r"fn code\(&self\) -> &'static str \{(.*?)\n    \}", text, re.DOTALL):
            codes |= set(re.findall(r'"([a-z_]+)"', body))
        for body in re.findall(r"^core_error!.*?^\}", text, re.DOTALL | re.MULTILINE):
            codes |= set(re.findall(r'=>\s*"([a-z_]+)"', body))
    table = (
        (RUST / "switchrail-py" / "src" / "errors.rs").read_text().split("fn class_of")[1].split("_ =>")[0]
    )
    assert len(codes) >= 35
    assert set(re.findall(r'"([a-z_]+)"', table)) == codes
    names = set(re.findall(r'"([A-Z]\w+)"', table))
    assert names <= {cls.__name__ for cls in CLASSES}
