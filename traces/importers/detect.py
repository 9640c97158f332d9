"""Which format a file is in, from its contents alone."""

from __future__ import annotations

from pathlib import Path

from tlt.traces.importers import IMPORTERS
from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.head import UTF16, Head
from tlt.traces.importers.reading.lines import shown
from tltsched.errors import InputError

TRIED_FILES = 64


class UnknownFormatError(InputError):
    """No format claims a file."""


def detect(files: list[Path]) -> Importer:
    """Return the format of the first of `files` that any format claims, of the first 64.

    Raises InputError if none is claimed, or if one is claimed by several; it says what was tried.
    """
    if not files:
        raise InputError("files to import", "none", "1 or more", "check the path")
    for file in files[:TRIED_FILES]:
        claims = _claims(file)
        fitting = [name for name, why in claims.items() if not why]
        if len(fitting) > 1:
            raise InputError(
                f"format of {shown(file)}", ", ".join(fitting), "one format", "add --format NAME"
            )
        if fitting:
            return IMPORTERS[fitting[0]]
    raise _nothing_fits(files)


def _claims(file: Path) -> dict[str, str]:
    head = Head(file)
    try:
        if head.start.startswith(UTF16):
            return dict.fromkeys(IMPORTERS, "text in UTF-16: convert it to UTF-8")
        return {name: one.detect(head) for name, one in IMPORTERS.items()}
    except InputError as error:
        return dict.fromkeys(IMPORTERS, str(error))


def _nothing_fits(files: list[Path]) -> UnknownFormatError:
    claims = _claims(files[0])
    tried = "; ".join(f"{name}: {why}" for name, why in claims.items())
    if len(set(claims.values())) == 1:
        tried = f"all formats: {next(iter(claims.values()))}"
    seen = f"{shown(files[0])} of {len(files):,} files" if len(files) > 1 else shown(files[0])
    allowed = f"a file of {', '.join(IMPORTERS)}"
    return UnknownFormatError(
        f"format of {seen}", "none that fits", allowed, f"tried {tried}; --format NAME overrides"
    )


def metrics_framework(head: Head) -> str:
    """Return the framework whose metrics a file begins with; "" if no format knows them."""
    fitting = [
        one.framework for one in IMPORTERS.values() if one.kind == "generated" and not one.detect(head)
    ]
    return fitting[0] if len(fitting) == 1 else ""
