"""What looks wrong in a run: one line here a group of checks, in the order in which they are told."""

from __future__ import annotations

from tlt.traces.doctor.base import Check
from tlt.traces.doctor.checks import (
    acceptance,
    balance,
    engine,
    groups,
    lengths,
    phases,
    same_work,
    sessions,
    speculation,
)

CHECKS: tuple[Check, ...] = (
    *same_work.CHECKS,
    *lengths.CHECKS,
    *groups.CHECKS,
    *acceptance.CHECKS,
    *speculation.CHECKS,
    *balance.CHECKS,
    *phases.CHECKS,
    *engine.CHECKS,
    *sessions.CHECKS,
)
