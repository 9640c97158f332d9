"""What stops or qualifies a conclusion from a training comparison."""

from __future__ import annotations

from tlt.analysis.comparison.compare import differences
from tlt.analysis.crosscheck.flags import Flag
from tlt.analysis.drawing.estimates import change, interval_words, outside
from tlt.analysis.training.facts import PolicyFacts
from tlt.analysis.training.run import TrainRun, TrainSet
from tlt.traces.common.intervals import FEW_STEPS, few_words
from tlt.traces.lengths.run_as_trace import by_request
from tlt.traces.runs.training import PREEMPTION_AIM_S, late_stops


def find_flags(runs: TrainSet, policies: tuple[PolicyFacts, ...]) -> tuple[Flag, ...]:
    """Return the flags of all policies (in the order of the runs), those that stop first."""
    flags = [Flag("differences", text.rstrip("."), False) for text in differences(runs.runs)]
    steps = len(runs.policies[0].run.steps)
    if steps < FEW_STEPS:
        flags.append(Flag("steps", few_words(steps, "RL step"), False))
    for run, policy in zip(runs.policies, policies, strict=True):
        flags += [
            *_prompts(run, runs.policies[0]),
            *_lengths(policy, policies[0]),
            *_pace(policy, policies[0]),
            *_rewards(policy, policies[0]),
        ]
        flags += [*_compiled(run), *_stops(run), *_unbooked(run, policy)]
        flags += [Flag("run", f"{run.policy}: {text}", False) for text in _own_warnings(run)]
    return tuple(sorted(flags, key=lambda flag: not flag.stops))


def _own_warnings(run: TrainRun) -> list[str]:
    """Return the run's own warnings, but for those on compilations, which are counted here."""
    return [text.rstrip(".") for text in run.run.summary.warnings if "compilation" not in text]


def _prompts(run: TrainRun, baseline: TrainRun) -> list[Flag]:
    columns = ("step", "request", "group", "prompt_tokens")
    one, other = (by_request(each.run.responses, *columns) for each in (run, baseline))
    if one.equals(other):
        return []
    return [Flag("prompts", f"{run.policy} was asked other prompts than {baseline.policy}", True)]


def _lengths(policy: PolicyFacts, baseline: PolicyFacts) -> list[Flag]:
    lengths = policy.lengths
    if lengths.same_as_baseline or lengths.mean_ratio is None or lengths.longest_ratio is None:
        return []
    mean, longest = change(lengths.mean_ratio, "shorter", "longer"), lengths.longest_ratio
    chance = (
        "more than the spread over steps explains"
        if outside(lengths.mean_ratio, 1.0)
        else "as sampled lengths do by chance"
    )
    text = (
        f"{policy.policy} generated other lengths than {baseline.policy}: in the mean {mean}, {chance}; the "
        f"longest of a step, which ends its rollout, are {change(longest, 'shorter', 'longer')}. Speedups "
        "include this; tokens a second of the rollout, which depend less on it, are "
        f"{policy.time.token_speedup.value:.2f} times the baseline's"
    )
    if policy.time.equal_lengths is not None:
        text += (
            f". At equal lengths a worker's rollout is {interval_words(policy.time.equal_lengths)} as fast"
        )
    return [Flag("lengths", text, False)]


def _pace(policy: PolicyFacts, baseline: PolicyFacts) -> list[Flag]:
    """Tell of a machine that ran faster or slower under one policy than under the other."""
    pace = policy.time.pace
    if pace is None or not pace.unlike:
        return []
    return [Flag("pace", pace.words(policy.policy, baseline.policy), False)]


def _rewards(policy: PolicyFacts, baseline: PolicyFacts) -> list[Flag]:
    rewards = policy.rewards
    found = (
        (f"the last {rewards.final_steps} steps" if rewards.final_steps > 1 else "the last step",
         rewards.final_difference),
        ("all steps", rewards.difference),
    )  # fmt: skip
    return [
        Flag(
            "rewards",
            f"{policy.policy}: over {where} the mean reward is {abs(estimate.value):.3f} "
            f"{'below' if estimate.value < 0 else 'above'} that of {baseline.policy}, which is beyond its "
            "interval over prompt groups; a run with another seed would tell chance from the policy",
            False,
        )
        for where, estimate in found
        if estimate is not None and outside(estimate, 0.0)
    ]


def _compiled(run: TrainRun) -> list[Flag]:
    if not run.compiled_engine_steps:
        return []
    count = f"{run.compiled_engine_steps} timed engine step{'' if run.compiled_engine_steps == 1 else 's'}"
    return [
        Flag("compiled", f"{run.policy}: something was compiled inside {count}, which took too long", False)
    ]


def _stops(run: TrainRun) -> list[Flag]:
    """Tell of steps in which drafter training did not make way in time."""
    if not run.trained():
        return []
    found = late_stops(run.updates)
    if not found.late:
        return []
    text = (
        f"{run.policy}: in {found.late} of {found.steps} steps drafter training took longer than "
        f"{1000 * PREEMPTION_AIM_S:.0f} ms to make way, at most {1000 * found.longest_s:,.0f} ms"
    )
    return [Flag("stops", text, False)]


def _unbooked(run: TrainRun, policy: PolicyFacts) -> list[Flag]:
    """Tell of a drafter that was trained in time that is booked to something else."""
    if not run.trained() or policy.idle.drafter_gpu_s > 0.0:
        return []
    text = (
        f"{run.policy}: {int(run.run.steps['trained_tokens'].sum()):,} tokens of drafter training, but no "
        "time of the rollouts is booked to it: its use of idle time is unknown, and idle time is overstated"
    )
    return [Flag("unbooked", text, False)]
