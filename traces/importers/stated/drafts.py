"""What a log or result says of drafts that were made in the run: the law of acceptance, or its mean alone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tlt.traces.importers.acceptance.counted import Acceptance
from tlt.traces.importers.acceptance.reading import find_drafts, says_drafts
from tlt.traces.importers.folder import regular_files
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.report import Tally
from tltsched.errors import InputError


class StatedDrafts(msgspec.Struct, kw_only=True):
    """Drafts of a run. law: None where the number of drafts of a cycle is not stated, or sources disagree.

    accepted: drafts of a cycle in the mean, the bonus token not counted; why: what hides the law.
    """

    accepted: float
    origin: str
    law: Acceptance | None = None
    why: str = ""


def stated_drafts(path: Path) -> StatedDrafts | None:
    """Return what the files at `path` say of drafts; None if their beginnings say nothing.

    Raises InputError if a file cannot be read.
    """
    if not any(says_drafts(Head(file)) for file in regular_files(path, Tally())):
        return None
    found = find_drafts(path)
    if found is None:
        return None
    try:
        law = found.law()
    except InputError as error:
        return StatedDrafts(accepted=found.accepted, origin=found.source, why=str(error))
    return StatedDrafts(accepted=law.accepted, origin=law.origin, law=law)
