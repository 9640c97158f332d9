"""Times of steps, rollouts and phases as a log has them, lined up with the steps of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.sim.model.phases import OTHER, PHASES
from tlt.traces.common.arrays import Floats
from tlt.traces.importers.phases import PhaseTimes
from tlt.traces.results.counterfactual import LoggedTime
from tlt.traces.runs.runfolder import CAUSES, RunFolder

STEP, ROLLOUT = "step", "gen"
TOLD = 0.001  # of a step: less of it in no phase is not worth a word
OVERLAP = 0.01  # of a step: phases that sum to more than that beyond it run side by side


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """Times by name: step, gen and phases; `source` says who measured them."""

    source: str
    times: dict[str, LoggedTime]
    notes: tuple[str, ...] = ()

    def by_step_s(self, name: str) -> Floats | None:
        """Return the seconds of each step, [steps]; None where the log gives the mean alone or nothing."""
        time = self.times.get(name)
        return None if time is None or not time.by_step_s else np.array(time.by_step_s)

    def first(self, steps: int) -> Logged:
        """Return the times of the first `steps` alone."""
        return msgspec.structs.replace(
            self,
            times={
                name: _timed(name, time.by_step_s[:steps]) if time.by_step_s else time
                for name, time in self.times.items()
            },
        )


def _timed(name: str, seconds: Sequence[float]) -> LoggedTime:
    return LoggedTime(name=name, mean_s=float(np.mean(seconds)), by_step_s=tuple(map(float, seconds)))


def logged_of(times: PhaseTimes, steps: Sequence[int]) -> Logged:
    """Line the times of a log up with the steps of a trace, by the number of the step.

    A name whose times do not cover all those steps, or whose log repeats a step, keeps its mean alone.
    """
    place = {step: index for index, step in enumerate(times.steps)}
    numbered = len(place) == len(times.steps) == times.lines
    covered = numbered and all(step in place for step in steps)
    by_name, means = {}, []
    for phase, time in times.phases.items():
        name: str = phase
        if covered and time.observations == times.lines:
            by_name[name] = _timed(name, [time.values_s[place[step]] for step in steps])
        else:
            by_name[name] = LoggedTime(name=name, mean_s=time.mean_s)
            means.append(name)
    notes = []
    if means:
        notes.append(
            f"of {', '.join(means)} the mean over {times.lines:,} logged steps is used: the steps of log and "
            "lengths do not match one to one"
        )
    if times.note:
        notes.append(times.note.removesuffix("."))
    return Logged(
        source=f"measured by {times.framework}: {times.source}, {times.lines:,} steps",
        times=by_name, notes=tuple(notes),
    )  # fmt: skip


def logged_run(path: Path) -> Logged:
    """Return the times of a run folder of this project: phases as the mean over workers, after the rollout.

    Raises InputError if a file is missing or malformed.
    """
    folder = RunFolder(path)
    summary = folder.summary()
    rows = folder.steps().sort_values("step", ignore_index=True)
    start_s, rollout_end_s, end_s = (rows[name].to_numpy() for name in ("start_s", "rollout_end_s", "end_s"))
    times = {STEP: _timed(STEP, end_s - start_s), ROLLOUT: _timed(ROLLOUT, rollout_end_s - start_s)}
    spans = folder.intervals()
    begins = spans["step"].map(pd.Series(rollout_end_s, rows["step"])).to_numpy(np.float64)
    spans["seconds"] = (spans["end_s"] - np.maximum(spans["start_s"], begins)).clip(lower=0.0)
    table = spans.pivot_table(
        index="step", columns="cause", values="seconds", aggfunc="sum", observed=True
    ).reindex(rows["step"])
    for cause in table.columns:
        if CAUSES[cause][0] == "phase":
            times[cause] = _timed(cause, (table[cause].fillna(0.0) / summary.workers).tolist())
    return Logged(
        source=f"{summary.kind}: run folder of {summary.name}, policy {summary.policy}", times=times
    )


def phases_by_step_s(logged: Logged, steps: int) -> tuple[dict[str, tuple[float, ...]], list[str]]:
    """Return the seconds of each phase in each step as the simulator takes them, and what to know of them.

    What a step takes beyond its rollout and its logged phases is the phase `other`. Phases that the log does
    not have are in it; without times of step and rollout they are left to the model.
    """
    notes: list[str] = []
    known = {name: _broadcast(logged, name, steps) for name in PHASES if name in logged.times}
    missing = [name for name in PHASES if name not in known and name != OTHER]
    if not {STEP, ROLLOUT} <= logged.times.keys():
        if missing:
            notes.append(f"phases that the log does not have are modelled: {', '.join(missing)}")
        return {name: tuple(seconds.tolist()) for name, seconds in known.items()}, notes
    step_s, rollout_s = (_broadcast(logged, name, steps) for name in (STEP, ROLLOUT))
    booked = sum(known.values(), np.zeros(steps))
    rest = step_s - rollout_s - booked
    if rest.sum() < -OVERLAP * step_s.sum():
        shrink = max(float((step_s - rollout_s).sum()), 0.0) / float(booked.sum())
        known = {name: seconds * shrink for name, seconds in known.items()}
        rest = np.zeros(steps)
        notes.append(
            f"rollout and phases add up to more than the step, so some run side by side: phases are taken "
            f"{shrink:.2f} times as long, to add up"
        )
    rest = known.pop(OTHER, np.zeros(steps)) + rest.clip(min=0.0)
    known |= {name: np.zeros(steps) for name in missing}
    if rest.sum() > 1e-6 * step_s.sum():
        known[OTHER] = rest
        share = rest.sum() / step_s.sum()
        named = f" ({', '.join(missing)} among it)" if missing else ""
        if share >= TOLD:
            notes.append(f"{share:.1%} of the step is in no logged phase{named}: every policy keeps it")
    return {name: tuple(seconds.tolist()) for name, seconds in known.items()}, notes


def _broadcast(logged: Logged, name: str, steps: int) -> Floats:
    by_step_s = logged.by_step_s(name)
    return np.full(steps, logged.times[name].mean_s) if by_step_s is None else by_step_s
