"""What looks wrong in a run: one line here a group of checks, in the order in which they are told."""

from __future__ import annotations

from traces.doctor import acceptance, arms, balance, engine, groups, lengths, phases, speculation
from traces.doctor.base import Check

CHECKS: tuple[Check, ...] = (
    *arms.CHECKS,
    *lengths.CHECKS,
    *groups.CHECKS,
    *acceptance.CHECKS,
    *speculation.CHECKS,
    *balance.CHECKS,
    *phases.CHECKS,
    *engine.CHECKS,
)
