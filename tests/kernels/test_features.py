"""A backend's checks accept exactly the features that its registration claims."""

import importlib
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from unittest.mock import MagicMock

import pytest
import switchrail
from switchrail.ops.catalog import DEFINITIONS
from switchrail.ops.contract import Contract
from switchrail.ops.steps import STEPS
from switchrail.testing.inputs import GENERATORS
from switchrail_kernels import BACKENDS

pytest.importorskip("triton")

LIBRARIES = ("cuda", "cutlass", "flash_qla", "flashinfer", "tilelang")
NOT_ARGUMENTS = {"batch_invariant", "cuda_graph", *STEPS}
LENGTHS = {"prefill": [3, 2], "decode": [1, 1], "verify": [3, 2]}
NAMES = [(op, name) for op in DEFINITIONS for name in ("reference", "torch")] + list(BACKENDS)

for folder in DEFINITIONS:  # modules that need no other library are imported once, and stay
    importlib.import_module(f"switchrail_kernels.{folder}.triton")


class Anything(ModuleType):
    """A module of a library that isn't installed."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class Libraries:
    """A finder that creates modules for libraries that aren't installed."""

    def __init__(self):
        self.missing = {name for name in LIBRARIES if importlib.util.find_spec(name) is None}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.missing:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Anything(spec.name)

    def exec_module(self, module):
        pass


class Checked(Exception):
    """Raised when a call reaches its contract check, where the test stops it."""


@pytest.fixture
def runtime(monkeypatch):
    before = set(sys.modules)
    finder = Libraries()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    with switchrail.testing.isolated() as runtime:
        runtime.load()
        yield runtime
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {*finder.missing, "switchrail_kernels"}:
            del sys.modules[name]  # modules made from a missing library


@pytest.fixture
def let_pass(monkeypatch):
    """The features passed to each check of the contract, by the check's name. `check_call` ends the call."""
    told = {"check_batch": [], "check_call": []}
    check_batch = Contract.check_batch

    def note_batch(self, phase, batch, features=()):
        told["check_batch"].append(features)
        check_batch(self, phase, batch, features)

    def note_call(self, call, batch, features=()):
        told["check_call"].append(features)
        raise Checked

    monkeypatch.setattr(Contract, "check_batch", note_batch)
    monkeypatch.setattr(Contract, "check_call", note_call)
    return told


@pytest.mark.parametrize(("op", "name"), NAMES)
def test_checks_accept_the_claimed_features(runtime, let_pass, op, name):
    registration = runtime.backend(op, name)
    claimed = set(registration.capabilities["features"]) - NOT_ARGUMENTS
    contract = DEFINITIONS[op].contract
    assert claimed <= contract.features.keys()
    backend = runtime.build(op, name)
    of_phase = {"prefill": {"checkpoints"}, "verify": {"trees"}, "decode": set()}
    for phase in registration.phases:
        sample = GENERATORS[op](LENGTHS[phase], phase=phase)
        let_pass["check_batch"].clear(), let_pass["check_call"].clear()
        try:
            plan = backend.plan(phase, sample.batch)
        except Exception:
            # the library isn't installed
            assert name not in ("reference", "torch", "triton")
            plan = object()
        with pytest.raises(Checked):
            backend.run(sample.made, sample.batch, plan)
        assert let_pass["check_batch"]
        for features in let_pass["check_batch"]:
            assert set(features) <= claimed
            kinds = of_phase[phase] & contract.batch_features.keys()
            assert kinds & set(features) == kinds & claimed
        [features] = let_pass["check_call"]
        assert type(features) is tuple
        assert len(features) == len(set(features))
        assert set(features) == claimed
