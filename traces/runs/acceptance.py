"""Acceptance of a run, from its tables. Lengths count the bonus token."""

from __future__ import annotations

import pandas as pd

from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import divide


def length_with_bonus(accepted_tokens: int, request_steps: int) -> float | None:
    """Return the tokens that a drafting engine step yields for a request; None if nothing was drafted."""
    return 1 + accepted_tokens / request_steps if request_steps else None


def lengths_with_bonus(accepted_tokens: Floats, request_steps: Floats) -> Floats:
    """Return length_with_bonus of every pair, any one shape; NaN where nothing was drafted."""
    return 1.0 + divide(accepted_tokens, request_steps)


def acceptance_length_with_bonus(rows: pd.DataFrame) -> float | None:
    """Return length_with_bonus over all rows; None if none of them drafted.

    The rows (of steps, engine steps, decision intervals) have `accepted_tokens` and `request_steps`.
    """
    return length_with_bonus(int(rows["accepted_tokens"].sum()), int(rows["request_steps"].sum()))


def every_draft_accepted(engine_steps: pd.DataFrame) -> bool:
    """Return whether something was drafted and all of it accepted, which no drafter achieves."""
    drafted, accepted = int(engine_steps["drafted_tokens"].sum()), int(engine_steps["accepted_tokens"].sum())
    return drafted > 0 and accepted == drafted
