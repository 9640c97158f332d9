"""Files that come with the package by name, or the user's by path; and settings that name one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tlt.traces.common.bounds import require_size
from tlt.traces.common.migrate import decode
from tltsched.errors import InputError, unknown_name

T = TypeVar("T", bound=msgspec.Struct)


def names_in(folder: Path) -> tuple[str, ...]:
    """Return the names of the JSON files of a folder."""
    return tuple(sorted(path.stem for path in folder.glob("*.json")))


def load_named(
    folder: Path, name_or_path: str, kind: type[T], *,
    field: str, fix: str, what: str, again: str, things: bool = False,
) -> T:  # fmt: skip
    """Read the JSON file of that name in a folder, or else the file at that path.

    Raises InputError for `field`: there is none (do `fix`; names are told as those of `things`), or it is not
    `what` was asked for (do it `again`).
    """
    path = folder / f"{name_or_path}.json"
    if not path.is_file():
        path = Path(name_or_path)
    if not path.is_file():
        raise unknown_name(field, name_or_path, names_in(folder), fix, things=things)
    require_size(path, field)
    try:
        return decode(path.read_bytes(), kind)
    except InputError as error:
        raise InputError(f"{error.field} of {path}", error.got, error.allowed, error.fix) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(field, f"{path}: {error}", what, again) from None


def filled_in(
    settings: dict[str, Any], section: str, field: str, values_of: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """Return settings with what `section.field` names, if it names anything, filled into its section.

    Raises InputError if another field of the section is set to something else than what is named.
    """
    given = settings.get(section)
    if not isinstance(given, dict) or not isinstance(named := given.get(field), str) or not named:
        return settings
    values = values_of(named)
    for name, value in values.items():
        stands = given.get(name, value)
        if (list(stands) if isinstance(stands, tuple) else stands) != value:
            raise InputError(
                f"{section}.{name}", stands, f"{value}, which {section}.{field} = {named!r} sets",
                "leave one of the two out",
            )  # fmt: skip
    return settings | {section: given | values}
