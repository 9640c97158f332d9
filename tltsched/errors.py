"""Errors that name the field, what was given, what is allowed, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


class InputError(ValueError):
    """A value from a user that cannot be used. Its text is the whole message: no traceback is needed."""

    def __init__(self, field: str, got: object, allowed: str, fix: str) -> None:
        self.field, self.got, self.allowed, self.fix = field, got, allowed, fix
        super().__init__(f"got {got!r} for {field}; allowed: {allowed}; {fix}")


class ProtocolError(RuntimeError):
    """A driver broke the order of events (a decision interval ended on a worker without requests, say)."""


def unknown_name(field: str, got: str, names: Iterable[str], otherwise: str) -> InputError:
    """Return the error for a name that is none of `names`: it lists them, and the nearest if there is one."""
    known = list(names)
    near = get_close_matches(got, known, n=1)
    fix = f"did you mean {near[0]!r}?" if near else otherwise
    return InputError(field, got, ", ".join(known), fix)


def look_up(table: Mapping[str, T], field: str, name: str) -> T:
    """Return `table[name]`; raises InputError that lists the names and the nearest one."""
    if name not in table:
        raise unknown_name(field, name, table, "use one of these names")
    return table[name]
