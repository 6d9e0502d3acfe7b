"""Finds the toolkit version that torch was built with, without importing torch, which takes seconds."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path


def built_for(family: str) -> str | None:
    """The version of a toolkit that torch was built with.

    Args:
        family: The toolkit's name in `torch.version`: `cuda`, `hip` or `xpu`.

    Returns:
        The version, such as `13.2`; None if torch was built without the toolkit, or is not installed.
    """
    if sys.modules.get("torch") is not None:  # None in `sys.modules` means that importing is blocked
        import torch

        return getattr(torch.version, family, None)
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    tree = ast.parse(Path(spec.origin).with_name("version.py").read_text("utf-8"))
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str() as version))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str() as version))
            ) if name == family:
                return version
    return None
