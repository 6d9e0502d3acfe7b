"""docs/plugins.md works: all its files are written, and all its commands run in a new virtual environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes import Helper, command

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "plugins.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", DOCUMENT.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with its output."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def matches(expected: str, printed: str) -> bool:
    """Whether an output matches the document. `...` matches anything, and blanks at line ends are ignored."""
    lines = [line.rstrip() for line in expected.strip().splitlines()]
    pattern = ".*".join(re.escape(part) for part in "\n".join(lines).split("..."))
    found = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return re.fullmatch(pattern, found, re.DOTALL) is not None


PROGRAMS = {
    "switchrail": "from switchrail.cli import main; main()",
    "pytest": "import pytest, sys; sys.exit(pytest.main(['-pno:cacheprovider', '-Wignore', *sys.argv[1:]]))",
}
"""The commands that run in forked processes."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, processes: Helper) -> Iterator[dict[str, str]]:
    """A new virtual environment that includes the packages installed here."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(
        subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    )
    parent = sysconfig.get_path("purelib")
    (site / "parent.pth").write_text(f"import site; site.addsitedir({parent!r})\n")
    pip = folder / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {python} -m pip "$@"\n')
    pip.chmod(0o755)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SWITCHRAIL_", "PYTEST_", "PYTHONPATH"))
    }
    variables = inherited | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "CHECKPOINT": str(ROOT / "tests" / "checkpoints" / "kjv-qwen3-next"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # "0" makes pip use the installed setuptools for builds
        "PYTHONWARNINGS": "ignore",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    with ExitStack() as stack:
        for name, program in PROGRAMS.items():
            program = f"import site; site.addsitedir({str(site)!r}); {program}"
            stack.enter_context(command(folder / "bin" / name, processes, program))
        yield variables


WAITING = re.compile(r"^waiting for .* has taken \d+ s so far.*\n", re.MULTILINE)
"""Lines that `switchrail` prints only on a slow machine, while it waits for more than a few seconds."""


def test_the_guide_has_all_three_parts() -> None:
    assert {language for language, _ in BLOCKS} == {"toml", "python", "console"}
    assert sum(len(list(commands(block))) for language, block in BLOCKS if language == "console") >= 15


def test_a_backend_is_short() -> None:
    (kernel,) = (block for _, block in BLOCKS if block.startswith("# acme_gdn/kernel.py"))
    _, _, body = kernel.partition("class ")
    assert 20 < body.count("\n") < 40


def test_every_block(environment: dict[str, str], tmp_path: Path) -> None:
    for language, block in BLOCKS:
        if language == "console":
            for command, expected in commands(block):
                done = subprocess.run(
                    command,
                    shell=True,
                    cwd=tmp_path,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}"
                found = WAITING.sub("", done.stdout)
                assert matches(expected, found), f"{command}\n{found}\nis not\n{expected}"
            continue
        head, _, text = block.partition("\n")
        name, _, rest = head.removeprefix("# ").partition(",")
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        assert rest in ("", " appended")
        assert file.exists() == bool(rest), f"{name}: only its first block may create it"
        with file.open("a", encoding="utf-8") as open_file:
            open_file.write(text)


def test_outputs_that_match() -> None:
    assert matches("a ... c\n", "a b\n c  \n")
    assert matches("", " \n")
    assert not matches("a ... c\n", "a b\n d\n")
    assert not matches("", "something\n")
