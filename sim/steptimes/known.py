"""Two steps that a user has timed pin a law of step times to the user's own engine."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from tlt.sim.steptimes.law import Coefficients
from tlt.traces.common.settings import Section
from tltsched.draft_config import OFF, DraftConfig
from tltsched.errors import InputError
from tltsched.written.draft_config import parse_draft_config


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


class KnownConfig(Section, frozen=True, kw_only=True):
    """Two steps that you have timed on your own engine: they pin the step times, calibrated or not."""

    plain_step_s: Annotated[
        Annotated[float, Meta(gt=0.0)] | None,
        Meta(description="seconds of an engine step without speculation; unset: not known"),
    ] = None
    draft_step_s: Annotated[
        Annotated[float, Meta(gt=0.0)] | None,
        Meta(description="seconds of an engine step (a cycle) that drafts and verifies `draft`"),
    ] = None
    draft: Annotated[str, Meta(description="what draft_step_s drafted: K, or a tree such as 8_4_32")] = "4"
    batch: Annotated[int, Meta(ge=1, description="running requests of both steps")] = 1
    context_tokens: Annotated[float, Meta(ge=0.0, description="context of each request in both")] = 1024.0

    def __post_init__(self) -> None:
        if self.draft_step_s is not None and self.plain_step_s is None:
            raise InputError(
                "cost.known.plain_step_s", None, "seconds, where cost.known.draft_step_s is given",
                "give both, or the plain step alone",
            )  # fmt: skip
        if self.given and not parse_draft_config(self.draft).depth:
            raise InputError("cost.known.draft", self.draft, "a draft, such as 4", "name what was drafted")

    @property
    def given(self) -> bool:
        """Whether both steps are known."""
        return self.plain_step_s is not None and self.draft_step_s is not None

    def steps(self) -> KnownSteps | None:
        """Return what is known; None: nothing."""
        if self.plain_step_s is None:
            return None
        return KnownSteps(
            plain_s=self.plain_step_s,
            draft_s=self.draft_step_s,
            draft_config=parse_draft_config(self.draft),
            batch=self.batch,
            context_tokens=self.context_tokens,
        )
