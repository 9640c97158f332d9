"""Which format a file is in, from its contents alone."""

from __future__ import annotations

from pathlib import Path

from tlt.traces.importers import IMPORTERS
from tlt.traces.importers.base import Importer
from tlt.traces.importers.nearest import DESCRIBE, lengths_reason, nearest, other_uses
from tlt.traces.importers.reading.head import UTF16, Head
from tlt.traces.importers.reading.lines import shown
from tltsched.errors import InputError

TRIED_FILES = 64
LOOKED_AT = 8  # files of a folder that no format claims


class UnknownFormatError(InputError):
    """No format claims a file."""


def detect(files: list[Path]) -> Importer:
    """Return the format of the first of `files` that any format claims, of the first 64.

    Raises InputError if none is claimed, or if one is claimed by several; it says what was tried.
    """
    if not files:
        raise InputError("files to import", "none", "1 or more", "check the path")
    for file in files[:TRIED_FILES]:
        claims = claims_of(Head(file))
        fitting = [name for name, why in claims.items() if not why]
        if len(fitting) > 1:
            raise InputError(
                f"format of {shown(file)}", ", ".join(fitting), "one format", "add --format NAME"
            )
        if fitting:
            return IMPORTERS[fitting[0]]
    raise _nothing_fits(files)


def claims_of(head: Head) -> dict[str, str]:
    """Return by format "" if it claims a file, else why it does not."""
    try:
        if head.start.startswith(UTF16):
            return dict.fromkeys(IMPORTERS, "text in UTF-16: convert it to UTF-8")
        return {name: one.detect(head) for name, one in IMPORTERS.items()}
    except InputError as error:
        return dict.fromkeys(IMPORTERS, str(error))


def _nothing_fits(files: list[Path]) -> UnknownFormatError:
    """Return what is said of files that no format claims: the nearest one first, and its one reason."""
    looked_at = {file: (head := Head(file), claims_of(head)) for file in files[:LOOKED_AT]}
    file, (head, claims) = max(looked_at.items(), key=lambda found: _nearness(*found[1]))
    seen = f"{shown(file)} of {len(files):,} files" if len(files) > 1 else shown(file)
    got, fix = _verdict(head, claims)
    more = f"`tlt trace peek {shown(file)}` shows what is in it, --all the reason of each format"
    return UnknownFormatError(f"format of {seen}", got, "what `tlt trace formats` lists", f"{fix}{more}")


def _nearness(head: Head, claims: dict[str, str]) -> int:
    if len(set(claims.values())) == 1:
        return 0
    return 2 if other_uses(head) else 1 if nearest(head, claims) else 0


def _verdict(head: Head, claims: dict[str, str]) -> tuple[str, str]:
    """Return what a file is and what to do, the latter with its end."""
    if len(set(claims.values())) == 1:
        return next(iter(claims.values())), ""
    uses = other_uses(head)
    near = nearest(head, claims)
    why = lengths_reason(head)
    if uses:
        command = uses[0].command.replace("PATH", shown(head.path))
        no_lengths = f", and no lengths{f': {why}' if why else ''}" if uses[0].command != DESCRIBE else ""
        return f"{uses[0].what}{no_lengths}", f"`{command}` takes it; "
    if why:
        return why, ""
    if near is not None:
        return f"nearest to {near.name}, but: {near.reason}", ""
    return "nothing that is known", ""
