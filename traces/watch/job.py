"""A job in which the plugin writes: what is new in its facts is read, and its last steps make a subject."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pandas as pd

from tlt.plugin.facts import ENGINE, ENGINES, FACTS, STEP_TIMES, AnyFact, EngineFacts
from tlt.traces.doctor.subject import LIVE_COLUMNS, Member, RunTables, Subject
from tlt.traces.live.engines import EngineLog, take
from tlt.traces.live.run_folder import engine_step_table, response_table, state_of, summary_of, timelines
from tlt.traces.live.steps import Job
from tlt.traces.runs.runfolder import read_struct
from tlt.traces.runs.step_log import StepLog
from tltsched.errors import InputError
from tltsched.step_times import StepTimeTable

KEPT = 12  # rollouts of an engine: the newest, and what it is held against
MOST_BYTES = 64 << 20  # of an engine's facts that are read at once; what lies before the last of them is left


class LiveJob:
    """The engines of a job, as far as they have written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.left = 0  # steps that were dropped
        self.changed = False  # by the last reading
        self._engines: dict[str, EngineLog] = {}
        self._read_bytes: dict[str, int] = {}

    def read(self) -> Subject | None:
        """Read what is new and return the last steps; None before the first response is done.

        Raises InputError for a line that the plugin did not write.
        """
        self.changed = False
        for path in sorted((self.folder / ENGINES).glob(f"*/{ENGINE}")):
            self._read(path.parent)
        engines = list(self._engines.values())
        job = Job(engines) if engines else None
        if job is None or not job.steps:
            return None
        self._drop(job)
        return Subject(str(self.folder), "job with the plugin", (_member(self.folder, job, self.left),))

    def step_times(self) -> StepTimeTable | None:
        """Return the step times that the engines decide by; None if they know none."""
        path = self.folder / STEP_TIMES
        if path.is_file():
            return read_struct(path, StepTimeTable)
        setups = [log.about.setup for log in self._engines.values() if log.about.setup is not None]
        return setups[0].step_times if setups else None

    def faults(self) -> list[str]:
        """Return what the plugin said where it stopped."""
        return [
            f"engine {log.about.number}: {fault.text}"
            for log in self._engines.values()
            for fault in log.faults
        ]

    def _read(self, folder: Path) -> None:
        name = folder.name
        about = read_struct(folder / ENGINE, EngineFacts)
        log = self._engines.setdefault(name, EngineLog(about))
        log.about = about
        path = folder / FACTS
        size = path.stat().st_size if path.is_file() else 0
        begin = self._read_bytes.get(name, 0)
        if size <= begin:
            return
        with path.open("rb") as file:
            if size - begin > MOST_BYTES:
                file.seek(size - MOST_BYTES)
                file.readline()
            else:
                file.seek(begin)
            begin = file.tell()
            new = file.read(size - begin)
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes[name] = begin + len(whole)
        self.changed = self.changed or bool(whole)
        decode = msgspec.json.Decoder(AnyFact).decode
        for line in whole.splitlines():
            try:
                take(log, decode(line))
            except msgspec.MsgspecError as error:
                raise InputError(
                    str(path),
                    f"a line {line[:80]!r}: {error}",
                    "lines that the plugin wrote",
                    "check the file",
                ) from None

    def _drop(self, job: Job) -> None:
        """Forget rollouts that are no longer looked at."""
        if len(job.steps) <= 2 * KEPT:
            return
        gone = job.steps[:-KEPT]
        for step in gone:
            for engine, rollout in step.parts:
                job.engines[engine].rollouts.remove(rollout)
        self.left += len(gone)
        job.steps = job.steps[-KEPT:]
        for number, step in enumerate(job.steps):
            step.number = number


def _member(folder: Path, job: Job, left: int) -> Member:
    """Return the steps of a job as the doctor looks at them, numbered from `left`."""
    rows = [(step, engine, each) for step in job.steps for engine, part in step.parts for each in part.steps]
    log = StepLog()
    for step in job.steps:
        log.add(state_of(job, step), response_table(job, step))
    responses, intervals, steps = log.tables(timelines(job))
    engine_steps = engine_step_table(job, rows)
    live = pd.DataFrame(
        [(step.number, engine, job.t_s(engine, each.t_s), each.seconds, each.batch, each.waiting,
          each.preempted, each.prompt_tokens, each.graph) for step, engine, each in rows],
        columns=list(LIVE_COLUMNS),
    ).astype(LIVE_COLUMNS)  # fmt: skip
    tables = [responses, intervals, steps, engine_steps, live]
    for table in tables:
        table["step"] = table["step"] + left
    run = RunTables(
        path=folder, summary=summary_of(job, responses, int(live["preempted"].sum())),
        responses=responses, intervals=intervals, steps=steps, schedule=None, engine_steps=engine_steps,
        updates=None, rewards=None, live=live,
    )  # fmt: skip
    return Member("", None, "rollout", None, run)


def steps_of(subject: Subject) -> list[int]:
    """Return the numbers of the steps of a subject."""
    run = subject.members[0].run
    return [] if run is None else [int(step) for step in run.steps["step"]]
