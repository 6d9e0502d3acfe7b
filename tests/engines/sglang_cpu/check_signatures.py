"""The stand-ins for SGLang in `tests/sglang_bridge` have the signatures of its functions and methods."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path

import pytest

STANDINS = Path(__file__).parents[2] / "sglang_bridge/standins"
MODULES = (".in_proj", ".out_proj", ".norm")
"""Attributes that are modules in SGLang, and methods in the stand-ins."""
FILES = sorted(file for part in ("common", "v23") for file in STANDINS.glob(f"{part}/sglang/**/*.py"))


SHARED = tuple(STANDINS / f"v23/standin_{name}.py" for name in ("conv", "delta"))
"""The classes from which stand-ins inherit."""
OWN = ("standin", *(file.stem for file in SHARED))
"""The names under which `load` imports the stand-ins."""


def load(name, file):
    """Import a file of the stand-ins under a name of its own, beside the real SGLang."""
    spec = importlib.util.spec_from_file_location(name, file)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def functions(module):
    """The functions of a stand-in and the methods of its classes, inherited ones too, by dotted name."""
    for name, value in inspect.getmembers(module):
        if getattr(value, "__module__", None) != "standin":
            continue
        if inspect.isfunction(value):
            yield name, value
        for inner, method in inspect.getmembers(value) if inspect.isclass(value) else ():
            function = getattr(method, "__func__", method)
            if inspect.isfunction(function) and function.__module__ in OWN:
                yield f"{name}.{inner}", method


def shape(function):
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


def text(parameters):
    """The parameters with their defaults as text, since the same enum member of two modules is not equal."""
    return [(name, kind, str(default)) for name, kind, default in parameters]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_signatures(file):
    name = ".".join(file.relative_to(STANDINS).with_suffix("").parts[1:])
    for shared in SHARED:
        load(shared.stem, shared)
    standin = load("standin", file)
    real = importlib.import_module(name)
    for path, function in functions(standin):
        if path.endswith(MODULES):
            continue
        found = real
        for part in path.split("."):
            found = getattr(found, part)
        wanted, have = text(shape(found)), text(shape(function))
        if path.endswith("__init__"):  # a stand-in may lack the last parameters
            wanted = wanted[: len(have)]
        assert have == wanted, path


def test_there_are_standins():
    assert len(FILES) > 5
