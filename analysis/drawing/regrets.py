"""What a choice may lose, and its ties, as sentences and cells."""

from __future__ import annotations

from collections.abc import Sequence

from tlt.analysis.drawing.estimates import percent
from tlt.analysis.drawing.tables import TextTable
from tlt.traces.common.intervals import TAIL, Estimate
from tlt.traces.common.regret import Regrets

REGRET_NOTES = (
    "Taken instead: share of the time that is lost over the choice (below 0: won) by taking this policy "
    "instead of it, by the fit, with its 95 % interval. Ties take exactly as long, or as long within the "
    "tolerance at both ends of the interval; near is within it by the fit alone."
)
HEADERS = ("Policy", "Taken instead [95 %]", "Against the choice")


def regret_words(regret: Estimate) -> str:
    """Return `0.31% of the time in the mean (95 % interval 0.0% to 1.2%)`, or why it is not known."""
    if regret.interval is None:
        return f"not known ({regret.reason})"
    low, high = (percent(end) for end in regret.interval)
    return f"{percent(regret.value)} of the time in the mean (95 % interval {low} to {high})"


def instead_words(lost: Estimate) -> str:
    """Return what taking a candidate instead would lose or win, with its interval."""
    verb = "loses" if lost.value >= 0 else "wins"
    words = f"{verb} {percent(abs(lost.value))}"
    if lost.interval is None:
        return f"{words} (no interval: {lost.reason})"
    low, high = lost.interval
    if (low >= 0) == (high >= 0) == (lost.value >= 0):
        low, high = sorted((abs(low), abs(high)))
        return f"{words} (95 % interval {percent(low)} to {percent(high)})"
    ends = [f"{percent(abs(end))} {'lost' if end >= 0 else 'won'}" for end in (low, high)]
    return f"{words} (95 % interval {ends[0]} to {ends[1]})"


def instead_text(lost: Estimate) -> str:
    """Return `+0.42% [-0.10, +1.10]`, in percent, or the bare value where there is no interval."""
    if lost.interval is None:
        return f"{lost.value:+.2%}"
    low, high = lost.interval
    return f"{lost.value:+.2%} [{100 * low:+.2f}, {100 * high:+.2f}]"


def regret_sentences(found: Regrets) -> list[str]:
    """Say what the choice may lose, what ties with it, and what the next one would lose."""
    sentences = [_regret(found)]
    if found.exact:
        sentences.append(f"{listed(found.exact)} {_take(found.exact)} exactly as long as {found.chosen}.")
    if found.ties:
        sentences.append(
            f"{_ties(found.ties)} with {found.chosen}: {listed(found.ties)} ({_within(found)} apart or less)."
        )
    if found.near:
        sentences.append(
            f"By the fit {listed(found.near)} {_lie(found.near)} within {_within(found)} of {found.chosen}, "
            "by the interval not."
        )
    runner_up = found.runner_up
    if runner_up is not None:
        sentences.append(
            f"Taking {runner_up} instead of {found.chosen} {instead_words(found.instead[runner_up])}."
        )
    return sentences


def regret_table(found: Regrets) -> TextTable:
    """Return a row a candidate beside the choice, the fastest first."""
    rows = [(name, instead_text(lost), standing(found, name)) for name, lost in found.instead.items()]
    return TextTable(HEADERS, rows, names=(2,))


def standing(found: Regrets, name: str) -> str:
    """Return how a candidate stands to the choice."""
    if name in found.exact:
        return "tie, exactly"
    if name in found.ties:
        return f"tie within {_within(found)}"
    if name in found.near:
        return f"within {_within(found)} by the fit alone"
    interval = found.instead[name].interval
    if interval is None:
        return "not known"
    if interval[0] > 0:
        return "slower"
    return "faster" if interval[1] < 0 else "not told apart"


def listed(names: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _regret(found: Regrets) -> str:
    if found.regret.interval == (0.0, 0.0) and found.regret.value == 0.0:
        if found.exact:
            return f"No policy is faster than {found.chosen} in any draw."
        return f"{found.chosen} is the fastest in every draw."
    if found.highest == 0.0:
        return f"{found.chosen} is the fastest in more than {1 - TAIL:.1%} of the draws."
    words = f"What choosing {found.chosen} loses to whatever is fastest"
    return f"{words}: {regret_words(found.regret)}."


def _within(found: Regrets) -> str:
    return f"{found.tolerance:.0%}"


def _ties(names: Sequence[str]) -> str:
    return "One ties" if len(names) == 1 else f"{len(names)} tie"


def _take(names: Sequence[str]) -> str:
    return "takes" if len(names) == 1 else "take"


def _lie(names: Sequence[str]) -> str:
    return "lies" if len(names) == 1 else "lie"
