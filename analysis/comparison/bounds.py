"""How far any schedule could go: the bounds of a comparison in words, and where they lie beside its runs."""

from __future__ import annotations

import msgspec

from tlt.analysis.load import Run
from tlt.traces.results.bounds import Bounds


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
        means.append(("lengths known, best policy throughout", _mean(drafted)))
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
