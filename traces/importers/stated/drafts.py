"""What a log or result says of drafts that were made in the run: the law of acceptance, or its mean alone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tlt.traces.importers.acceptance.counted import Acceptance
from tlt.traces.importers.acceptance.reading import find_drafts
from tlt.traces.importers.folder import regular_files
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.lines import BrokenFileError
from tlt.traces.importers.reading.metric_tables import is_parquet
from tlt.traces.importers.report import Tally
from tltsched.errors import InputError

CONSOLE_LOGS = (".log", ".out", ".txt")
MARKS = (b"spec_", b"draft_", b"accept_length", b"accept len:", b"SpecDecoding")


class StatedDrafts(msgspec.Struct, kw_only=True):
    """Drafts of a run. law: None where the drafts of a verification are not stated, or sources disagree.

    accepted: drafts of a verification in the mean, the bonus token not counted; why: what hides the law.
    """

    accepted: float
    origin: str
    law: Acceptance | None = None
    why: str = ""


def stated_drafts(path: Path) -> StatedDrafts | None:
    """Return what the files at `path` say of drafts; None if none says anything.

    Only files whose beginning says so are read through, and console logs, where a server may speak later.
    """
    files = [file for file in regular_files(path, Tally()) if _may_say(file)]
    if not files:
        return None
    try:
        found = find_drafts(path, files=files)
    except BrokenFileError:  # told where its lengths are read
        return None
    except InputError as error:
        return StatedDrafts(accepted=0.0, origin=str(error.got), why=str(error))
    if found is None or not any(one.verifications > 0 for one in found.counted):
        return None
    try:
        law = found.law()
    except InputError as error:
        return StatedDrafts(accepted=found.accepted, origin=found.source, why=str(error))
    return StatedDrafts(accepted=law.accepted, origin=law.origin, law=law)


def _may_say(file: Path) -> bool:
    head = Head(file)
    if file.name.lower().removesuffix(".gz").endswith(CONSOLE_LOGS):
        return True
    return any(mark in head.start for mark in MARKS) or is_parquet(head)
