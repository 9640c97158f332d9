"""What other policies and schedules would have done with the lengths of a run that was observed.

The observed policy is simulated first: its error against the run's log comes before any other figure. Where
the log has rollout seconds one factor on all step times is fitted to half of its steps
(sim.counterfactual.fit_to_log), beside what no draft shortens (sim.counterfactual.readings), and phases take
as long as the log says. Then every policy rolls out the same lengths in the same steps and groups. Where no
reading of the log comes near the model the observed policy stays alone, and what a ranking needs is said.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.sim.advise.bounds import write_bounds
from tlt.sim.advise.what_if import what_if
from tlt.sim.comparison import compare
from tlt.sim.counterfactual.draws import write_draws
from tlt.sim.counterfactual.fit_to_log import Times, fit_means, fit_scale
from tlt.sim.counterfactual.fitted import Fitted
from tlt.sim.counterfactual.flags import MOST_UNEXPLAINED, flags_of, needed_of
from tlt.sim.counterfactual.log_times import GENERATIONS, LEAST, LONGEST, MOST, ROLLOUT, STEP, Logged
from tlt.sim.counterfactual.observed_run import Observed, length_facts
from tlt.sim.counterfactual.readings import ENGINE, MISFIT, LoggedRollouts, Readings, readings_of
from tlt.sim.counterfactual.settings import RESAMPLED_STEPS, Replay
from tlt.sim.policy_set import PolicySet, checked
from tlt.sim.simulation import Simulation
from tlt.sim.workload import replayed
from tlt.sim.write_run import cost_source
from tlt.traces.common.arrays import Floats
from tlt.traces.common.manifest import sealed
from tlt.traces.common.seeds import RESAMPLED_PROMPTS, generator
from tlt.traces.lengths.files import write_trace
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.counterfactual import (
    COUNTERFACTUAL,
    OBSERVED_TRACE,
    Counterfactual,
    ObservedStep,
)
from tlt.traces.results.what_if import WHAT_IF
from tlt.traces.runs.runfolder import RunFolder, run_name, write_json


def counterfactual(
    replay: Replay,
    out: Path,
    draws: int,
    price_usd_per_gpu_hour: float | None,
    progress: Callable[[str, int], None],
) -> Counterfactual:
    """Reproduce the run and simulate the policies into the comparison folder `out`; `progress(policy, step)`.

    `draws` of the step times within their error. Raises InputError for settings that do not fit together.
    """
    observed = replay.observed
    base = next(iter(replay.configs.values()))
    lengths = lengths_to_replay(observed, base.run.seed)
    policies = checked(replay.configs, replayed(lengths, base.workload))  # before anything is written
    out.mkdir(parents=True, exist_ok=True)
    write_trace(lengths, out / OBSERVED_TRACE, force=True)
    fitted = _fit(observed, policies.baseline.on(lengths))
    if fitted is not None:
        policies = fitted.applied(policies)
    compare(policies, out, progress)
    write_bounds(policies.baseline, out)
    if fitted is None or fitted.readings.all:
        write_draws(policies, out, draws, fitted, lambda policy: progress(f"{policy}: errors", -1))
        ways = what_if(policies, lambda policy: progress(f"{policy}: other acceptance and GPUs", -1))
        write_json(out / WHAT_IF, ways)
    modelled = RunFolder(out / run_name(policies.names[0])).steps()
    answer = _answer(replay, policies, fitted, modelled, price_usd_per_gpu_hour)
    reordering = any(
        not each.config.cluster.schedule_spec().keeps_order for each in policies.simulations.values()
    )
    answer = msgspec.structs.replace(answer, flags=flags_of(answer, observed, reordering))
    with sealed(out):
        write_json(out / COUNTERFACTUAL, answer)
    return answer


def lengths_to_replay(observed: Observed, seed: int) -> Trace:
    """Return the lengths; a single step is followed by others: its prompt groups, drawn with replacement."""
    trace = observed.trace
    numbers = observed.step_numbers()
    if len(numbers) > 1:
        return trace
    rng = generator(seed, RESAMPLED_PROMPTS)
    groups = [rows for _, rows in trace.rows.groupby("prompt_id", sort=False)]
    parts, prompt = [trace.rows], int(trace.rows["prompt_id"].max()) + 1
    for step in range(1, RESAMPLED_STEPS):
        drawn = [groups[index] for index in rng.integers(len(groups), size=len(groups))]
        rows = pd.concat(drawn, ignore_index=True)
        numbered = np.repeat(np.arange(len(drawn)), [len(each) for each in drawn]) + prompt
        rows["prompt_id"] = numbered.astype(np.int64)
        rows["step"] = np.int32(numbers[0] + step)
        parts.append(rows)
        prompt += len(drawn)
    return Trace(pd.concat(parts, ignore_index=True).astype(trace.rows.dtypes), trace.origin)


def _fit(observed: Observed, simulation: Simulation) -> Fitted | None:
    """Return how the model is made to agree with the log; None if it times neither rollouts nor steps."""
    logged, count = observed.logged, len(observed.step_numbers())
    if logged is None or (ROLLOUT not in logged.times and logged.unsplit(count) is None):
        return None
    rows = simulation.run().log.step_rows[:count]
    modelled_s = np.array([row["rollout_end_s"] - row["start_s"] for row in rows])
    after_s = np.array([row["end_s"] - row["rollout_end_s"] for row in rows])
    rollouts = _rollouts(logged, modelled_s)
    readings = readings_of(rollouts)
    if logged.unexplained() > MOST_UNEXPLAINED:
        readings = Readings(readings.misfit, ())
    fixed_s = readings.fit.fixed_s if readings.all else rollouts.least_s
    all_s = rollouts.generations * modelled_s
    if logged.by_step_s(ROLLOUT) is None:
        scale, fit = fit_means(float((rollouts.rollout_s - fixed_s).mean()), all_s)
    else:
        times = Times(rollouts.rollout_s, logged.by_step_s(STEP), all_s, all_s + after_s, fixed_s)
        scale, fit = fit_scale(times, observed.step_numbers())
    fit = msgspec.structs.replace(
        fit,
        generations=float(rollouts.generations.mean()),
        fixed_s=(float(rollouts.least_s.mean()), float(rollouts.most_s.mean())),
    )
    return Fitted(scale, fit, readings)


def _rollouts(logged: Logged, modelled_s: Floats) -> LoggedRollouts:
    """Return the rollouts of a log beside those of the model, [steps].

    Where steps are timed alone, all that is left of one may be its rollout, and all but half of what the
    model says may be something else.
    """
    count = len(modelled_s)
    left_s = logged.unsplit(count)
    if left_s is not None:
        return LoggedRollouts(
            rollout_s=left_s, least_s=np.zeros(count), most_s=np.maximum(left_s - modelled_s / MISFIT, 0.0),
            longest_s=left_s, generations=np.ones(count), modelled_s=modelled_s, engine=1.0,
        )  # fmt: skip
    by_step_s = logged.by_step_s(ROLLOUT)
    return LoggedRollouts(
        rollout_s=np.full(count, logged.times[ROLLOUT].mean_s) if by_step_s is None else by_step_s,
        least_s=logged.rollout_by_step(LEAST, count),
        most_s=logged.rollout_by_step(MOST, count),
        longest_s=logged.rollout_by_step(LONGEST, count),
        generations=logged.rollout_by_step(GENERATIONS, count),
        modelled_s=modelled_s,
        engine=ENGINE if logged.within else 1.0,
    )


def _answer(
    replay: Replay, policies: PolicySet, fitted: Fitted | None, modelled: pd.DataFrame, price: float | None
) -> Counterfactual:
    """Return the answer but for its flags; `modelled` are the steps of the observed policy."""
    observed, baseline = replay.observed, policies.baseline
    modelled = modelled.sort_values("step", ignore_index=True).iloc[: len(observed.step_numbers())]
    drafting = any(each.drafts for each in policies.simulations.values())
    return Counterfactual(
        source=observed.source,
        read_as=observed.read_as,
        policy=policies.names[0],
        lengths=length_facts(observed.trace),
        lengths_source=observed.trace.origin.text(),
        times_source="" if observed.logged is None else observed.logged.source,
        times=() if observed.logged is None else tuple(observed.logged.times.values()),
        steps=_steps(observed, modelled, fitted),
        fit=None if fitted is None else fitted.fit,
        needed=needed_of(observed, baseline, fitted),
        cost_source=cost_source(baseline),
        acceptance_source=baseline.law.source if drafting else "not used",
        price_usd_per_gpu_hour=price,
        assumptions=replay.assumptions,
        flags=(),
    )


def _steps(observed: Observed, modelled: pd.DataFrame, fitted: Fitted | None) -> tuple[ObservedStep, ...]:
    logged = observed.logged
    timed = fitted is not None and logged is not None and ROLLOUT in logged.times
    fixed_s = fitted.fixed_s(len(modelled)) if fitted is not None and timed else np.zeros(len(modelled))
    rollout_s = None if logged is None else logged.by_step_s(ROLLOUT)
    step_s = None if logged is None else logged.by_step_s(STEP)
    facts = observed.trace.rows.groupby("step")["response_tokens"].agg(["size", "sum", "max"]).sort_index()
    rows = zip(facts.index.tolist(), facts.to_dict("records"), strict=True)
    return tuple(
        ObservedStep(
            step=number,
            responses=int(row["size"]),
            response_tokens=int(row["sum"]),
            longest_tokens=int(row["max"]),
            rollout_s=None if rollout_s is None else float(rollout_s[index]),
            step_s=None if step_s is None else float(step_s[index]),
            modelled_rollout_s=float(
                modelled["rollout_end_s"].iloc[index] - modelled["start_s"].iloc[index] + fixed_s[index]
            ),
            modelled_step_s=float(modelled["end_s"].iloc[index] - modelled["start_s"].iloc[index]),
        )
        for index, (number, row) in enumerate(rows)
    )
