"""Acceptance that a file states: `acceptance.read_from` becomes the law and where it was measured."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from tlt.traces.common.settings import merge
from tlt.traces.importers.acceptance.counted import Acceptance
from tlt.traces.importers.acceptance.reading import read_acceptance
from tltsched.errors import InputError

FIELDS = ("read_from", "read_drafts")


def with_acceptance(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the law of the file that `acceptance.read_from` names, if it names one.

    What else is set of `acceptance` stays on top. Raises InputError if the file states no acceptance, or if
    a law is set beside it.
    """
    given = settings.get("acceptance", {})
    if not isinstance(given, dict) or not given.get("read_from"):
        return settings
    beside = [name for name in ("kind", "rate", "survival_by_position") if name in given]
    path, drafts = given["read_from"], given.get("read_drafts")
    if beside:
        raise InputError(
            f"acceptance.{beside[0]}", given[beside[0]], "nothing beside acceptance.read_from",
            f"{path} states the law: leave one of the two out",
        )  # fmt: skip
    if not isinstance(path, str) or not (drafts is None or isinstance(drafts, int)):
        return settings  # of a wrong type, which the check of the settings tells
    law = _law(path, drafts or None, _stamp(Path(path)))
    rest = {name: value for name, value in given.items() if name not in FIELDS}
    return merge({**settings, "acceptance": law.settings()}, {"acceptance": rest})


@lru_cache(maxsize=8)
def _law(path: str, drafts: int | None, stamp: tuple[int, int]) -> Acceptance:
    """Read a file once for all policies; `stamp` tells whether it has grown."""
    del stamp
    return read_acceptance(Path(path), drafts)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        raise InputError(
            "acceptance.read_from", str(path), "a file or folder that exists", "check the path"
        ) from None
    return found.st_mtime_ns, found.st_size
