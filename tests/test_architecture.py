"""ARCHITECTURE.md names every module of its sections' folders, and only modules that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECTION = re.compile(r"^### [^`\n]+`([^`]+)`$(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\|.*", re.MULTILINE)
NAME = re.compile(r"`([\w./-]+(?:\.py|\.rs|\.c|/))`")
# The document doesn't name the files in these folders: each has the name of the command, operation or subject
# that it contains.
ONE_FILE_EACH = ("cli", "doctor", "elementwise", "diagnosis")


def files_of(base: Path, row: str) -> dict[str, set[Path]]:
    """By name in a table's row: the existing files with this name, in `base`, in the repository's root, or in
    a folder that the row also names."""
    names = NAME.findall(row)
    folders = [
        folder / name for name in ["", *names] if not name or name[-1] == "/" for folder in (base, ROOT)
    ]
    patterns = {
        name: [str((folder / name).relative_to(ROOT)).replace("OP/", "*/") for folder in folders]
        for name in names
        if name[-1] != "/"
    }
    return {
        name: {path for pattern in found for path in ROOT.glob(pattern)} for name, found in patterns.items()
    }


def test_names_exist_and_none_is_missing() -> None:
    """Each file in the tables exists, and each module of the sections' folders is in a table."""
    sections = SECTION.findall((ROOT / "ARCHITECTURE.md").read_text("utf-8"))
    rows = [files_of(ROOT / folder, row) for folder, rows in sections for row in ROW.findall(rows)]
    assert not [name for row in rows for name, files in row.items() if not files]
    named = {file for row in rows for files in row.values() for file in files}
    modules = {
        path
        for folder, _ in sections
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".rs", ".c")
        and path.name not in ("__init__.py", "__main__.py", "lib.rs")
        and path.parent.name not in ONE_FILE_EACH
    }
    assert len(modules) > 300
    assert not sorted(str(path.relative_to(ROOT)) for path in modules - named)
