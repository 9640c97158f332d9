"""Measured drift curves: how a drafter's acceptance followed a policy in training, by name.

Files are JSON in the form of `DriftCurve`, written by `tlt sim validate-training --save-drift`; those
that come with the package lie in sim/drifts. `drafter.drift = "NAME"` in a configuration puts one in
force.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tlt.traces.common.shipped import filled_in, load_named, names_in
from tlt.traces.results.predicted_training import DriftFit, PredictionError, entropy_words

SHIPPED = Path(__file__).parent / "drifts"


class DriftCurve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A drift fit with all that it rests on."""

    name: str
    provenance: str  # one line: what was measured, on which engine and device, when
    model: str
    policy: str
    learning_rate: float  # of the policy
    updates: int  # of the policy, over the steps that were fitted
    fit: DriftFit  # on all steps of the run
    held_out: PredictionError | None = None  # acceptance of the second half, as the first half predicts it

    def settings(self) -> dict[str, float]:
        """Return the fields of tlt.sim.model.drafter.DrafterConfig that the curve sets."""
        settings = {"drift_per_update": self.fit.simulated_per_update()}
        if self.fit.recovery_tokens is not None:
            settings["recovery_tokens"] = self.fit.recovery_tokens.value
        return settings

    def describe(self) -> str:
        """Return a sentence: what was seen, where, and over how many updates."""
        drift = self.fit.per_update
        bounds = "" if drift.interval is None else f" [{drift.interval[0]:.4f}, {drift.interval[1]:.4f}]"
        seen = {
            "falls": "acceptance falls",
            "rises": "acceptance rises",
            "none visible": "no drift is visible, so none is simulated",
        }[self.fit.verdict]
        recovery = self.fit.recovery_tokens
        bound = "" if self.fit.recovery_resolved else "at least "
        trained = "" if recovery is None else f", recovery {bound}{recovery.value:,.0f} tokens"
        return (
            f"drafter drift of {self.model} ({self.provenance}; {self.name}): {seen}; "
            f"exponent {drift.value:+.4f}{bounds} an update over {self.updates} updates{trained}"
            f"{entropy_words(self.fit.entropy)}"
        )


def shipped_drifts() -> tuple[str, ...]:
    """Return the names of the curves that come with the package."""
    return names_in(SHIPPED)


def load_drift(name_or_path: str) -> DriftCurve:
    """Read a shipped curve by name, or a file by path; raises InputError."""
    return load_named(
        SHIPPED, name_or_path, DriftCurve, field="drafter.drift", what="a drift curve", again="fit it again",
        fix="name one of these or give the path of what `tlt sim validate-training --save-drift` wrote",
    )  # fmt: skip


def with_drift(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration with the drift curve that they name, if any, filled in.

    Raises InputError if there is no such curve, or a field that it sets is set to something else.
    """
    return filled_in(settings, "drafter", "drift", lambda named: load_drift(named).settings())
