"""Acceptance of a run, from its tables. Lengths count the bonus token."""

from __future__ import annotations

import pandas as pd


def acceptance_length_with_bonus(steps: pd.DataFrame) -> float | None:
    """Return 1 + accepted / cycles over all drafting cycles of the steps; None if there was no such cycle."""
    cycles = int(steps["request_cycles"].sum())
    return 1 + int(steps["accepted_tokens"].sum()) / cycles if cycles else None


def every_draft_accepted(cycles: pd.DataFrame) -> bool:
    """Return whether something was drafted and all of it accepted, which no drafter achieves."""
    drafted, accepted = int(cycles["drafted_tokens"].sum()), int(cycles["accepted_tokens"].sum())
    return drafted > 0 and accepted == drafted
