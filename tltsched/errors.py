"""Errors that name the field, what was given, what is allowed, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


class InputError(ValueError):
    """A value from a user that cannot be used. Its text is the whole message: no traceback is needed."""

    def __init__(self, field: str, got: object, allowed: str, fix: str) -> None:
        self.field, self.got, self.allowed, self.fix = field, got, allowed, fix
        given = "nothing" if got is None else repr(got)
        super().__init__(f"got {given} for {field}; allowed: {allowed}; {fix}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, object, str, str]]:
        """Let it come out of another process as it was raised there."""
        return type(self), (self.field, self.got, self.allowed, self.fix)


class ProtocolError(RuntimeError):
    """A driver broke the order of events (a decision interval ended on a worker without requests, say)."""


def unknown_name(
    field: str, got: str, names: Iterable[str], otherwise: str, *, things: bool = False
) -> InputError:
    """Return the error for a name that is none of `names`: it lists them, and the nearest if there is one.

    things: names stand for things with figures of their own, such as GPUs: one that differs in a number is
    another one, however alike its name, and is not proposed.
    """
    known = list(names)
    alike = [name for name in known if _figures(name) == _figures(got)] if things else known
    near = get_close_matches(got, alike, n=1) or [name for name in alike if name.lower() == got.lower()]
    fix = f"did you mean {near[0]!r}?" if near else otherwise
    return InputError(field, got, ", ".join(known), fix)


def _figures(name: str) -> tuple[list[str], list[str]]:
    """Return the numbers of a name, and what is a letter with a number, as names of GPUs are."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return re.findall(r"\d+", name), [word for word in words if re.fullmatch(r"[a-z]\d{2,4}", word)]


def look_up(table: Mapping[str, T], field: str, name: str, *, things: bool = False) -> T:
    """Return `table[name]`; raises InputError that lists the names, as `unknown_name` does."""
    if name not in table:
        other = "none of these has its figures: take them as another case, not as this one"
        raise unknown_name(field, name, table, other if things else "use one of these names", things=things)
    return table[name]
