"""Measured drift curves: how a drafter's acceptance followed a policy in training, by name.

Files are JSON in the form of `DriftCurve`, written by `tlt sim validate-training --save-drift`; those
that come with the package lie in sim/drifts. `drafter.drift = "NAME"` in a configuration puts one in
force.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tlt.traces.common.migrate import decode
from tlt.traces.results.predicted_training import DriftFit, PredictionError
from tltsched.errors import InputError, unknown_name

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
        )


def shipped_drifts() -> tuple[str, ...]:
    """Return the names of the curves that come with the package."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.json")))


def load_drift(name_or_path: str) -> DriftCurve:
    """Read a shipped curve by name, or a file by path; raises InputError."""
    path = SHIPPED / f"{name_or_path}.json"
    if not path.is_file():
        path = Path(name_or_path)
    if not path.is_file():
        fix = "name one of these or give the path of what `tlt sim validate-training --save-drift` wrote"
        raise unknown_name("drafter.drift", name_or_path, shipped_drifts(), fix)
    try:
        return decode(path.read_bytes(), DriftCurve)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError("drafter.drift", f"{path}: {error}", "a drift curve", "fit it again") from None


def with_drift(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration with the drift curve that they name, if any, filled in.

    Raises InputError if there is no such curve, or a field that it sets is set to something else.
    """
    drafter = settings.get("drafter")
    if not isinstance(drafter, dict) or not isinstance(named := drafter.get("drift"), str) or not named:
        return settings
    curve = load_drift(named).settings()
    for field, value in curve.items():
        if drafter.get(field, value) != value:
            raise InputError(
                f"drafter.{field}", drafter[field], f"{value}, which drafter.drift = {named!r} sets",
                "leave one of the two out",
            )  # fmt: skip
    return settings | {"drafter": drafter | curve}
