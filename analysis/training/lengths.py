"""Response lengths of a training policy: how long the tail is, and how far they differ from the baseline's.

With natural lengths two policies that sample from the same policy still get other lengths, by chance; a
rollout ends with its longest response, so that chance is part of a rollout's speedup.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.analysis.training.run import TrainRun
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import Estimate, Jackknife


class LengthFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of responses over all steps; ratios are this policy over the baseline, None for the baseline."""

    responses: int
    mean: Estimate
    median: float
    p90: float
    p99: float
    longest: int
    longest_over_median: float  # of all responses
    longest_over_median_in_step: Estimate  # mean over steps
    truncated: int
    same_as_baseline: bool  # every response has the length that it has in the baseline
    mean_ratio: Estimate | None
    longest_ratio: Estimate | None  # of the steps' longest responses, which end the rollouts


def length_facts(run: TrainRun, baseline: TrainRun) -> LengthFacts:
    """Return the lengths of a policy, against those of the baseline."""
    lengths = run.run.responses["response_tokens"].to_numpy(np.float64)
    median, p90, p99 = np.quantile(lengths, [0.5, 0.9, 0.99], method="inverted_cdf").tolist()
    sample = Jackknife(len(run.run.steps))
    longest, middle = longest_and_median(run)
    total, count = run.tokens(), run.responses_by_step()
    rival = run is not baseline
    mean = sample.ratio(total, count)
    base_mean = sample.ratio(baseline.tokens(), baseline.responses_by_step())
    return LengthFacts(
        responses=len(lengths),
        mean=sample.estimate(mean, positive=True),
        median=median,
        p90=p90,
        p99=p99,
        longest=int(lengths.max()),
        longest_over_median=float(lengths.max()) / max(1.0, median),
        longest_over_median_in_step=sample.mean(longest / np.maximum(middle, 1.0), positive=True),
        truncated=int(run.run.responses["truncated"].sum()),
        same_as_baseline=same_lengths(run, baseline),
        mean_ratio=sample.estimate(mean / base_mean, positive=True) if rival else None,
        longest_ratio=sample.estimate_ratio(longest, longest_and_median(baseline)[0], positive=True)
        if rival
        else None,
    )


def longest_and_median(run: TrainRun) -> tuple[Floats, Floats]:
    """Return the longest and the median response of each step in tokens, shape (steps,)."""
    by_step = run.run.responses.groupby("step")["response_tokens"].agg(["max", "median"])
    rows = by_step.reindex(run.run.steps["step"], fill_value=0)
    return rows["max"].to_numpy(np.float64), rows["median"].to_numpy(np.float64)


def same_lengths(run: TrainRun, baseline: TrainRun) -> bool:
    """Return whether every response has the length that it has in the baseline."""
    columns = ["step", "request", "response_tokens"]
    one, other = (
        each.run.responses[columns].sort_values(columns[:2], ignore_index=True) for each in (run, baseline)
    )
    return one.equals(other)
