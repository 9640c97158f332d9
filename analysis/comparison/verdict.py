"""The answer in words: which policy is fastest, by how much, and whether that could be otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tlt.analysis.comparison.compare import ComparisonTable, Row
from tlt.analysis.comparison.premises import acceptance_words, premises_sentence
from tlt.analysis.comparison.sessions import session_sentence
from tlt.analysis.cost_draws import Recommendation
from tlt.analysis.drawing.estimates import interval_words, number
from tlt.analysis.drawing.regrets import regret_sentences
from tlt.analysis.load import Run, RunSet
from tlt.traces.common.intervals import FEW_DRAWS, FEW_STEPS, few_words, mean_difference_s
from tlt.traces.common.regret import Regrets
from tlt.traces.results.answer import AcceptanceRange, Ceiling
from tlt.traces.results.bounds import Bounds
from tlt.traces.runs.runfolder import CAUSES
from tltsched.written.parameters import split_parameters
from tltsched.written.policy_name import PolicyName

IDLE_HALF = 0.15  # of all GPU time, in one half of the GPUs alone


@dataclass(frozen=True, slots=True)
class Told:
    """What the words are made of: the table and its runs, the best policy, and the ranked ones."""

    table: ComparisonTable
    runs: RunSet
    best: Row
    is_gain: bool
    by_token: bool
    regrets: Regrets | None  # of what is recommended
    ranked: list[str]
    acceptance: AcceptanceRange | None = None

    @property
    def baseline(self) -> Row:
        """The policy that the others are held to."""
        return self.table.rows[0]


def sentences_of(told: Told) -> list[str]:
    """Return the answer in words, the headline first: what to run, what it costs beside time, what the
    choice may lose.
    """
    unranked = _unranked_sentence([row for row in told.table.rows if row.policy not in told.ranked])
    if len(told.table.rows) == 1:
        return list(
            filter(None, (*_alone(told.baseline, told.runs.runs[0], unranked), premises_sentence(told.runs)))
        )
    others = [row for row in told.table.rows if row.policy in told.ranked]
    sentences = [
        _gain_sentence(told),
        premises_sentence(told.runs),
        _idle_shares(told),
        session_sentence(next(run for run in told.runs.runs if run.policy == told.best.policy)),
        _schedule_sentence(told.best, told.baseline),
        *(regret_sentences(told.regrets) if told.regrets is not None else ()),
        _losers_sentence(others),
        unranked,
        idle_sentence(told.table),
    ]
    return list(filter(None, sentences))


def covers_sentence(told: Told) -> str:
    """Return what the intervals rest on, where that is not said of every comparison."""
    steps, recommendation = told.table.steps, told.runs.recommendation
    if len(told.table.rows) == 1:
        return ""
    covers = [
        _cover_sentence(recommendation, steps, told.acceptance is not None) if steps > 1 else "",
        _few_sentence(steps, recommendation),
    ]
    return " ".join(filter(None, covers))


def _alone(row: Row, run: Run, unranked: str) -> tuple[str, ...]:
    used = {cause: gpu_s for cause, gpu_s in row.ledger.gpu_seconds.items() if gpu_s > 0}
    most = max(used, key=lambda cause: used[cause], default="")
    spent = f"Most GPU time goes to: {CAUSES[most][1]} ({row.ledger.share(used[most]):.1%})." if most else ""
    return (
        f"Under {row.policy} an RL step takes {row.mean_step_s:.4g} s in the mean. {row.idle_share:.1%} of "
        f"the GPU time is idle and {row.rollout_share:.1%} of the step is rollout.",
        spent,
        session_sentence(run),
        unranked or "A speedup needs a second run of the same lengths.",
    )


def _gain_sentence(told: Told) -> str:
    best, baseline, steps = told.best, told.baseline, told.table.steps
    if told.is_gain and told.by_token:
        return (
            f"Run {best.policy}: {_per_token(best)} s of RL steps a million trained tokens, "
            f"{interval_words(best.speedup)} as fast as {baseline.policy} ({_per_token(baseline)} s)"
            f"{_acceptance(told)}, over {steps} steps."
        )
    if told.is_gain:
        step_s = {run.policy: told.runs.counted_seconds(run) for run in told.runs.runs}
        saved_s = mean_difference_s(step_s[baseline.policy], step_s[best.policy])
        return (
            f"Run {best.policy}: its RL steps are {interval_words(best.speedup)} as fast as under "
            f"{baseline.policy}{_acceptance(told)}, over {steps} steps; it saves "
            f"{interval_words(saved_s, ' s')} a step."
        )
    by = ", by seconds a trained token," if told.by_token else ""
    if baseline.stood_still:
        return (
            f"Nothing is held against {baseline.policy}: a worker stood still for {baseline.stood_still} "
            "of its RL steps, which no policy is the reason for. Measure it again."
        )
    if best is baseline and len(told.ranked) == 1 and any(row.stood_still for row in told.table.rows):
        return f"Nothing is held against {baseline.policy}: no other policy can be ranked."
    if best is baseline:
        return f"Stay with {baseline.policy}: no other policy{by} was faster over {steps} steps."
    if best.speedup.interval is None:
        return (
            f"No gain is claimed over {baseline.policy}: {best.policy} was fastest{by} with a speedup of "
            f"{interval_words(best.speedup)}, so the spread between steps is unknown."
        )
    return (
        f"No policy is a gain over {baseline.policy}: the fastest{by or ','} {best.policy}, has a speedup of "
        f"{interval_words(best.speedup)}, which is not above 1."
    )


def _acceptance(told: Told) -> str:
    words = acceptance_words(told.acceptance)
    return f", {words}" if words else ""


def _per_token(row: Row) -> str:
    return number(row.schedule.seconds_per_million_tokens)


def _schedule_sentence(best: Row, baseline: Row) -> str:
    """Say what the fastest policy's rollout schedule costs beside time, where the baseline's does not."""
    schedule, words = best.schedule, []
    if schedule.on_policy != baseline.schedule.on_policy or schedule.staleness_max:
        lags, split = (schedule.in_flight_lag, schedule.in_queue_lag), ""
        if None not in lags:
            split = " ({:.2f} came in flight, {:.2f} in the queue)".format(*lags)
        words.append(
            f"trains on responses that are {schedule.staleness_mean:.2f} policy updates old in the mean and "
            f"{schedule.staleness_max} at most{split}"
        )
    if not schedule.keeps_order and baseline.schedule.keeps_order:
        words.append("changes the order of samples")
    if schedule.wasted_share >= 0.001:
        words.append(
            f"throws {schedule.wasted_share:.1%} of the generated tokens away "
            f"({number(schedule.wasted_gpu_s)} GPU-seconds of generation)"
        )
    pauses_s = best.ledger.gpu_seconds["sync_pause"]
    if pauses_s >= 0.001 * best.ledger.total_gpu_s():
        words.append(f"pauses for new weights ({pauses_s / best.ledger.total_gpu_s():.1%} of the GPU time)")
    if schedule.clairvoyant:
        words.append("needs to know lengths in advance, so that nobody can run it")
    return f"Its schedule, {schedule.name}, {', and '.join(words)}." if words else ""


def _unranked_sentence(rows: Sequence[Row]) -> str:
    knowing = [f"{row.policy} ({row.speedup.value:.3g}x)" for row in rows if row.schedule.clairvoyant]
    words = []
    if knowing:
        words.append(f"Not ranked, since nobody can know lengths in advance: {', '.join(knowing)}.")
    still = [f"{row.policy} ({row.stood_still})" for row in rows if row.stood_still]
    if still:
        words.append(f"Not ranked, since a worker stood still: {', '.join(still)}. Measure again.")
    behind = [
        f"{row.policy} ({row.left_behind:,})"
        for row in rows
        if row.unsettled and not row.schedule.clairvoyant
    ]
    if behind:
        words.append(
            f"Not ranked, since too many responses are under way or put off at the end: {', '.join(behind)}. "
            "Give more steps (workload.steps)."
        )
    return " ".join(words)


def _losers_sentence(rows: Sequence[Row]) -> str:
    slower = [
        f"{row.policy} ({row.speedup.value:.3g}x)"
        for row in rows[1:]
        if row.speedup.interval is not None and row.speedup.interval[1] < 1
    ]
    return f"Slower than {rows[0].policy}: {', '.join(slower)}." if slower else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cover_sentence(recommendation: Recommendation | None, steps: int, assumed: bool) -> str:
    """Say what the intervals of a recommendation cover and what they do not."""
    if recommendation is None:
        return ""
    given = "mean acceptance, whose range stands above" if assumed else "acceptance, which is given"
    lengths = f"lengths ({steps} RL steps)"
    found, draws = recommendation.error, recommendation.draws()
    error = f"step-time error of {100 * found.share:.1f} %, {found.source}"
    if draws == 0:
        return (
            f"The intervals are over {lengths} only, since no step times were drawn (draws = 0). They cover "
            f"neither the {error}, nor {given}."
        )
    way = ", linear response" if found.linear else ""
    return (
        f"The intervals are over {lengths} and {error} ({_count(draws, 'draw')}{way}). "
        f"They do not cover {given}."
    )


def _few_sentence(steps: int, recommendation: Recommendation | None) -> str:
    """Warn of intervals that rest on too little."""
    few = []
    draws = 0 if recommendation is None else recommendation.draws()
    if 2 <= steps < FEW_STEPS:
        few.append(f"{few_words(steps, 'step').capitalize()}.")
    if steps >= 2 and 0 < draws < FEW_DRAWS:
        words = (
            f"With only {_count(draws, 'draw')} the interval is likely too narrow; {FEW_DRAWS} or more are "
        )
        few.append(f"{words}better.")
    return " ".join(few)


def _idle_shares(told: Told) -> str:
    base, best = told.baseline, told.best
    words = f"Under {base.policy} {base.idle_share:.1%} of the GPU time is idle"
    return f"{words}." if best is base else f"{words}, under {best.policy} {best.idle_share:.1%}."


def idle_sentence(table: ComparisonTable) -> str:
    """Say where a half of the GPUs, trainers or rollouts, stands idle, and the share that would mend it."""
    return " ".join(filter(None, map(_idle_half, table.rows)))


def _idle_half(row: Row) -> str:
    trainers, rollouts = row.ledger.gpu_seconds["batch_wait"], row.ledger.gpu_seconds["admission_wait"]
    total = row.ledger.total_gpu_s()
    if row.trainer_share is None or max(trainers, rollouts) < IDLE_HALF * total:
        return ""
    share = row.trainer_share
    # what each half had to do, were it never idle: the shares of GPUs that give both as long for it
    busy = share * total - trainers, (1 - share) * total - rollouts
    better = min(max(busy[0] / max(sum(busy), 1e-9), 0.05), 0.95)
    who = "rollout workers" if rollouts > trainers else "trainers"
    return (
        f"Under {row.policy} the {who} are idle for {max(trainers, rollouts) / total:.0%} of all GPU time "
        f"with trainer_share = {share:.3g}; about {better:.2g} would keep both halves busy: compare "
        f"{_with_share(row.policy, better)}."
    )


SHARE = "trainer_share"


def _with_share(policy: str, share: float) -> str:
    name = PolicyName.parse(policy)
    schedule, given = split_parameters(name.schedule or "bounded_async", "schedule")
    given = {SHARE: f"{share:.2g}"} | {key: value for key, value in given.items() if key != SHARE}
    written = ",".join(f"{key}={value}" for key, value in given.items())
    return str(name.on(f"{schedule.partition(':')[0]}({written})"))


TOOLS = ", tools in no time"


def ceilings(bounds: Bounds, baseline: Run) -> list[Ceiling]:
    """Return the bounds on the mean step, the closest to the baseline first as far as each goes.

    Those of sessions say that their tools take no time in them: the bound is of what engines compute.
    """
    rows = bounds.rows
    step_s = float(baseline.step_seconds().mean())
    tools = TOOLS if baseline.sessions is not None else ""
    drafted = [seconds for row in rows if (seconds := row.drafted_s()) is not None]
    means = [(f"without drafts, lengths known{tools}", _mean([row.plain_s() for row in rows]), True)]
    if len(drafted) == len(rows):
        means.append((f"with the best drafts throughout, lengths known{tools}", _mean(drafted), True))
    means.append(("if rollouts took no time, Amdahl", _mean([row.phases_s for row in rows]), True))
    means.append(
        (f"with all workers busy throughout{tools}", _mean([row.carried_s() for row in rows]), False)
    )
    return [
        Ceiling(words, seconds, step_s / seconds, in_order)
        for words, seconds, in_order in means
        if seconds > 0
    ]


def ceiling_sentence(bounds: Bounds | None, baseline: Run) -> str:
    """Say how far schedules could go, by the class that a bound holds for; empty if nothing is known."""
    if bounds is None or not bounds.rows:
        return ""
    found = ceilings(bounds, baseline)
    parts = [f"{each.speedup:.2f}x ({each.words})" for each in found if each.in_order]
    others = [f"{each.speedup:.2f}x ({each.words})" for each in found if not each.in_order]
    words = (
        f"Bounds on the cluster of {baseline.policy}, over it. Schedules that train each step on its own "
        f"responses, in turn: at most {', '.join(parts)}."
    )
    if others:
        words += f" Any schedule, responses carried over too, for as many tokens: {', '.join(others)}."
    return (
        f"{words} Each is a bound, not a promise: prefill takes the least that it can, and acceptance is the "
        "expected one."
    )


def _mean(seconds: list[float]) -> float:
    return sum(seconds) / len(seconds)
