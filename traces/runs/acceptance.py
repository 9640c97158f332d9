"""Acceptance of a run, from its tables. Lengths count the bonus token."""

from __future__ import annotations

import pandas as pd


def acceptance_length_with_bonus(steps: pd.DataFrame) -> float | None:
    """Return 1 + accepted / engine steps over all drafting engine steps of the steps; None if there was no
    such engine step.
    """
    engine_steps = int(steps["request_steps"].sum())
    return 1 + int(steps["accepted_tokens"].sum()) / engine_steps if engine_steps else None


def every_draft_accepted(engine_steps: pd.DataFrame) -> bool:
    """Return whether something was drafted and all of it accepted, which no drafter achieves."""
    drafted, accepted = int(engine_steps["drafted_tokens"].sum()), int(engine_steps["accepted_tokens"].sum())
    return drafted > 0 and accepted == drafted
