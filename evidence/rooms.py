"""What each folder of the libraries holds, as its `__init__.py` says: the tables of docs/structures.md."""

from __future__ import annotations

import ast
from pathlib import Path

from tltsched.errors import InputError


def rooms_table(project: Path, packages: list[str]) -> str:
    """Return a table of packages and the packages in them, a line a folder, with the sentence of each.

    Raises InputError if there is no such package, or a folder has no sentence.
    """
    lines = ["| folder | what belongs there |", "|:--|:--|"]
    for package in packages:
        inits = sorted((project / package).rglob("__init__.py"))
        if not inits or inits[0].parent != project / package:
            raise InputError("rooms", package, "a package at the root of the project", "name its folder")
        for path in inits:
            folder = path.parent.relative_to(project).as_posix()
            lines.append(f"| [{folder}](../{folder}) | {_sentence(path)} |")
    return "\n".join(lines)


def _sentence(path: Path) -> str:
    """Return the first paragraph of a package's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise InputError(f"docstring of {path}", text, "a sentence", "say what belongs into this folder")
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")
