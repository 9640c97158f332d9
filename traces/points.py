"""Raw step-time points: what calibrating an engine leaves, and what a law is fitted to."""

from __future__ import annotations

from typing import Literal

import msgspec

from tltsched.arms import Arm
from tltsched.speculation.base import OffState

Provenance = Literal["measured", "published", "assumed"]


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One observed engine cycle: `batch` requests of `context_tokens` each, under one arm."""

    provenance: Provenance
    off_state: OffState  # "plain": no speculation configured; "in_step": configured
    arm: Arm
    batch: int
    context_tokens: float  # mean of one request while it was timed
    cycle_s: float
    held_out: bool = False  # not used by the fit; the reported error is on these
    excluded: str = ""  # why the point is shown but neither fitted nor scored


class PrefillPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prefill of `batch` prompts of `prompt_tokens` each."""

    batch: int
    prompt_tokens: int
    prefill_s: float
