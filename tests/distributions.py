"""Writes installed distributions with a plugin, as an installer does."""

from __future__ import annotations

from pathlib import Path


def write_distribution(
    site: Path, name: str, source: str, *, plugin: str, version: str = "1.0", entry: str = "plugins:register"
) -> Path:
    """Write a distribution with one module of the same name.

    Args:
        site: A folder on `sys.path`.
        name: The distribution's name.
        source: The module's code.
        plugin: The name of the distribution's entry point.
        version: The distribution's version.
        entry: "GROUP:FUNCTION": the entry point's group without "switchrail.", and its function.

    Returns:
        The distribution's metadata folder.
    """
    module = name.replace("-", "_")
    group, _, function = entry.partition(":")
    info = site / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[switchrail.{group}]\n{plugin} = {module}:{function}\n")
    (site / f"{module}.py").write_text(source)
    return info


__all__ = ["write_distribution"]
