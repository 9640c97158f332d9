"""Times of steps, rollouts and phases as a log has them, lined up with the steps of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.sim.model.phases import OTHER, PHASES
from tlt.traces.common.arrays import Floats
from tlt.traces.importers.phase_sentences import sentences
from tlt.traces.importers.phases import PhaseTimes
from tlt.traces.results.counterfactual import LoggedTime
from tlt.traces.runs.runfolder import CAUSES, RunFolder
from tltsched.errors import InputError

STEP, ROLLOUT, UPDATE = "step", "gen", "policy_update"
LEAST, MOST, LONGEST, GENERATIONS = "fixed_least", "fixed_most", "longest", "generations"
WAITS = 0.05  # of a rollout
TOLD = 0.001  # of a step: less of it in no phase is not worth a word
OVERLAP = 0.01  # of a step: phases that sum to more than that beyond it run side by side


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """Times by name: step, gen and phases; `source` says who measured them."""

    source: str
    times: dict[str, LoggedTime]
    notes: tuple[str, ...] = ()
    within: dict[str, LoggedTime] = {}  # of ROLLOUT: LEAST, MOST, LONGEST; GENERATIONS is a count
    gpus: float | None = None  # that the steps ran on, if the log says it
    gpu_rate: float | None = None  # response tokens a second of the rollout and GPU
    kept_s: float = 0.0  # of a step, under names that are no phase here

    def by_step_s(self, name: str) -> Floats | None:
        """Return the seconds of each step, [steps]; None where the log gives the mean alone or nothing."""
        time = self.times.get(name)
        return None if time is None or not time.by_step_s else np.array(time.by_step_s)

    def rollout_by_step(self, name: str, steps: int) -> Floats:
        """Return LEAST, MOST, LONGEST or GENERATIONS, [steps]: means where no single steps are known."""
        time = self.within.get(name)
        if time is None:
            nothing = {GENERATIONS: 1.0, LONGEST: self.times[ROLLOUT].mean_s}
            return np.full(steps, nothing.get(name, 0.0))
        return np.array(time.by_step_s) if time.by_step_s else np.full(steps, time.mean_s)

    def waits(self) -> bool:
        """Return whether rollouts hold seconds that no draft shortens and that are worth a word."""
        most, rollout = self.within.get(MOST), self.times.get(ROLLOUT)
        return most is not None and rollout is not None and most.mean_s > WAITS * rollout.mean_s

    def unsplit(self, steps: int) -> Floats | None:
        """Return what a step takes beside its logged phases, [steps], where its rollout is not timed alone.

        None where it is, or where steps are not timed.
        """
        if STEP not in self.times or ROLLOUT in self.times:
            return None
        booked = sum(
            (_broadcast(self, name, steps) for name in PHASES if name in self.times), np.zeros(steps)
        )
        return np.maximum(_broadcast(self, STEP, steps) - booked, 0.0)

    def unexplained(self) -> float:
        """Return the share of a step that nothing in the log names; 0 where no training is timed."""
        step, rollout = self.times.get(STEP), self.times.get(ROLLOUT)
        phases = [time.mean_s for name, time in self.times.items() if name not in (STEP, ROLLOUT)]
        if step is None or rollout is None or UPDATE not in self.times or step.mean_s <= 0:
            return 0.0
        return max(1.0 - (rollout.mean_s + sum(phases) + self.kept_s) / step.mean_s, 0.0)

    def first(self, steps: int) -> Logged:
        """Return the times of the first `steps` alone."""
        times, within = (
            {
                name: _timed(name, time.by_step_s[:steps]) if time.by_step_s else time
                for name, time in each.items()
            }
            for each in (self.times, self.within)
        )
        return msgspec.structs.replace(self, times=times, within=within)


def _timed(name: str, seconds: Sequence[float]) -> LoggedTime:
    return LoggedTime(name=name, mean_s=float(np.mean(seconds)), by_step_s=tuple(map(float, seconds)))


def logged_of(times: PhaseTimes, steps: Sequence[int]) -> Logged:
    """Line the times of a log up with the steps of a trace, by the number of the step.

    A name whose times do not cover all those steps, or whose log repeats a step, keeps its mean alone. Raises
    InputError for a log of rollouts that go on while the policy is trained.
    """
    about = times.rollouts
    why = times.side_by_side()
    if why:
        raise InputError(
            "phase times", f"those of a trainer whose rollouts go on meanwhile ({why})",
            "times of a run whose steps are a rollout and then the training on it",
            "its rollouts cannot be told from waiting: give the lengths alone (tlt trace import LOG --out "
            "FILE) to have a synchronous run modelled on them",
        )  # fmt: skip
    place = {step: index for index, step in enumerate(times.steps)}
    numbered = len(place) == len(times.steps) == times.lines
    covered = numbered and all(step in place for step in steps)

    def lined_up(name: str, values: list[float], mean: float) -> LoggedTime:
        if covered and len(values) == times.lines:
            return _timed(name, [values[place[step]] for step in steps])
        return LoggedTime(name=name, mean_s=mean)

    by_name: dict[str, LoggedTime] = {
        name: lined_up(name, time.values_s, time.mean_s) for name, time in times.phases.items()
    }
    means = [name for name, time in by_name.items() if not time.by_step_s]
    within = {}
    if ROLLOUT in by_name and about.longest.observations:
        within = {
            LEAST: lined_up(LEAST, about.fixed_least.values_s, about.fixed_least.mean_s),
            MOST: lined_up(MOST, about.fixed_most.values_s, about.fixed_most.mean_s),
            LONGEST: lined_up(LONGEST, about.longest.values_s, about.longest.mean_s),
            GENERATIONS: lined_up(GENERATIONS, about.generations, about.mean_generations()),
        }
    notes = []
    if means:
        notes.append(
            f"of {', '.join(means)} the mean over {times.lines:,} logged steps is used: the steps of log and "
            "lengths do not match one to one"
        )
    notes += [sentence.removesuffix(".") for sentence in sentences(times)]
    return Logged(
        source=f"measured by {times.framework}: {times.source}, {times.lines:,} steps",
        times=by_name, notes=tuple(notes), within=within, gpus=steady(about.gpus),
        gpu_rate=steady(about.rates), kept_s=sum(time.mean_s for time in times.kept.values()),
    )  # fmt: skip


def steady(values: Sequence[float]) -> float | None:
    """Return the median of what a log says of each step; None where it says nothing."""
    return float(np.median(values)) if values else None


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
    if logged.unsplit(steps) is not None:
        notes.append("rollouts are not timed: they and what else is not logged take what the step leaves")
        known |= {name: np.zeros(steps) for name in missing}
        missing = []
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
