"""Finds which toolkits torch was built for, without importing torch, because that takes seconds."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path


def built_for(family: str) -> str | None:
    """The version of a device family's toolkit that torch was built with.

    Args:
        family: `cuda`, `hip` or `xpu`.

    Returns:
        The version, such as `13.2`; None if torch was built without it, or is not installed.
    """
    if sys.modules.get("torch") is not None:  # a None in `sys.modules` blocks the import
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
