"""What holds for every run folder that a live engine wrote and that is committed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tlt.traces.common.seeds import scheduler_rng
from tlt.traces.runs.records import RECORDS, record_lines
from tlt.traces.runs.runfolder import RunFolder, read_struct
from tltsched.event_log import SchedulerSetup, encode, read, replay


def name(run: Path) -> str:
    """Return how a test is told of a run."""
    return f"{run.parent.name}/{run.name}"


def decisions_repeat(run: Path) -> list[bytes]:
    """Demand that the schedulers decide the same from the recorded events; returns the records."""
    setup = read_struct(run / "scheduler.json", SchedulerSetup)
    recorded = list(record_lines(run / RECORDS))
    replayed = replay(setup, read(recorded), partial(scheduler_rng, setup.seed))
    assert [encode(record) for record in replayed] == recorded
    return recorded


def every_gpu_second_is_booked(run: Path) -> None:
    """Demand that the intervals of all workers sum to what the GPUs were there for."""
    folder = RunFolder(run)
    intervals = folder.intervals()
    booked_s = float((intervals["end_s"] - intervals["start_s"]).sum())
    assert booked_s == pytest.approx(folder.summary().gpus * folder.summary().wall_s)
