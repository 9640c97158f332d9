"""What other policies and schedules would have done with the lengths of a run that was observed.

The observed policy is simulated first: its error against the run's log comes before any other figure. Where
the log has rollout seconds one factor on all step times is fitted to half of its steps
(sim.counterfactual.fit_to_log), and phases take as long as the log says. Then every policy rolls out the same
lengths in the same steps and groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from tlt.sim.advise.ceilings import write_bounds
from tlt.sim.comparison import compare
from tlt.sim.config import Config, resolve
from tlt.sim.counterfactual.draws import write_draws
from tlt.sim.counterfactual.fit_to_log import Scale, Times, fit_means, fit_scale
from tlt.sim.counterfactual.flags import flags_of
from tlt.sim.counterfactual.log_times import ROLLOUT, STEP
from tlt.sim.counterfactual.observed_run import Observed, length_facts
from tlt.sim.counterfactual.settings import Settings, settings_of_run
from tlt.sim.simulation import Simulation, probe
from tlt.traces.common.seeds import LOG_SCALE, RESAMPLED_PROMPTS, generator
from tlt.traces.lengths.files import write_trace
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.counterfactual import (
    COUNTERFACTUAL,
    OBSERVED_TRACE,
    Counterfactual,
    LogFit,
    ObservedStep,
)
from tlt.traces.runs.runfolder import RunFolder, run_name, write_json
from tltsched.errors import InputError
from tltsched.policy_name import PolicyName

RESAMPLED_STEPS = 8  # of a run that has one step
SCHEDULES = ("tail_batching", "divided", "oversample_partial", "longest_first")


@dataclass(frozen=True)
class Request:
    """What a user asks.

    `policies` None: those that suit the acceptance law. `observed_policy` None: what the run states, else
    none.
    """

    settings: dict[str, Any]
    policies: list[str] | None
    observed_policy: str | None
    price_usd_per_gpu_hour: float | None
    draws: int


def counterfactual(
    observed: Observed, request: Request, out: Path, progress: Callable[[str, int], None]
) -> Counterfactual:
    """Reproduce the run and simulate the policies into the comparison folder `out`; `progress(policy, step)`.

    Raises InputError for settings that are missing or wrong.
    """
    steps = request.settings.get("workload", {}).get("steps")
    if isinstance(steps, int) and steps > 0:
        observed = observed.first(steps)
    policy = request.observed_policy or observed.policy
    settings = settings_of_run(observed, request.settings, out / OBSERVED_TRACE, _simulated_steps(observed))
    names = policies_of(request.policies, resolve(settings.values, policy), policy)
    names = _possible(names, settings.values, observed, named=request.policies is not None)
    lengths = lengths_to_replay(observed, settings.seed)
    for name in names:
        Simulation(resolve(settings.values, name), lengths)  # checked before anything is written
    out.mkdir(parents=True, exist_ok=True)
    write_trace(lengths, out / OBSERVED_TRACE, force=True)
    scale, fit = _fit(observed, resolve(settings.values, policy), lengths)
    if scale is not None:
        settings = settings.scaled(scale.value)
    trace = compare(settings.values, names, out, progress)
    base = resolve(settings.values, names[0])
    write_bounds(base, trace, out)
    if request.draws:
        write_draws(
            settings.values, names, trace, out, request.draws, scale, lambda policy: progress(policy, -1)
        )
    told = _tell(observed, request, settings, base, fit, RunFolder(out / run_name(names[0])).steps(), names)
    write_json(out / COUNTERFACTUAL, told)
    return told


def policies_of(named: list[str] | None, config: Config, policy: str) -> list[str]:
    """Return the policies, the observed policy first; by default a few of each kind."""
    if named is not None:
        return [policy, *(name for name in named if name != policy)]
    trees = config.acceptance.kind == "published_tree" and config.drafter.kind == "head"
    drafting = ("static:10_8_16", "tlt", "goodput_trees") if trees else ("static:4", "tlt_chains", "goodput")
    whole = PolicyName.parse(policy)
    others = [str(whole.on(schedule)) for schedule in SCHEDULES if schedule != whole.schedule]
    return [policy, *(name for name in ("none", *drafting) if name != policy), *others]


def _possible(names: list[str], values: dict[str, Any], observed: Observed, *, named: bool) -> list[str]:
    """Return the policies without those whose steps could not train on as many responses as the run did.

    Raises InputError if one of those was named, or a policy is none.
    """
    reordering = [name for name in names if not resolve(values, name).cluster.schedule_spec().keeps_order]
    sizes = observed.trace.rows.groupby(["step", "prompt_id"]).size()
    if not reordering or sizes.min() == sizes.max():
        return names
    if named:
        raise InputError(
            "--policies", reordering[0], "schedules that keep the order of samples",
            f"prompts of this run have {sizes.min()} to {sizes.max()} responses: leave it out",
        )  # fmt: skip
    return [name for name in names if name not in reordering]


def _simulated_steps(observed: Observed) -> int:
    steps = len(observed.step_numbers())
    return RESAMPLED_STEPS if steps == 1 else steps


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


def _fit(observed: Observed, config: Config, lengths: Trace) -> tuple[Scale | None, LogFit | None]:
    """Return the factor on all step times that the log asks for; nothing if it has no rollout seconds."""
    logged = observed.logged
    if logged is None or ROLLOUT not in logged.times:
        return None, None
    numbers = observed.step_numbers()
    rows = Simulation(config, lengths).run().log.step_rows[: len(numbers)]
    rollout_s = np.array([row["rollout_end_s"] - row["start_s"] for row in rows])
    step_s = np.array([row["end_s"] - row["start_s"] for row in rows])
    by_step_s = logged.by_step_s(ROLLOUT)
    if by_step_s is None:
        return fit_means(logged.times[ROLLOUT].mean_s, rollout_s)
    times = Times(by_step_s, logged.by_step_s(STEP), rollout_s, step_s)
    rng = generator(config.run.seed, LOG_SCALE)
    return fit_scale(times, numbers, rng)


def _tell(
    observed: Observed,
    request: Request,
    settings: Settings,
    base: Config,
    fit: LogFit | None,
    modelled: pd.DataFrame,
    policies: list[str],
) -> Counterfactual:
    numbers = observed.step_numbers()
    modelled = modelled.sort_values("step", ignore_index=True).iloc[: len(numbers)]
    simulation = Simulation(base, observed.trace)
    drafting = [name for name in policies if _drafts(resolve(settings.values, name))]
    told = Counterfactual(
        source=observed.source,
        read_as=observed.read_as,
        policy=policies[0],
        lengths=length_facts(observed.trace),
        lengths_source=observed.trace.origin.text(),
        times_source="" if observed.logged is None else observed.logged.source,
        times=() if observed.logged is None else tuple(observed.logged.times.values()),
        steps=_steps(observed, modelled),
        fit=fit,
        cost_source=simulation.cost_source(),
        acceptance_source=simulation.law.source if drafting else "not used",
        price_usd_per_gpu_hour=request.price_usd_per_gpu_hour,
        assumptions=settings.assumptions,
        flags=(),
    )
    reordering = any(
        not resolve(settings.values, name).cluster.schedule_spec().keeps_order for name in policies
    )
    return msgspec.structs.replace(told, flags=flags_of(told, observed, reordering))


def _drafts(config: Config) -> bool:
    assert not isinstance(config.policy, str), "resolve() turns names into settings"
    return any(draft.depth for draft in probe(config.policy).draft_configs)


def _steps(observed: Observed, modelled: pd.DataFrame) -> tuple[ObservedStep, ...]:
    logged = observed.logged
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
            modelled_rollout_s=float(modelled["rollout_end_s"].iloc[index] - modelled["start_s"].iloc[index]),
            modelled_step_s=float(modelled["end_s"].iloc[index] - modelled["start_s"].iloc[index]),
        )
        for index, (number, row) in enumerate(rows)
    )
