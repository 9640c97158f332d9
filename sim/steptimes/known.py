"""Two steps that a user has timed pin a law of step times to the user's own engine."""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.sim.steptimes.law import Coefficients
from tltsched.draft_config import OFF, DraftConfig
from tltsched.errors import InputError


class KnownSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a plain engine step, and of one that drafts, at one batch and context."""

    plain_s: float
    draft_s: float | None
    draft_config: DraftConfig
    batch: int
    context_tokens: float  # of each request


def pinned(law: Coefficients, known: KnownSteps) -> Coefficients:
    """Return the law with the target, and then the drafter, scaled so that it meets what is known.

    Prefill stays as it is: a decode step says little about it. Raises InputError for a step that drafts in
    less time than the target alone takes to verify.
    """
    held = known.context_tokens * known.batch
    batch = np.float64(known.batch)
    plain_s = float(law.fixed_s(OFF, "not_configured", batch)) + law.kv_s_per_token * held
    factor = known.plain_s / plain_s
    law = law.scaled(factor, factor, 1.0)
    if known.draft_s is None:
        return law
    whole_s = float(law.fixed_s(known.draft_config, "not_configured", batch))
    whole_s += law.context_s_per_token(known.draft_config, "not_configured") * held
    silent = law.scaled(1.0, 1.0, 0.0)
    target_s = float(silent.fixed_s(known.draft_config, "not_configured", batch)) + whole_s
    target_s -= float(law.fixed_s(known.draft_config, "not_configured", batch))
    if known.draft_s <= target_s:
        raise InputError(
            "cost.known.draft_step_s", known.draft_s,
            f"more than the {target_s:.6g} s in which the target alone verifies {known.draft_config} there",
            "check both numbers: seconds of one engine step, at cost.known.batch and context_tokens",
        )  # fmt: skip
    return law.scaled(1.0, 1.0, (known.draft_s - target_s) / (whole_s - target_s))
