"""The README's examples print the documented output, and its commands and quotations are right."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from tests.processes import Helper

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", README, re.DOTALL)


def test_the_first_example_ends_before_line_40() -> None:
    assert EXAMPLES
    assert README[: README.index(EXAMPLES[0][1])].count("\n") + EXAMPLES[0][1].count("\n") < 40


@pytest.mark.parametrize(("program", "printed"), EXAMPLES)
def test_example_prints_what_the_readme_shows(processes: Helper, program: str, printed: str) -> None:
    run = processes.run(program, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert [line.rstrip() for line in run.stdout.splitlines()] == printed.splitlines()


def test_the_two_commands_are_make_targets() -> None:
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = set(re.findall(r"^make (\w+)", README, re.MULTILINE))
    assert {"run", "test"} <= shown <= targets


def test_what_transformers_refuses_is_what_the_readme_says(processes: Helper) -> None:
    stated = re.findall(r"`generate_batch` refuses\s+\((\d+\.\d+):\s+`ValueError: ([^`]+)`", README)
    version, refusal = stated[0]
    if not metadata.version("transformers").startswith(f"{version}."):
        pytest.skip(
            f"the README quotes transformers {version}; installed: {metadata.version('transformers')}"
        )
    program = (
        "from transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained('tests/checkpoints/kjv-qwen3-next')\n"
        "model.generate_batch([[1, 2, 3]], max_new_tokens=2)\n"
    )
    run = processes.run(program, cwd=ROOT)
    assert run.stderr.splitlines()[-1] == f"ValueError: {refusal}"
