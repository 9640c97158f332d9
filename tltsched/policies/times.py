"""The step times that a policy predicts with, checked before a run."""

from __future__ import annotations

from collections.abc import Iterable

from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.policies.base import Batch, StepTimes


def required_times(policy: str, times: StepTimes | None, draft_configs: Iterable[DraftConfig]) -> StepTimes:
    """Return `times`; raises InputError if they are missing or lack one of the draft configurations."""
    if times is None:
        raise InputError(
            "policy",
            policy,
            "a policy without step times",
            "give a calibration with the draft configurations of the policy",
        )
    for draft_config in draft_configs:
        times.engine_step_s(
            draft_config, Batch(1, 0)
        )  # a missing draft configuration is better met before the run
    return times
