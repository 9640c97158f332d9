"""From a path to a trace and a report of how it was read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import pandas as pd

from tlt.traces.importers import IMPORTERS
from tlt.traces.importers.base import Importer
from tlt.traces.importers.collect import Collector
from tlt.traces.importers.detect import detect
from tlt.traces.importers.folder import regular_files, sources
from tlt.traces.importers.formats import columns
from tlt.traces.importers.reading.items import Options
from tlt.traces.importers.reading.lines import BrokenFileError, shown
from tlt.traces.importers.report import Report, Tally
from tlt.traces.lengths.schema import Origin, Trace
from tlt.traces.sessions.schema import Sessions
from tltsched.errors import InputError, look_up

PROGRESS_ROWS = 10_000


class Imported(NamedTuple):
    """Responses, what was left out of them, and the sessions behind them: None if none had several turns."""

    trace: Trace
    report: Report
    sessions: Sessions | None


def import_trace(
    path: Path,
    options: Options,
    format_name: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Trace, Report]:
    """Return the responses of a file or folder, and what was left out of them; see `import_all`."""
    return import_all(path, options, format_name, progress)[:2]


def import_all(
    path: Path,
    options: Options,
    format_name: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Imported:
    """Return the responses of a file or folder, what was left out of them, and their turns.

    format_name: one of IMPORTERS; None finds it from the contents.
    Raises InputError if nothing can be read, or if a file breaks off.
    """
    left = Tally()
    files = regular_files(path, left)
    importer = _importer(files, options, format_name)
    chosen = sources(importer, path, files, left)
    if not chosen:
        allowed = f"names like {importer.file}"
        raise InputError(
            f"files below {shown(path)}", f"none that {importer.name} writes", allowed, "give the file itself"
        )
    name = shown(path)
    report = Report(
        format=importer.name,
        framework=importer.framework,
        lengths=importer.lengths,
        source=name,
        lost=importer.lost,
    )
    collector = Collector(importer, options, report)
    for source in chosen:
        collector.begin(source)
        try:
            for done, item in enumerate(importer.read(source, options), start=1):
                collector.add(item)
                if progress and done % PROGRESS_ROWS == 0:
                    progress(PROGRESS_ROWS)
        except BrokenFileError as error:
            if len(chosen) == 1:
                raise
            left.add("a file that cannot be read to its end", source.name, str(error.got)[:120])
    rows = collector.rows()
    report.files_left_out = left.most_first()
    origin = Origin(
        source=f"{importer.framework} {name}",
        kind=importer.kind,
        max_response_tokens=options.max_response_tokens or _told_cap(importer, rows),
        note=report.note(),
    )
    trace = Trace(rows, origin)
    sessions = collector.sessions(trace)
    if sessions is not None:
        told = f"{importer.waits} {' '.join(report.notes)}".strip()
        note = f"Imported from {importer.framework} ({importer.name}), turns {importer.lengths}. {told}"
        sessions = replace(sessions, origin=msgspec.structs.replace(sessions.origin, note=note))
    return Imported(trace, report, sessions)


def _told_cap(importer: Importer, rows: pd.DataFrame) -> int | None:
    """Return the cap that metrics tell: the share of cut responses is of those as long as the longest."""
    cut = rows.loc[rows["truncated"], "response_tokens"]
    longest = int(rows["response_tokens"].max())
    drawn = importer.lengths == "generated"
    return longest if drawn and len(cut) and bool((cut == longest).all()) else None


def _importer(files: list[Path], options: Options, format_name: str | None) -> Importer:
    """Return the format that is named, that named columns are of, or that the contents tell."""
    if options.columns:
        if format_name not in (None, columns.IMPORTER.name):
            raise InputError("--format", format_name, "none with --columns", "leave one of the two out")
        columns.parsed(options.columns)
        return columns.IMPORTER
    if format_name == columns.IMPORTER.name:
        raise InputError("--columns", "nothing", "response_tokens=NAME,...", "say what the columns are")
    return detect(files) if format_name is None else look_up(IMPORTERS, "--format", format_name)
