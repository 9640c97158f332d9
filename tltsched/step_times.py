"""Step times as plain numbers: small enough to write beside a run, so that a replay needs no calibration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import isfinite

import msgspec

from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.policies.base import Batch


class DraftConfigTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of one engine step: `fixed_s[requests] + kv_s_per_token * context_tokens`.

    `fixed_s[b]` is the part that does not depend on context, for a batch of b requests, from b = 0 on.
    """

    draft_config: DraftConfig
    fixed_s: tuple[float, ...]
    kv_s_per_token: float = 0.0

    def __post_init__(self) -> None:
        numbers = (*self.fixed_s, self.kv_s_per_token)
        if not self.fixed_s or not all(isfinite(number) and number >= 0 for number in numbers):
            raise InputError(
                f"step times of draft configuration {self.draft_config}",
                numbers,
                "one or more finite seconds >= 0",
                "fit the calibration again",
            )

    def engine_step_s(self, batch: Batch) -> float:
        """Return the seconds of an engine step; past the last entry the last two go on as a straight line.

        A line that falls is taken as flat: a larger batch is never faster, and noise must not make it so.
        """
        return fixed_of(self.fixed_s, batch.requests) + self.kv_s_per_token * batch.context_tokens


def fixed_of(fixed_s: Sequence[float], requests: int) -> float:
    """Return the seconds of an engine step that do not depend on context; a driver may compile this."""
    last = len(fixed_s) - 1
    if requests <= last:
        return fixed_s[requests]
    if last == 0:
        return fixed_s[0]
    return fixed_s[last] + max(0.0, fixed_s[last] - fixed_s[last - 1]) * (requests - last)


# dict=True gives cached_property a place to keep the index; the struct stays frozen for everybody else.
class StepTimeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Engine step times by draft configuration (OFF among them, if the engine may run without drafts)."""

    draft_configs: tuple[DraftConfigTimes, ...]

    def __post_init__(self) -> None:
        names = [str(row.draft_config) for row in self.draft_configs]
        if len(set(names)) != len(names):
            raise InputError(
                "step times",
                names,
                "each draft configuration once",
                "remove the repeated one",
            )

    @cached_property
    def rows(self) -> dict[DraftConfig, DraftConfigTimes]:
        """The times of each draft configuration."""
        return {row.draft_config: row for row in self.draft_configs}

    def engine_step_s(self, draft_config: DraftConfig, batch: Batch) -> float:
        """Return the predicted seconds of one engine step; raises InputError if there are no times for it."""
        row = self.rows.get(draft_config)
        if row is None:
            allowed = ", ".join(str(known) for known in self.rows)
            raise InputError(
                "draft_config",
                str(draft_config),
                f"a draft configuration with step times: {allowed}",
                "calibrate it or drop it",
            )
        return row.engine_step_s(batch)


class AnyTimes:
    """Step times that let a policy be built only to ask for its draft configurations."""

    def engine_step_s(self, draft_config: DraftConfig, batch: Batch) -> float:
        """Return one second."""
        del draft_config, batch
        return 1.0
