"""The last step of a run that is still written: it is left out until it is whole."""

from __future__ import annotations

from tlt.traces.importers.phases import PhaseTimes
from tlt.traces.lengths.schema import Trace

EARLIER_STEPS = 2  # that agree on a number of responses


def without_unfinished(trace: Trace, times: PhaseTimes | None) -> tuple[Trace, str]:
    """Return a trace without its last step if that is not whole, and a sentence, empty if it is.

    It is not whole if it has fewer responses than all steps before, which have the same number, or if the log
    has times of steps before and none of it yet.
    """
    sizes = trace.rows.groupby("step").size().sort_index()
    if len(sizes) < 2:
        return trace, ""
    last, before = int(sizes.index[-1]), sizes.iloc[:-1]
    why, size = "", int(sizes.iloc[-1])
    if len(before) >= EARLIER_STEPS and before.nunique() == 1 and size < before.iloc[0]:
        earlier = f"the {len(before):,} before {before.iloc[0]:,} each"
        why = f"step {last} has {size:,} responses, {earlier}"
    elif times is not None and last not in times.steps and set(before.index.tolist()) <= set(times.steps):
        why = f"the log has no times of step {last} yet"
    if not why:
        return trace, ""
    rows = trace.rows[trace.rows["step"] != last].reset_index(drop=True)
    return Trace(rows, trace.origin), f"{why}: taken to be still written and left out"
