"""The answer in words: which policy is fastest, by how much, and whether that could be otherwise."""

from __future__ import annotations

import msgspec

from tlt.analysis.comparison.compare import ComparisonTable, Row
from tlt.analysis.cost_draws import Recommendation
from tlt.analysis.drawing.estimates import interval_words
from tlt.analysis.drawing.regrets import regret_sentences
from tlt.analysis.load import Run, RunSet
from tlt.traces.common.intervals import FEW_DRAWS, FEW_STEPS, Estimate, few_words, mean_difference_s
from tlt.traces.common.regret import Regrets, regrets_over_steps
from tlt.traces.results.bounds import Bounds
from tlt.traces.runs.runfolder import CAUSES


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `gain` is best over baseline; 1 means no difference.

    `recommended` is the best policy only if its gain's interval lies above 1, and the baseline otherwise. Of
    a recommendation the intervals and `regrets` pool the spread over steps and the drawn step times.
    """

    best: str
    runner_up: str | None
    recommended: str
    is_gain: bool
    gain: Estimate
    regrets: Regrets | None  # of the recommended policy; None: there is no other
    sentence: str
    covers: str  # what the intervals rest on, where that is not said of every comparison
    ceiling: str = ""  # how far any schedule could go, where that is known


def judge(table: ComparisonTable, runs: RunSet) -> Verdict:
    """Return the verdict over a table and the runs it was made from. A single run has no rival.

    Nor is one that knows lengths in advance, unless it is the baseline.
    """
    rows = tuple(row for row in table.rows if row is table.rows[0] or not row.schedule.clairvoyant)
    unranked = _unranked_sentence(table.rows[1:])
    if len(rows) == 1:
        return _alone(rows[0], unranked)
    ranked = sorted(rows, key=lambda row: row.total_s)  # stable: the baseline wins a tie
    best, second = ranked[0], ranked[1]
    step_s = {
        run.policy: runs.step_seconds(run) for run in runs.runs if run.policy in {row.policy for row in rows}
    }
    saved_s = mean_difference_s(step_s[rows[0].policy], step_s[best.policy])
    is_gain = best is not rows[0] and best.speedup.above(1.0)
    recommended = best.policy if is_gain else rows[0].policy
    regrets = regrets_over_steps(step_s, recommended)
    sentences = [
        _gain_sentence(best, rows[0], is_gain, table.steps, saved_s),
        *(regret_sentences(regrets) if regrets is not None else ()),
        _schedule_sentence(best, rows[0]),
        _losers_sentence(rows),
        unranked,
    ]
    covers = [
        _cover_sentence(runs.recommendation, table.steps) if table.steps > 1 else "",
        _few_sentence(table.steps, runs.recommendation),
    ]
    return Verdict(
        best=best.policy,
        runner_up=second.policy,
        recommended=recommended,
        is_gain=is_gain,
        gain=best.speedup,
        regrets=regrets,
        sentence=" ".join(filter(None, sentences)),
        covers=" ".join(filter(None, covers)),
        ceiling=ceiling_sentence(runs.bounds, runs.runs[0]),
    )


def _alone(row: Row, unranked: str) -> Verdict:
    used = {cause: gpu_s for cause, gpu_s in row.ledger.gpu_seconds.items() if gpu_s > 0}
    most = max(used, key=lambda cause: used[cause], default="")
    words = f"Under {row.policy} an RL step takes {row.mean_step_s:.4g} s in the mean. "
    words += f"{row.idle_share:.1%} of the GPU time is idle"
    words += f" and {row.rollout_share:.1%} of the step is rollout."
    if most:
        words += f" Most GPU time goes to: {CAUSES[most][1]} ({row.ledger.share(used[most]):.1%})."
    return Verdict(
        best=row.policy,
        runner_up=None,
        recommended=row.policy,
        is_gain=False,
        gain=row.speedup,
        regrets=None,
        sentence=f"{words} {unranked or 'A speedup needs a second run of the same lengths.'}",
        covers="",
    )


def _gain_sentence(best: Row, baseline: Row, is_gain: bool, steps: int, saved_s: Estimate) -> str:
    if is_gain:
        return (
            f"Run {best.policy}: its RL steps are {interval_words(best.speedup)} as fast as under "
            f"{baseline.policy}, over {steps} steps; it saves {interval_words(saved_s, ' s')} a step."
        )
    if best is baseline:
        return f"Stay with {baseline.policy}: no other policy was faster over {steps} steps."
    if best.speedup.interval is None:
        return (
            f"No gain is claimed over {baseline.policy}: {best.policy} was fastest with a speedup of "
            f"{interval_words(best.speedup)}, so the spread between steps is unknown."
        )
    return (
        f"No policy is a gain over {baseline.policy}: the fastest, {best.policy}, has a speedup of "
        f"{interval_words(best.speedup)}, which is not above 1."
    )


def _schedule_sentence(best: Row, baseline: Row) -> str:
    """Say what the fastest policy's rollout schedule costs beside time, where the baseline's does not."""
    schedule, words = best.schedule, []
    if schedule.on_policy != baseline.schedule.on_policy or schedule.staleness_max:
        words.append(
            f"trains on responses that are {schedule.staleness_mean:.2f} policy updates old in the mean and "
            f"{schedule.staleness_max} at most"
        )
    if not schedule.keeps_order and baseline.schedule.keeps_order:
        words.append("changes the order of samples")
    if schedule.wasted_share >= 0.001:
        words.append(f"throws {schedule.wasted_share:.1%} of the generated tokens away")
    if schedule.clairvoyant:
        words.append("needs to know lengths in advance, so that nobody can run it")
    return f"Its schedule, {schedule.name}, {', and '.join(words)}." if words else ""


def _unranked_sentence(rows: tuple[Row, ...]) -> str:
    knowing = [f"{row.policy} ({row.speedup.value:.3g}x)" for row in rows if row.schedule.clairvoyant]
    if not knowing:
        return ""
    return f"Not ranked, since nobody can know lengths in advance: {', '.join(knowing)}."


def _losers_sentence(rows: tuple[Row, ...]) -> str:
    slower = [
        f"{row.policy} ({row.speedup.value:.3g}x)"
        for row in rows[1:]
        if row.speedup.interval is not None and row.speedup.interval[1] < 1
    ]
    return f"Slower than {rows[0].policy}: {', '.join(slower)}." if slower else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cover_sentence(recommendation: Recommendation | None, steps: int) -> str:
    """Say what the intervals of a recommendation cover and what they do not."""
    if recommendation is None:
        return ""
    lengths = f"lengths ({steps} RL steps)"
    found, draws = recommendation.error, recommendation.draws()
    error = f"step-time error of {100 * found.share:.1f} %, {found.source}"
    if draws == 0:
        return (
            f"The intervals are over {lengths} only, since no step times were drawn (draws = 0). They cover "
            f"neither the {error}, nor acceptance, which is given."
        )
    way = ", linear response" if found.linear else ""
    return (
        f"The intervals are over {lengths} and {error} ({_count(draws, 'draw')}{way}). "
        "They do not cover acceptance, which is given."
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


class Ceiling(msgspec.Struct, frozen=True):
    """A step time that is not undercut. `speedup` is the baseline's mean step over it."""

    words: str
    seconds: float
    speedup: float


def ceilings(bounds: Bounds, baseline: Run) -> list[Ceiling]:
    """Return the bounds on the mean step, the closest to the baseline first as far as each goes."""
    rows = bounds.rows
    step_s = float(baseline.step_seconds().mean())
    drafted = [seconds for row in rows if (seconds := row.drafted_s()) is not None]
    means = [("lengths known, no drafts", _mean([row.plain_s() for row in rows]))]
    if len(drafted) == len(rows):
        means.append(("lengths known, best drafts throughout", _mean(drafted)))
    means.append(("rollouts take no time (Amdahl)", _mean([row.phases_s for row in rows])))
    means.append(("responses carried over, all workers busy", _mean([row.carried_s() for row in rows])))
    return [Ceiling(words, seconds, step_s / seconds) for words, seconds in means if seconds > 0]


def ceiling_sentence(bounds: Bounds | None, baseline: Run) -> str:
    """Say how far any schedule could go; empty if nothing is known."""
    if bounds is None or not bounds.rows:
        return ""
    parts = [f"{each.speedup:.2f}x ({each.words})" for each in ceilings(bounds, baseline)]
    return (
        f"How far any schedule could go on the cluster of {baseline.policy}, over it: at most "
        f"{', '.join(parts)}. Each is a bound, not a promise: prefill is left out, and acceptance is the "
        "expected one."
    )


def _mean(seconds: list[float]) -> float:
    return sum(seconds) / len(seconds)
