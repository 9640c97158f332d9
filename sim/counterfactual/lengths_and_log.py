"""A dump of responses held against what the log of its run says of them.

One factor on all step times would absorb a dump that has a part of the responses, and the reproduction would
look as good as that of the whole.
"""

from __future__ import annotations

from tlt.traces.importers.phases import PhaseTimes
from tlt.traces.lengths.schema import Trace
from tltsched.errors import InputError

MOST_APART = 1.25  # of responses a step, or of mean lengths: more is another set of responses
TOLD_APART = 1.05
TOLD_SHARE = 0.02  # of truncated responses


def notes_on_lengths(trace: Trace, times: PhaseTimes) -> list[str]:
    """Return what differs between lengths and log; raises InputError if they are of other responses.

    Steps are matched by their numbers where they match, else means over all of them are compared.
    """
    stated, rows = times.lengths, trace.rows
    numbers = set(rows["step"].unique().tolist())
    matched = [at for at, step in enumerate(stated.steps) if step in numbers]
    chosen = matched or list(range(len(stated.steps)))
    if matched:
        rows = rows[rows["step"].isin([stated.steps[at] for at in matched])]
    if not chosen or rows.empty:
        return []
    found = [
        _apart(
            "responses a step", len(rows) / rows["step"].nunique(), _mean(stated.responses, chosen),
            strict=times.rollouts.mean_generations() == 1.0 and not times.rollouts.dropped,
        ),
        _apart(
            "tokens a response in the mean", float(rows["response_tokens"].mean()),
            _mean(stated.mean_tokens, chosen), strict=bool(matched) and not times.rollouts.turns,
        ),
    ]  # fmt: skip
    share, logged = float(rows["truncated"].mean()), _mean(stated.truncated_share, chosen)
    if logged is not None and abs(share - logged) > TOLD_SHARE:
        found.append(f"the lengths have {share:.1%} of the responses cut, the log {logged:.1%}")
    return [each for each in found if each]


def _mean(values: list[float], chosen: list[int]) -> float | None:
    said = [values[at] for at in chosen if at < len(values) and values[at] >= 0.0]
    return sum(said) / len(said) if said else None


def _apart(what: str, read: float, logged: float | None, *, strict: bool) -> str:
    """Return how far two figures are apart, empty if they are not; raises InputError if they are too far."""
    if not logged or not read:
        return ""
    ratio = max(read / logged, logged / read)
    told = f"{read:,.0f} {what} in the lengths, {logged:,.0f} in the log"
    if ratio > MOST_APART and strict:
        raise InputError(
            "lengths and log", told, "the same responses in both",
            "give all responses of the logged steps, or the log alone, from which lengths are drawn",
        )  # fmt: skip
    return told if ratio > TOLD_APART else ""
