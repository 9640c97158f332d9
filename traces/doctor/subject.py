"""What the doctor looks at: a run folder, a comparison, a trace, or what a framework wrote."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from tlt.traces.importers.detect import UnknownFormatError
from tlt.traces.importers.importing import import_all
from tlt.traces.importers.phases import PhaseTimes, find_phases
from tlt.traces.importers.reading.items import Options
from tlt.traces.importers.reading.lines import shown
from tlt.traces.importers.report import Report
from tlt.traces.importers.unfinished import without_unfinished
from tlt.traces.lengths.files import read_trace
from tlt.traces.lengths.run_as_trace import GROUPS_OF_A_STEP
from tlt.traces.lengths.schema import COLUMNS
from tlt.traces.runs.decision_intervals import DecisionIntervals, read_decision_intervals
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.records import RECORDS
from tlt.traces.runs.runfolder import SESSIONS, RunFolder, ScheduleFacts, Summary, read_table
from tlt.traces.runs.training import REWARD_COLUMNS, UPDATE_COLUMNS
from tlt.traces.sessions.files import is_session_file, read_sessions
from tlt.traces.sessions.schema import Sessions
from tlt.traces.sources import ComparisonSource, RunSource, TraceFile, open_source
from tltsched.errors import InputError

LIVE_COLUMNS = {
    "step": "int64",
    "worker": "int16",
    "t_s": "float64",  # begin of an engine step, or of the time between two readings of an engine's metrics
    "seconds": "float64",
    "batch": "float64",  # running requests; 0: the engine rests
    "waiting": "int64",  # requests that are not in the batch
    "preempted": "int64",
    "prompt_tokens": "int64",
    "graph": "str",  # FULL, PIECEWISE or NONE; empty: not told
}
"""What an engine tells while it runs, and no run folder keeps."""


@dataclass(frozen=True)
class RunTables:
    """One run folder. Tables that it does not have are None."""

    path: Path
    summary: Summary
    responses: pd.DataFrame
    intervals: pd.DataFrame
    steps: pd.DataFrame
    schedule: tuple[ScheduleFacts, pd.DataFrame] | None
    engine_steps: pd.DataFrame | None
    updates: pd.DataFrame | None
    rewards: pd.DataFrame | None
    live: pd.DataFrame | None = None  # LIVE_COLUMNS

    @cached_property
    def decision_intervals(self) -> DecisionIntervals | None:
        """What the decision intervals did, out of the record; None without one."""
        path = self.path / RECORDS
        return read_decision_intervals(path) if path.is_file() else None

    def keeps_order(self) -> bool:
        """Return whether each step trains on the responses to its own prompts."""
        return self.schedule is None or self.schedule[0].keeps_order

    def has_sessions(self) -> bool:
        """Return whether requests are sessions of several turns."""
        return (self.path / SESSIONS).is_file()

    def drafts(self) -> bool:
        """Return whether any engine step drafted."""
        return int(self.steps["request_steps"].sum()) > 0


@dataclass(frozen=True)
class Member:
    """One policy, or one log. rows: columns of a trace, unchecked; None: only phase times are known."""

    name: str
    rows: pd.DataFrame | None
    kind: str  # of tlt.traces.lengths.schema.Kind
    max_response_tokens: int | None
    run: RunTables | None = None
    phases: PhaseTimes | None = None
    report: Report | None = None
    sessions: Sessions | None = None


@dataclass(frozen=True)
class Subject:
    """All that one path means; the first policy is the baseline."""

    source: str
    read_as: str
    members: tuple[Member, ...]


def read_subject(path: Path, options: Options, format_name: str | None = None) -> Subject:
    """Read a path; raises InputError if it is nothing that can be read."""
    source = open_source(path)
    match source:
        case ComparisonSource():
            members = tuple(_of_run(folder, folder.name) for folder in source.folders)
            return Subject(str(source.path), "comparison", members)
        case RunSource():
            member = _of_run(source.path, "")
            assert member.run is not None
            return Subject(str(source.path), f"{member.run.summary.kind} run", (member,))
        case TraceFile() if format_name is None:
            trace = read_trace(path)
            sessions = read_sessions(path) if is_session_file(path) else None
            known = Member(
                "", trace.rows, trace.origin.kind, trace.origin.max_response_tokens, sessions=sessions
            )
            return Subject(str(path), "trace" if sessions is None else "sessions", (known,))
    return _of_log(path, options, format_name)


def _of_run(path: Path, name: str) -> Member:
    folder = RunFolder(path)
    summary, responses = folder.summary(), folder.responses()
    run = RunTables(
        path=path,
        summary=summary,
        responses=responses,
        intervals=folder.intervals(),
        steps=folder.steps().sort_values("step", ignore_index=True),
        schedule=folder.schedule(),
        engine_steps=read_engine_steps(path),
        updates=_table(path / "updates.parquet", UPDATE_COLUMNS),
        rewards=_table(path / "rewards.parquet", REWARD_COLUMNS),
    )
    _check_times(path, run.responses, run.intervals, run.steps)
    if bool(run.steps["step"].duplicated().any()):
        raise InputError(
            f"steps.parquet in {path}", "a step twice", "each step once", "make the run folder again"
        )
    rows = pd.DataFrame(
        {
            "step": responses["step"],
            "prompt_id": responses["step"].astype(np.int64) * GROUPS_OF_A_STEP + responses["group"],
            "sample": responses.groupby(["step", "group"]).cumcount(),
            "prompt_tokens": responses["prompt_tokens"],
            "response_tokens": responses["response_tokens"],
            "truncated": responses["truncated"],
        }
    ).astype(COLUMNS)
    trained = run.rewards is not None and summary.kind == "measured"
    truncated = rows.loc[rows["truncated"], "response_tokens"]
    cap = int(truncated.max()) if len(truncated) else None
    return Member(name, rows, "rollout" if trained else "unstated", cap, run)


def _check_times(path: Path, *tables: pd.DataFrame) -> None:
    """Raise InputError if a time of a run folder is not a number or lies before its begin."""
    for table in tables:
        for name in table.columns:
            values = table[name].to_numpy()
            if name.endswith("_s") and not bool((np.isfinite(values) & (values >= 0)).all()):
                wrong = values[~(np.isfinite(values) & (values >= 0))][0]
                raise InputError(
                    f"{name} in {path}",
                    float(wrong),
                    "seconds since the run began",
                    "make the run folder again",
                )


def _of_log(path: Path, options: Options, format_name: str | None) -> Subject:
    """Read what a framework wrote: its lengths, its phase times, or both."""
    phases = find_phases(path)
    try:
        trace, report, sessions = import_all(path, options, format_name)
    except InputError as error:
        if phases is None:
            raise
        hidden = "" if isinstance(error, UnknownFormatError) else f"; its lengths are not read: {error}"
        member = Member("", None, "unstated", None, phases=phases)
        return Subject(str(path), f"metrics of {phases.framework}{hidden}", (member,))
    trace, left_out = without_unfinished(trace, phases)
    member = Member(
        "", trace.rows, trace.origin.kind, trace.origin.max_response_tokens, phases=phases, report=report,
        sessions=sessions,
    )  # fmt: skip
    read_as = f"{report.framework} ({report.format}), {shown(path)}"
    return Subject(str(path), f"{read_as}; {left_out}" if left_out else read_as, (member,))


def _table(path: Path, columns: dict[str, str]) -> pd.DataFrame | None:
    return read_table(path, columns) if path.is_file() else None
