"""Adds the toy op of CONTRIBUTING.md to a copy of this repository: `make toy-op`.

In CONTRIBUTING.md, a code block below a path is the content of that file, or a `diff` to apply to it. The
script writes these files, compiles the core, and runs `CHECKS` and the commands of the last block. It fails
if a command fails, if the files that changed are not exactly the files named there, or if they are more than
`MOST_FILES`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
MOST_FILES = 8
CHECKS = (
    ["ruff", "check"],
    ["ruff", "format", "--check"],
    ["mypy"],
    ["pytest", "-q", "tests/ops", "tests/kernels", "-k", "ema and not remainder and not up_to_date"],
)
"""Commands that must succeed with the new op; pytest runs the new op's cases only."""


def section() -> tuple[list[tuple[str, str, str]], str]:
    """Reads CONTRIBUTING.md: the path, language and text of each change, and the shell commands."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    text = re.split(r"^## ", text.partition("\n## Adding an op\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    changes = re.findall(r"`([\w./]+)`:\n\n```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return changes, commands


def main() -> None:
    """Copy the repository to `target/toy-op`, add the op to the copy, and run all commands there."""
    copy = ROOT / "target" / "toy-op"
    shutil.rmtree(copy, ignore_errors=True)
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target" / "maturin")),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{copy / 'python'}{os.pathsep}{copy / 'kernels'}",
        "VIRTUAL_ENV": str(BIN.parent),
    }

    def run(*command: str, text: str | None = None) -> str:
        print("+", *command, flush=True)
        done = subprocess.run(
            command, cwd=copy, env=environment, input=text, stdout=subprocess.PIPE, text=True
        )
        print(done.stdout[-4000:], flush=True)
        if done.returncode:
            raise SystemExit(f"{command[0]} ended with status {done.returncode}")
        return done.stdout

    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.split(b"\0"):
        source = ROOT / os.fsdecode(name)
        if name and source.is_file():
            target = copy / os.fsdecode(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    run("git", "init", "--quiet")
    run("git", "add", "--all")

    changes, commands = section()
    for path, language, text in changes:
        if language == "diff":
            run("git", "apply", "--recount", "-", text=f"--- a/{path}\n+++ b/{path}\n{text}")
        else:
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_text(text, "utf-8")
    touched = run("git", "ls-files", "--modified", "--others", "--exclude-standard").splitlines()
    if sorted(touched) != sorted(path for path, _, _ in changes) or len(touched) > MOST_FILES:
        raise SystemExit(
            f"changed: {', '.join(touched)}; expected: the files in CONTRIBUTING.md, at most {MOST_FILES}"
        )

    run("maturin", "build", "--release", "--quiet", "--out", "target/wheels")
    (wheel,) = copy.glob("target/wheels/*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract("switchrail/_core.abi3.so", copy / "python")
    for check in CHECKS:
        run(*check)
    if "ema" not in run("python", "-c", "import switchrail._core as core; print(core.OPS)"):
        raise SystemExit(
            "`switchrail._core` has no op `ema`: the copy's core was not imported, or lacks the op"
        )
    run("sh", "-ec", commands)
    print(f"{len(touched)} files touched: {', '.join(touched)}")


if __name__ == "__main__":
    main()
