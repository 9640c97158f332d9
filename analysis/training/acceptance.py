"""Acceptance over a training run: by step, by position, by the drafter's age, and across policy updates.

Acceptance lengths are tokens that a drafting engine step yields for a request, the bonus token counted. Those
of a rollout mix whatever numbers of drafts the policy chose; probes measure the served head and the initial
head on the same responses, those of the step, and so compare drafters and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pandas as pd

from tlt.analysis.comparison.drawn.by_step import acceptance_by_step, drafter_age
from tlt.analysis.comparison.pace import PaceFacts, against
from tlt.analysis.training.equal_lengths import at_equal_lengths
from tlt.analysis.training.run import TrainRun
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import Estimate, Jackknife
from tlt.traces.runs.acceptance import acceptance_length_with_bonus
from tltsched.written.policy_name import PolicyName

PROBES = ("sampled", "greedy")


class StepAcceptance(msgspec.Struct, frozen=True, kw_only=True):
    """One RL step: of the rollout, and of the probes where there are any (tokens, bonus counted)."""

    step: int
    version: int  # of the drafter that served
    age_steps: int  # policy updates since it was published
    length: float | None  # of the rollout; None: nothing was drafted
    serving_sampled: float | None
    serving_greedy: float | None
    initial_sampled: float | None
    initial_greedy: float | None


class PositionAcceptance(msgspec.Struct, frozen=True, kw_only=True):
    """One position of the draft over all steps; `accepted`: share of the engine steps that drafted so far."""

    position: int
    request_steps: int
    accepted: Estimate


class AgeAcceptance(msgspec.Struct, frozen=True, kw_only=True):
    """All steps in which the drafter had one age."""

    age_steps: int
    steps: int
    length: float


class FrozenPair(msgspec.Struct, frozen=True, kw_only=True):
    """A policy whose drafter was trained, and the one of the same policy whose drafter was not."""

    trained: str
    frozen: str
    difference: Estimate  # of acceptance length (bonus counted), trained less frozen, mean over steps
    slope_per_step: Estimate  # by which the difference grows from one RL step to the next
    step_speedup: Estimate  # end to end, of the trained over the frozen policy
    rollout_speedup: Estimate
    pace: PaceFacts | None  # None: no record of single engine steps
    equal_lengths: Estimate | None  # speedup of a worker's rollout; None: equal anyway, or not to be told


class AcceptanceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance of one policy. Changes and slopes are tokens of acceptance length, bonus counted."""

    length: Estimate
    by_step: tuple[StepAcceptance, ...]
    by_position: tuple[PositionAcceptance, ...]
    by_age: tuple[AgeAcceptance, ...]
    slope_per_step: Estimate  # of the rollout's acceptance length; frozen: what drift costs
    change_same_head: Estimate  # from one step to the next where the same version goes on serving
    change_new_head: Estimate  # where a version trained since takes over: the update and the recovery
    probe_gain_sampled: Estimate  # served head less initial head, on the same responses
    probe_gain_greedy: Estimate
    probe_slope_initial: Estimate  # a step, of the initial head (sampled): what drift costs a frozen head


def acceptance_facts(run: TrainRun) -> AcceptanceFacts | None:
    """Return the acceptance of a policy, or None if it drafted nothing."""
    if not run.drafted():
        return None
    steps = run.run.steps
    accepted, request_steps = (steps[name].to_numpy(float) for name in ("accepted_tokens", "request_steps"))
    over_steps = Jackknife(len(steps))
    probes = probe_lengths(run)
    same, new = _changes(run)
    return AcceptanceFacts(
        length=over_steps.estimate_ratio(accepted, request_steps).mapped(lambda drafts: 1.0 + drafts),
        by_step=_by_step(run, probes),
        by_position=_by_position(run, over_steps),
        by_age=_by_age(run),
        slope_per_step=_slope(steps["step"].to_numpy(float), acceptance_by_step(run.run)),
        change_same_head=Jackknife(len(same), "updates").mean(same),
        change_new_head=Jackknife(len(new), "updates").mean(new),
        probe_gain_sampled=_gain(probes, "sampled"),
        probe_gain_greedy=_gain(probes, "greedy"),
        probe_slope_initial=_slope(
            probes.index.to_numpy(float), probes["initial_sampled"].to_numpy(np.float64)
        ),
    )


def frozen_pairs(policies: Sequence[TrainRun]) -> tuple[FrozenPair, ...]:
    """Return every pair of policies that differ in nothing but whether the drafter was trained.

    Policies are named POLICY/online (or POLICY alone) and POLICY/frozen.
    """
    named = [(PolicyName.parse(policy.policy), policy) for policy in policies]
    frozen = {name.with_drafter(None): policy for name, policy in named if name.drafter == "frozen"}
    pairs = [
        (policy, frozen.get(name.with_drafter(None))) for name, policy in named if name.drafter != "frozen"
    ]
    return tuple(_pair(policy, still) for policy, still in pairs if still is not None)


def _pair(trained: TrainRun, frozen: TrainRun) -> FrozenPair:
    differences = acceptance_by_step(trained.run) - acceptance_by_step(frozen.run)
    known = np.isfinite(differences)
    some, every = Jackknife(int(known.sum())), Jackknife(len(known))
    steps = trained.run.steps["step"].to_numpy(float)
    return FrozenPair(
        trained=trained.policy,
        frozen=frozen.policy,
        difference=some.mean(differences[known]),
        slope_per_step=_slope(steps, differences),
        step_speedup=every.estimate_ratio(frozen.step_s(), trained.step_s(), positive=True),
        rollout_speedup=every.estimate_ratio(frozen.rollout_s(), trained.rollout_s(), positive=True),
        pace=against(trained.run, frozen.run),
        equal_lengths=at_equal_lengths(trained, frozen),
    )


def probe_lengths(run: TrainRun) -> pd.DataFrame:
    """Return expected acceptance lengths with bonus by step: columns serving_sampled ... initial_greedy.

    A probe's figure at a position is the share of chains accepted up to there, so the length is 1 + their
    sum. Steps without probes are left out.
    """
    sums = run.probes.groupby(["head", "step"], as_index=False)[list(PROBES)].sum()
    columns = {
        f"{head}_{kind}": 1.0 + sums[sums["head"] == head].set_index("step")[kind]
        for head in ("serving", "initial")
        for kind in PROBES
    }
    return pd.DataFrame(columns).astype(np.float64).sort_index()


def _by_step(run: TrainRun, probes: pd.DataFrame) -> tuple[StepAcceptance, ...]:
    known = probes.reindex(run.run.steps["step"])
    lengths, steps = acceptance_by_step(run.run), run.run.steps
    return tuple(
        StepAcceptance(
            step=int(steps["step"].iloc[at]),
            version=int(steps["drafter_version"].iloc[at]),
            age_steps=int(steps["drafter_age_steps"].iloc[at]),
            length=_known(lengths[at]),
            serving_sampled=_known(known["serving_sampled"].iloc[at]),
            serving_greedy=_known(known["serving_greedy"].iloc[at]),
            initial_sampled=_known(known["initial_sampled"].iloc[at]),
            initial_greedy=_known(known["initial_greedy"].iloc[at]),
        )
        for at in range(len(steps))
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _by_position(run: TrainRun, over_steps: Jackknife) -> tuple[PositionAcceptance, ...]:
    steps = run.run.steps["step"]
    rows = []
    for position, some in run.positions.groupby("position"):
        by_step = some.set_index("step").reindex(steps, fill_value=0)
        drafted, accepted = by_step["drafted"].to_numpy(float), by_step["accepted"].to_numpy(float)
        share = over_steps.share(accepted, drafted)
        rows.append(
            PositionAcceptance(position=int(str(position)), request_steps=int(drafted.sum()), accepted=share)
        )
    return tuple(rows)


def _by_age(run: TrainRun) -> tuple[AgeAcceptance, ...]:
    steps = run.run.steps.assign(age=drafter_age(run.run))
    drafted = steps[(steps["request_steps"] > 0) & steps["age"].notna()]
    rows = []
    for age, some in drafted.groupby("age"):
        length = acceptance_length_with_bonus(some)
        assert length is not None  # each of them drafted
        rows.append(AgeAcceptance(age_steps=int(float(str(age))), steps=len(some), length=length))
    return tuple(rows)


def _slope(x: Floats, y: Floats) -> Estimate:
    known = np.isfinite(y)
    units = Jackknife(int(known.sum()), parameters=2)
    return units.estimate(units.slope(x[known], y[known]))


def _changes(run: TrainRun) -> tuple[Floats, Floats]:
    """Return the changes from each step to the next: under the same drafter version, and under a new one."""
    lengths = acceptance_by_step(run.run)
    versions = run.run.steps["drafter_version"].to_numpy()
    following = np.diff(run.run.steps["step"].to_numpy()) == 1
    changes, same = np.diff(lengths), np.diff(versions) == 0
    known = np.isfinite(changes) & following
    return changes[known & same], changes[known & ~same]


def _gain(probes: pd.DataFrame, kind: str) -> Estimate:
    gains = (probes[f"serving_{kind}"] - probes[f"initial_{kind}"]).dropna().to_numpy(np.float64)
    return Jackknife(len(gains)).mean(gains)
