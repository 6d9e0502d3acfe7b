"""Everything specific to an op is in its definition, not in the tuner."""

import ast
from pathlib import Path

import switchrail.tune
from switchrail.ops.catalog import DEFINITIONS


def test_the_tuner_names_no_op():
    files = sorted(Path(switchrail.tune.__file__).parent.glob("*.py"))
    named = {
        f"{file.name}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in list(DEFINITIONS)
    }
    assert len(files) > 4
    assert not named


def test_latents_are_expanded_in_prefill_and_weights_absorbed_after_it():
    served = DEFINITIONS["mla"].served
    assert served("prefill") == {"nope_size": 128, "value_size": 128}
    assert served("decode") == served("verify") == {"absorbed": True}
    assert DEFINITIONS["attention"].served("decode") == {}
