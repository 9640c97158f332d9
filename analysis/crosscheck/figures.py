"""Holds a simulation of a measured comparison against it: times, speedups, order, idle time, engine steps.

Intervals are over rollouts, of which the measured and the simulated times of all policies go together. Where
a figure is an order (rank correlation, regret) the times are drawn within their errors. Rollouts that the
acceptance was measured on are left out where others are left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.analysis.crosscheck.engine_steps import EngineStepCheck, check_engine_steps, load_engine_steps
from tlt.analysis.crosscheck.flags import Flag, find_flags
from tlt.analysis.crosscheck.schedules import ScheduleCheck, check_schedule, seconds_and_tokens
from tlt.analysis.load import Run, load_runs
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.common.intervals import Estimate, Jackknife, divide, interval_of
from tlt.traces.results.simulated_replay import SIMULATED_REPLAY, SimulatedReplay
from tlt.traces.runs.acceptance import acceptance_length_with_bonus
from tlt.traces.runs.runfolder import CAUSES, read_struct
from tltsched.errors import InputError

ROLLOUT_CAUSES = tuple(cause for cause, (category, _) in CAUSES.items() if category in ("rollout", "idle"))


class CauseCheck(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-seconds of one cause; `difference` is simulated less measured, a share of the measured GPU time."""

    cause: str
    measured_gpu_s: float
    simulated_gpu_s: float
    difference: Estimate


class SessionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What sessions met with, (measured, simulated)."""

    routing: str
    turns: tuple[int, int]
    hit_share: tuple[float, float]  # of the contexts of all turns, found in prefix caches
    again_tokens: tuple[int, int]  # computed before, and computed again


class PolicyCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. Errors are simulated over measured less 1; acceptance lengths count the bonus token.

    Speedups are of rollouts or, in a comparison with schedules, of seconds a trained token in whole steps.
    """

    policy: str
    measured_s: float  # sum of the rollouts' makespans
    simulated_s: float
    makespan_error: Estimate
    measured_speedup: Estimate
    simulated_speedup: Estimate
    speedup_error: Estimate
    measured_acceptance: float | None
    simulated_acceptance: float | None
    break_even_length: float | None
    causes: tuple[CauseCheck, ...]
    between_engine_steps: (
        float | None
    )  # share of the workers' busy time that lies between measured engine steps
    engine_steps: EngineStepCheck | None
    schedule: ScheduleCheck | None = None  # None: the plain synchronous one
    sessions: SessionCheck | None = None  # None: single responses


class Crosscheck(msgspec.Struct, frozen=True, kw_only=True):
    """What the report says. `choice` is the policy that the simulator would have taken."""

    name: str
    rollouts: int
    basis: SimulatedReplay
    policies: tuple[PolicyCheck, ...]
    order: Estimate  # Kendall's tau between measured and simulated times; 1: the same order
    best: str
    choice: str
    regret: Estimate  # time of the choice over that of the best, less 1
    flags: tuple[Flag, ...]

    def worst(self) -> PolicyCheck:
        """Return the policy whose makespan is predicted worst."""
        return max(self.policies, key=lambda policy: abs(policy.makespan_error.value))

    def worst_error(self) -> float:
        """Return the largest absolute error of a makespan or a speedup, as a share."""
        errors = [policy.makespan_error.value for policy in self.policies if policy.schedule is None]
        errors += [policy.schedule.error.value for policy in self.policies if policy.schedule is not None]
        return max(
            abs(error) for error in (*errors, *(policy.speedup_error.value for policy in self.policies))
        )

    def stopped(self) -> bool:
        """Return whether a flag forbids any conclusion."""
        return any(flag.stops for flag in self.flags)


@dataclass(frozen=True, slots=True)
class Pair:
    """The runs of both worlds, policy by policy, and the rollouts to judge by."""

    name: str
    measured: tuple[Run, ...]
    simulated: tuple[Run, ...]
    basis: SimulatedReplay
    steps: Ints


def load_pair(measured: Path, simulated: Path) -> Pair:
    """Read both folders; raises InputError if one is not readable or they do not hold the same policies."""
    real, model = load_runs(measured), load_runs(simulated)
    basis = read_struct(simulated / SIMULATED_REPLAY, SimulatedReplay)
    by_name = {run.path.name: run for run in model.runs}
    names = [run.path.resolve().name for run in real.runs]
    if sorted(by_name) != sorted(names) or {run.summary.kind for run in real.runs} != {"measured"}:
        raise InputError(
            "--simulated", f"{', '.join(by_name)} for {', '.join(names)}", "the policies of a measured run",
            "leave --simulated out and give --calibration, to simulate the run again",
        )  # fmt: skip
    every = real.runs[0].steps["step"].to_numpy(np.int64)
    for run in (*real.runs, *model.runs):
        every = every[np.isin(every, run.steps["step"])]
    judged = every[~np.isin(every, basis.acceptance_steps)]
    return Pair(
        real.name, real.runs, tuple(by_name[name] for name in names), basis, judged if len(judged) else every
    )


def crosscheck(pair: Pair) -> Crosscheck:
    """Return all figures, with intervals, and the flags that qualify them."""
    sample = Sample(pair)
    policies = tuple(_policy(pair, sample, index) for index in range(len(pair.measured)))
    best, choice = sample.fastest(simulated=False), sample.fastest(simulated=True)
    return Crosscheck(
        name=pair.name,
        rollouts=len(pair.steps),
        basis=pair.basis,
        policies=policies,
        order=sample.order(kendall_tau),
        best=pair.measured[best].policy,
        choice=pair.measured[choice].policy,
        regret=sample.order(regret),
        flags=find_flags(pair.measured, pair.simulated, pair.basis, pair.steps),
    )


class Sample:
    """Makespans of the judged rollouts, [policies, rollouts], and the sums that figures are made of.

    What policies are compared by is their cost: the makespan or, where some follow schedules, the seconds of
    whole steps a trained token.
    """

    def __init__(self, pair: Pair) -> None:
        self.real = np.array([_makespans(run, pair.steps) for run in pair.measured])
        self.model = np.array([_makespans(run, pair.steps) for run in pair.simulated])
        self.rollouts = Jackknife(len(pair.steps), "rollouts")
        runs = (*pair.measured, *pair.simulated)
        self.scheduled = any(run.schedule is not None for run in runs)
        self._sums = self.rollouts.sums(np.concatenate([self.real, self.model]))
        above, below = np.concatenate([self.real, self.model]), np.ones((len(runs), len(pair.steps)))
        if self.scheduled:
            above, below = seconds_and_tokens(runs, pair.steps)
        self._costs = self.rollouts.sums(np.stack([above, below]))

    def fastest(self, simulated: bool) -> int:
        """Return the policy that costs least."""
        return int(self._halves(self._costs[0] / self._costs[1])[simulated][:, 0].argmin())

    def ratio(self, figure: Callable[[Floats, Floats], Floats]) -> Estimate:
        """Return a ratio made of (measured, simulated) sums, both [policies, n], with its interval."""
        return self.rollouts.estimate(figure(*self._halves(self._sums)), positive=True)

    def speedup(self, figure: Callable[[Floats, Floats], Floats]) -> Estimate:
        """Return a ratio made of (measured, simulated) costs, both [policies, n], with its interval."""
        return self.rollouts.estimate(figure(*self._halves(self._costs[0] / self._costs[1])), positive=True)

    def error(self, figure: Callable[[Floats, Floats], Floats]) -> Estimate:
        """Return by how much such a ratio is off 1."""
        return self.ratio(figure).mapped(lambda ratio: ratio - 1.0)

    def order(self, figure: Callable[[Floats, Floats], Floats]) -> Estimate:
        """Return a figure that depends on which costs are larger, with the interval of its draws."""
        value = float(figure(*self._halves(self._costs[0] / self._costs[1]))[0])
        if self.rollouts.count < 2:
            return Estimate(value, None, "needs at least 2 rollouts")
        above, below = self.rollouts.drawn(self._costs)
        return Estimate(value, interval_of(figure(*self._halves(above / below))))

    def _halves(self, sums: Floats) -> tuple[Floats, Floats]:
        return sums[: len(self.real)], sums[len(self.real) :]


def kendall_tau(real: Floats, model: Floats) -> Floats:
    """Return Kendall's tau (a) between the policies' times, [n]; 1 for a single policy."""
    first, second = np.triu_indices(len(real), 1)
    if not len(first):
        return np.ones(real.shape[1])
    agree = np.sign(real[first] - real[second]) * np.sign(model[first] - model[second])
    return np.asarray(agree.mean(axis=0))


def regret(real: Floats, model: Floats) -> Floats:
    """Return the measured time of the policy that is simulated fastest, over the least one, less 1, [n]."""
    chosen = np.take_along_axis(real, model.argmin(axis=0)[None], axis=0)[0]
    return np.asarray(chosen / real.min(axis=0) - 1.0)


def _makespans(run: Run, steps: Ints) -> Floats:
    rows = run.steps.set_index("step").loc[steps]
    return (rows["rollout_end_s"] - rows["start_s"]).to_numpy(np.float64)


def _policy(pair: Pair, sample: Sample, index: int) -> PolicyCheck:
    real, model = pair.measured[index], pair.simulated[index]
    predicted = next(policy for policy in pair.basis.policies if policy.run == model.path.name)
    real_steps = real.steps[real.steps["step"].isin(pair.steps)]
    model_steps = model.steps[model.steps["step"].isin(pair.steps)]
    engine_steps = load_engine_steps(model.path, pair.steps)
    return PolicyCheck(
        policy=real.policy,
        measured_s=float(sample.real[index].sum()),
        simulated_s=float(sample.model[index].sum()),
        # A batch that is complete when its step begins leaves a rollout of no time.
        makespan_error=sample.error(lambda r, m: divide(m[index], r[index])),
        measured_speedup=sample.speedup(lambda r, _: r[0] / r[index]),
        simulated_speedup=sample.speedup(lambda _, m: m[0] / m[index]),
        speedup_error=sample.speedup(lambda r, m: (m[0] / m[index]) / (r[0] / r[index])).mapped(
            lambda ratio: ratio - 1.0
        ),
        measured_acceptance=acceptance_length_with_bonus(real_steps),
        simulated_acceptance=acceptance_length_with_bonus(model_steps),
        break_even_length=predicted.break_even_length,
        causes=_causes(pair, sample, index),
        between_engine_steps=_between(real, pair, float(engine_steps["seconds"].sum()))
        if engine_steps is not None
        else None,
        engine_steps=check_engine_steps(engine_steps, pair.steps) if engine_steps is not None else None,
        schedule=check_schedule(real, model, pair.steps) if real.schedule and model.schedule else None,
        sessions=_sessions(real, model),
    )


def _sessions(real: Run, model: Run) -> SessionCheck | None:
    if real.sessions is None or model.sessions is None:
        return None
    measured, simulated = real.sessions[0], model.sessions[0]
    return SessionCheck(
        routing=measured.routing,
        turns=(measured.turns, simulated.turns),
        hit_share=(measured.hit_share, simulated.hit_share),
        again_tokens=(measured.again_tokens, simulated.again_tokens),
    )


def _causes(pair: Pair, sample: Sample, index: int) -> tuple[CauseCheck, ...]:
    real, model = pair.measured[index], pair.simulated[index]
    gpus = real.summary.gpus_per_worker
    whole = sample.real[index] * real.summary.gpus
    spent, modelled = seconds_by_cause(real, pair.steps), seconds_by_cause(model, pair.steps)
    checks = []
    for cause in ROLLOUT_CAUSES:
        measured, simulated = spent[cause] * gpus, modelled[cause] * gpus
        if not measured.any() and not simulated.any():
            continue
        apart = simulated - measured
        checks.append(
            CauseCheck(
                cause=cause,
                measured_gpu_s=float(measured.sum()),
                simulated_gpu_s=float(simulated.sum()),
                difference=sample.rollouts.estimate_ratio(apart, whole),
            )
        )
    return tuple(checks)


def seconds_by_cause(run: Run, steps: Ints) -> dict[str, Floats]:
    """Return the worker-seconds of each cause of a rollout in each step, [steps]."""
    rows = run.intervals
    spent = pd.DataFrame(
        {"cause": rows["cause"].astype(str), "step": rows["step"], "seconds": rows["end_s"] - rows["start_s"]}
    ).pivot_table(index="step", columns="cause", values="seconds", aggfunc="sum", fill_value=0.0)
    table = spent.reindex(index=steps, columns=list(ROLLOUT_CAUSES), fill_value=0.0)
    return {cause: table[cause].to_numpy(np.float64) for cause in ROLLOUT_CAUSES}


def _between(run: Run, pair: Pair, engine_steps_s: float) -> float:
    spent = seconds_by_cause(run, pair.steps)
    busy_s = sum(float(seconds.sum()) for cause, seconds in spent.items() if CAUSES[cause][0] == "rollout")
    return 1.0 - engine_steps_s / busy_s if busy_s > 0 else 0.0
