"""How far step times may be off: about their own points, on another machine or day, and without any points.

Three factors carry the error: on the target's step, the KV term and the drafter's passes. Each is log-normal.
About a calibration's own points all three have the spread that its fit has on points that it did not see. A
calibration is of one session; another machine of the same kind, another day or another setting of the engine
moves the factors as repeated calibrations of one model and GPU are moved against each other. A roofline has
the error that it was found to have, and its bias is drawn as one.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tlt.sim.steptimes.calibration import Calibration, predict_s
from tlt.traces.common.arrays import Floats
from tlt.traces.results.calibration_points import Point

FACTORS = ("target", "kv", "drafter")
NONE = (0.0, 0.0, 0.0)
NORMAL_PER_MEDIAN = 1.4826
# Measured (`python -m evidence.measure between_sessions`): calibrations of one model and GPU, of a session.
# Of plain steps, as which the KV cache is taken to move, and of steps that draft, beyond plain ones. A step
# that is so short is bound by its host, and hosts differ more than GPUs do.
SESSION_PLAIN_SD = 0.022
SESSION_HOST_SD = 0.185
HOST_BOUND_S = 3e-3
SESSION_CYCLE_SD = 0.058
# Target: assumed; two measured 7B shapes lie within 0.05, one with FP8 weights takes 0.13 longer, a 135M one
# is 0.5 off. KV: two measured 7B shapes read their cache 16 % faster. Drafter: the published trees that the
# constants did not see.
ROOFLINE_BIASES = (0.0, -0.16, 0.0)
ROOFLINE_SDS = (0.20, 0.20, 0.21)
# Measured: the roofline pinned to a plain step and a cycle at batch 1, on the other points of the 7B shapes.
PINNED_BIASES = (0.0, -0.12, 0.0)
PINNED_SDS = (0.06, 0.06, 0.15)
# Others' tables. Biases: measured (`python -m evidence.borrowed`) on a dense 7B shape, H100 and H200.
# Spreads: assumed to be some three times as wide, since no other model was held against them. With own
# points they are what is left on points that the six did not include.
BORROWED_BIASES = (0.03, 0.0, 0.08)
BORROWED_SDS = (0.10, 0.10, 0.15)
CORRECTED_SDS = (0.03, 0.08, 0.06)


class CostError(msgspec.Struct, frozen=True, kw_only=True):
    """Biases and spreads of the logs of FACTORS, and what they rest on."""

    share: float  # spread of single points about the law
    biases: tuple[float, float, float] = NONE
    sds: tuple[float, float, float]
    source: str

    def draw(self, draws: int, rng: np.random.Generator) -> Floats:
        """Return factors, [draws, 3]."""
        normal = rng.standard_normal((draws, len(FACTORS)))
        return np.asarray(np.exp(np.array(self.biases) + np.array(self.sds) * normal), np.float64)

    def draw_with_fit(self, draws: int, rng: np.random.Generator) -> Floats:
        """Return factors, [1 + draws, 3]; the first row is the fit: all 1."""
        return np.vstack([np.ones((1, len(FACTORS))), self.draw(draws, rng)])

    def text(self) -> str:
        """Return the spreads in words."""
        parts = [
            f"{name} {sd:.0%}" + (f" about {np.expm1(bias):+.0%}" if bias else "")
            for name, sd, bias in zip(FACTORS, self.sds, self.biases, strict=True)
        ]
        return ", ".join(parts)


def cost_error(
    calibration: Calibration | None, pinned: bool = False, other_drafter: bool = False
) -> CostError:
    """Return the error of step times; None: a roofline.

    `pinned`: to two steps that the user timed. `other_drafter`: drafts cost what a roofline says of another
    drafter than the calibrated one, unless the steps pin it.
    """
    error = _cost_error(calibration, pinned)
    if not other_drafter or pinned or calibration is None:
        return error
    target, kv, drafter = error.sds
    assumed = max(drafter, ROOFLINE_SDS[2])
    return msgspec.structs.replace(
        error, sds=(target, kv, assumed), source=f"{error.source}; the drafter's cost is assumed"
    )


def _cost_error(calibration: Calibration | None, pinned: bool) -> CostError:
    if calibration is None:
        biases, sds = (PINNED_BIASES, PINNED_SDS) if pinned else (ROOFLINE_BIASES, ROOFLINE_SDS)
        how = "roofline, pinned to your two steps" if pinned else "assumed: no calibration"
        return CostError(share=sds[0], biases=biases, sds=sds, source=how)
    if calibration.borrowed and not pinned:
        corrected = calibration.borrowed.own_points > 0
        biases, sds = (NONE, CORRECTED_SDS) if corrected else (BORROWED_BIASES, BORROWED_SDS)
        how = f"others' tables, {'corrected by own points' if corrected else 'uncorrected'}"
        return CostError(share=sds[0], biases=biases, sds=sds, source=f"{how}: {calibration.name}")
    residuals = calibration.residuals
    share = NORMAL_PER_MEDIAN * residuals.held_out_median
    source = f"{residuals.validation}: {calibration.name}"
    if pinned:
        return CostError(share=share, sds=(share, share, share), source=f"{source}, pinned to your two steps")
    target, kv, drafter = (float(np.hypot(share, session)) for session in session_sds(calibration))
    error = CostError(share=share, sds=(target, kv, drafter), source=source)
    return msgspec.structs.replace(
        error, source=f"{source}; on another machine, day or engine setting (measured): {error.text()}"
    )


def session_sds(calibration: Calibration) -> tuple[float, float, float]:
    """Return by how much one session moves the logarithm of each of FACTORS.

    The drafter's is what moves the calibration's steps that draft as much as measured ones moved, in the root
    mean square over its points.
    """
    shares = [_drafter_share(calibration, point) for point in calibration.points if point.draft_config.depth]
    usual = float(np.sqrt(np.mean(np.square(shares)))) if shares else 0.0
    drafter = SESSION_CYCLE_SD / usual if usual > 0 else 0.0
    plain = SESSION_HOST_SD if calibration.coefficients.floor_s < HOST_BOUND_S else SESSION_PLAIN_SD
    return plain, plain, drafter


def _drafter_share(calibration: Calibration, point: Point) -> float:
    law = calibration.coefficients
    return 1.0 - predict_s(law.scaled(1.0, 1.0, 0.0), point) / predict_s(law, point)
