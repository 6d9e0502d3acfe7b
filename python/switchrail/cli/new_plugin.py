"""`switchrail new-plugin`: writes the folder of a new plugin."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from switchrail import _core
from switchrail.cli import flags
from switchrail.cli.output import say
from switchrail.errors import NewPluginError
from switchrail.runtime import Runtime

_TEMPLATES = files("switchrail.cli") / "templates"

OpOption = Annotated[str, flags.OpOption(help="The op that the plugin's backend computes.")]
PlatformOption = Annotated[
    bool,
    typer.Option("--platform", help="Also add an example of a device family, whose only device is the host."),
]
HookOption = Annotated[bool, typer.Option("--hook", help="Also add a hook.")]
DirectoryOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The new or empty folder to write to; by default ./NAME.")
]


def new_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The distribution's name, such as acme-gdn.")],
    op: OpOption = "gated_delta",
    platform: PlatformOption = False,
    hook: HookOption = False,
    directory: DirectoryOption = None,
) -> None:
    """Write a distribution with a working plugin: a backend, its test, and the files that pip needs."""
    folder = Path(name) if directory is None else directory
    written = write_plugin(folder, name, op=op, platform=platform, hook=hook)
    for file in written:
        say(str(file))
    say(f"next: cd {folder} && pip install --editable . && pytest")


def write_plugin(
    folder: Path, name: str, *, op: str, platform: bool = False, hook: bool = False
) -> list[Path]:
    """Writes a distribution with a plugin.

    Args:
        folder: The folder to write to; it must be empty or not exist yet.
        name: The name for the distribution, the plugin and the backend.
        op: The op that the backend computes.
        platform: Whether to add a device family.
        hook: Whether to add a hook.

    Returns:
        The files that were written.

    Raises:
        NewPluginError: The name is invalid or taken, or the folder is not empty.
        UnknownOpError: There is no such op.
    """
    op = _core.parse_op(op)
    module = _checked(name, op)
    values = _values(name, module, op, platform=platform, hook=hook)
    texts = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{module}/__init__.py": "package.py",
        f"{module}/backend.py": "backend.py",
        "tests/test_plugin.py": "test.py",
    }
    if hook:
        texts[f"{module}/hooks.py"] = "hooks.py"
    if platform:
        texts[f"{module}/platform.py"] = "platform.py"
    documents = {path: _filled(template, values).rstrip("\n") + "\n" for path, template in texts.items()}
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise NewPluginError(f"{folder} already exists; valid: a new or empty folder", found=str(folder))
        for path, text in documents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise NewPluginError(f"{folder} can't be written: {error}", found=str(folder)) from error
    return [folder / path for path in documents]


def _checked(name: str, op: str) -> str:
    """Checks the distribution's name, and returns the name of its module."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise _refused(
            name, "it is not a valid distribution name", "letters, digits, '-', '_' and '.', as in acme-gdn"
        )
    module = re.sub(r"[-_.]+", "_", name).lower()
    if not module.isidentifier() or keyword.iskeyword(module):
        raise _refused(
            name,
            f"its module would be {module!r}, which Python can't import",
            "a name that begins with a letter and is not a Python keyword",
        )
    if module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None:
        raise _refused(name, f"a module {module!r} already exists", "an unused name")
    taken = [backend.name for backend in Runtime().backends(op)]
    if name in [*taken, "auto"]:
        raise _refused(
            name, f"{op} already has backends {', '.join(taken)}, and auto is reserved", "an unused name"
        )
    return module


def _refused(name: str, problem: str, valid: str) -> NewPluginError:
    return NewPluginError(f"a plugin can't be called {name!r}: {problem}; valid: {valid}", found=name)


def _values(name: str, module: str, op: str, *, platform: bool, hook: bool) -> dict[str, str]:
    built_in = {backend.op: backend for backend in Runtime().backends() if backend.name == "torch"}
    base = built_in[op].path.partition(":")[2]
    capabilities = built_in[op].capabilities
    values = {
        "name": name,
        "module": module,
        "op": op,
        "base": base,
        "interface": base.replace("Torch", "", 1) + "Backend",
        "class_name": "".join(part.capitalize() for part in module.split("_")),
        "kind": f"oot:{module}",
        "variable": f"{module.upper()}_DEVICE",
        "devices": '"cpu", "cuda"',
        "capabilities": "".join(
            f"        {field}={_tuple(capabilities[field])},\n"
            for field in ("state_dtypes", "state_layouts", "features")
            if capabilities[field]
        ),
    }
    optional = dict.fromkeys(
        ("imports", "own_imports", "others", "more", "activate", "also", "more_tests"), ""
    )
    if hook:
        optional["own_imports"] = f"\nfrom {module}.hooks import report\n"
        optional["more"] = '    registry.hook("switchrail.runtime.Runtime.plan", report, "after")\n'
        optional["also"] = f" `{module}/hooks.py` reports which backends serve a model."
        optional["more_tests"] = _filled("test_hook.py", values)
    if platform:
        paths = (f'    "{other}": "{backend.path}",' for other, backend in built_in.items() if other != op)
        optional["others"] = _filled("others.py", {"paths": "\n".join(paths)})
        optional["imports"] = "import os\n"
        optional["more"] += (
            "    for op, path in _OTHERS.items():\n"
            f'        registry.register("{name}", path, op=op, devices=("{values["kind"]}",))\n'
        )
        optional["activate"] = _filled("activate.py", values).rstrip("\n")
        optional["also"] += f" `{module}/platform.py` is the device family `{values['kind']}`."
        optional["more_tests"] += _filled("test_platform.py", values)
        values["devices"] += f', "{values["kind"]}"'
    entry = _filled("platform_entry.toml", values) if platform else ""
    return {**values, **optional, "platform_entry": entry}


def _filled(template: str, values: dict[str, str]) -> str:
    return Template((_TEMPLATES / f"{template}.txt").read_text("utf-8")).substitute(values)


def _tuple(values: Sequence[str]) -> str:
    return "(" + ", ".join(f'"{value}"' for value in values) + ("," if len(values) == 1 else "") + ")"
