"""Every op of the core has a definition, whose parts exist, agree with each other, and are imported on first
use."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import switchrail.ops
from switchrail._core import OPS
from switchrail.ops.catalog import CONTRACTS, DEFINITIONS
from switchrail.testing.conformance.checks import CHECKS

EACH = pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=list(DEFINITIONS))


def test_folders_and_definitions_are_those_of_the_cores_ops():
    folders = {path.parent.name for path in Path(switchrail.ops.__file__).parent.glob("*/contract.py")}
    assert folders == set(OPS)
    assert [definition.op for definition in DEFINITIONS.values()] == list(CONTRACTS) == list(OPS)


def test_the_table_of_definitions_imports_none_of_their_parts():
    code = (
        "import sys, switchrail.ops.catalog\n"
        "parts = ('contract', 'inputs', 'reference', 'torch')\n"
        "print([name for name in sys.modules if name == 'torch' or name.split('.')[-1] in parts])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@EACH
def test_parts_of_a_definition_belong_to_its_op(definition):
    assert definition.contract.op == definition.op
    for backend in (definition.reference, definition.torch):
        assert issubclass(backend, definition.interface)
    for part, found in (("Backend", definition.interface), ("Call", definition.contract.call)):
        assert getattr(switchrail.ops, f"{definition.stem}{part}") is found


@EACH
def test_arguments_and_sizes_are_of_the_contracts_axes(definition):
    axes = {axis for spec in definition.contract.tensors.values() for axis, _ in spec.parsed_axes}
    assert set(definition.arguments) <= axes
    # `kda`'s generator passes its arguments to that of `gated_delta`
    generator = DEFINITIONS["gated_delta"].generator if definition.op == "kda" else definition.generator
    assert set(definition.arguments.values()) <= set(inspect.signature(generator).parameters)
    for sizes in definition.sizes:
        assert set(sizes) <= axes
        wanted = {axis for axis in (*(definition.head_size or ()), *(definition.heads or ())) if axis}
        assert wanted <= set(sizes)
        named = {
            definition.arguments[axis]: size for axis, size in sizes.items() if axis in definition.arguments
        }
        assert definition.generated(sizes) == named


def test_the_missing_part_of_a_sum_is_the_remainder():
    assert DEFINITIONS["mla"].generated({"L": 576, "R": 512}) == {"latent_size": 512, "rope_size": 64}
    assert not DEFINITIONS["mla"].has_head_size(512, 576)
    assert not DEFINITIONS["attention"].has_head_size(64, 128)
    assert not DEFINITIONS["short_conv"].has_head_size(64, 64)
    assert DEFINITIONS["mamba2"].has_head_size(64, 128)


@EACH
def test_scenarios_of_an_op_are_among_its_checks_and_no_name_is_used_twice(definition):
    names = [check.name for check in CHECKS if definition.op in check.ops]
    assert {scenario.name for scenario in definition.scenarios} <= set(names)
    for phase in ("prefill", "decode", "verify"):
        of_phase = [c.name for c in CHECKS if definition.op in c.ops and phase in c.phases]
        assert len(of_phase) == len(set(of_phase))
