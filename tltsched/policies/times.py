"""The step times that a policy predicts with, checked before a run."""

from __future__ import annotations

from collections.abc import Iterable

from tltsched.draft_config import Arm
from tltsched.errors import InputError
from tltsched.policies.base import Batch, StepTimes


def required_times(policy: str, times: StepTimes | None, arms: Iterable[Arm]) -> StepTimes:
    """Return `times`; raises InputError if they are missing or lack one of the arms."""
    if times is None:
        raise InputError(
            "policy",
            policy,
            "a policy without step times",
            "give a calibration with the arms of the policy",
        )
    for arm in arms:
        times.cycle_s(arm, Batch(1, 0))  # a missing arm is better met before the run
    return times
