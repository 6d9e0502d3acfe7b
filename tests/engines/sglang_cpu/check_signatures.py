"""The stand-ins of `make test` have the signatures of SGLang's functions and methods."""

import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest

STANDINS = Path(__file__).parents[2] / "sglang_bridge/standins"
MODULES = (".in_proj", ".out_proj", ".norm")
"""Attributes that are modules in SGLang, and methods in the stand-ins."""
FILES = sorted(file for part in ("common", "v23") for file in STANDINS.glob(f"{part}/sglang/**/*.py"))


def functions(owner, module):
    """The functions and methods that a module or one of its classes defines, by dotted name."""
    for name, value in vars(owner).items():
        if isinstance(value, type) and value.__module__ == module:
            for inner, function in functions(value, module):
                yield f"{name}.{inner}", function
        function = value.__func__ if isinstance(value, classmethod) else value
        if inspect.isfunction(function) and function.__module__ == module:
            yield name, getattr(owner, name)


def shape(function):
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


def text(parameters):
    """A default's text, since equal enum members of two modules are not equal."""
    return [(name, kind, str(default)) for name, kind, default in parameters]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_signatures(file):
    name = ".".join(file.relative_to(STANDINS).with_suffix("").parts[1:])
    spec = importlib.util.spec_from_file_location("standin", file)
    standin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(standin)
    real = importlib.import_module(name)
    for path, function in functions(standin, "standin"):
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
