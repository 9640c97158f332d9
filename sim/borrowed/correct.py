"""A law out of other people's tables, corrected by a few engine steps that were measured on one's own engine.

Four factors are fitted to the logarithms of what was measured over what the law says: on the least that the
target takes (bound by memory), on what each further token to verify adds (where it is bound by arithmetic),
on the KV term and on the drafter's passes. Few points must not throw a factor far off that they say nothing
of, so each is drawn to 1 as if it were known within PRIOR_SD.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from scipy.optimize import least_squares

from tlt.sim.steptimes.calibration import predict_s
from tlt.sim.steptimes.law import Coefficients
from tlt.traces.common.arrays import Floats
from tlt.traces.results.calibration_points import Point
from tlt.traces.runs.engine_steps import cells, read_engine_steps, stretches_of_engine_steps
from tltsched.draft_config import chain
from tltsched.errors import InputError
from tltsched.policies.base import WhenOff

PRIOR_SD = 0.2  # assumed: of the logarithm of a factor, before any point
POINT_SD = 0.02  # of the logarithm of an engine step about a law that is right: what calibrations here leave
FEWEST_STEPS = 5  # of a cell of a run's engine steps, for their median to be a point
ALLOWED = "a calibration, the points of one, or the folder of a live run with engine steps"


class Factors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What own points changed; 1: nothing."""

    floor: float = 1.0
    tokens: float = 1.0
    kv: float = 1.0
    drafter: float = 1.0

    def of(self, law: Coefficients) -> Coefficients:
        """Return a law with its terms times these factors; prefill goes with what tokens cost."""
        scaled = law.scaled(1.0, self.kv, self.drafter)
        return msgspec.structs.replace(
            scaled,
            floor_s=law.floor_s * self.floor,
            slopes_s_per_token=tuple(slope * self.tokens for slope in law.slopes_s_per_token),
            prefill_chunk_s=law.prefill_chunk_s * self.floor,
            prefill_s_per_token=law.prefill_s_per_token * self.tokens,
            prefill_s_per_pair=law.prefill_s_per_pair * self.tokens,
        )


def fit_factors(law: Coefficients, points: Sequence[Point]) -> Factors:
    """Return the factors under which the law meets `points` best; raises InputError without any."""
    if not points:
        raise InputError("own points", "none", ALLOWED, "measure some: `tlt real calibrate`")
    seconds = np.log([point.engine_step_s for point in points])

    def misses(logs: Floats) -> Floats:
        changed = Factors(**dict(zip(Factors.__struct_fields__, np.exp(logs).tolist(), strict=True))).of(law)
        said = np.log([predict_s(changed, point) for point in points])
        return np.concatenate([(said - seconds) / POINT_SD, logs / PRIOR_SD])

    found = least_squares(misses, np.zeros(len(Factors.__struct_fields__)))
    return Factors(**dict(zip(Factors.__struct_fields__, np.exp(found.x).tolist(), strict=True)))


class _Points(msgspec.Struct, frozen=True):
    """What a calibration and the points of one have in common."""

    points: tuple[Point, ...]


def read_own(path: Path) -> tuple[Point, ...]:
    """Return the points of a calibration, of its points file, or of a live run; raises InputError."""
    if path.is_dir():
        return _of_run(path)
    try:
        held = msgspec.json.decode(path.read_bytes(), type=_Points)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError("--own", f"{path}: {error}", ALLOWED, "give one of them") from None
    return tuple(point for point in held.points if not point.excluded)


def _of_run(folder: Path) -> tuple[Point, ...]:
    """Return a point for each cell of like engine steps: the median of its seconds, batches and contexts."""
    engine_steps = read_engine_steps(folder)
    if engine_steps is None:
        raise InputError("--own", f"{folder}: no engine steps", ALLOWED, "give one of them")
    rows = stretches_of_engine_steps(engine_steps)
    off: WhenOff = "k0" if (rows["depth"] > 0).any() else "not_configured"
    points = []
    for _, same in rows.groupby([cells(rows), "depth"]):
        if len(same) < FEWEST_STEPS:
            continue
        depth = int(same["depth"].iloc[0])
        points.append(
            Point(
                provenance="measured", when_off="k0" if depth else off, draft_config=chain(depth),
                batch=round(float(same["request_steps"].median())),
                context_tokens=float(same["context_tokens"].median()),
                engine_step_s=float(same["seconds"].median()), repeats=len(same),
            )
        )  # fmt: skip
    if not points:
        got = f"{folder}: no {FEWEST_STEPS} like engine steps"
        raise InputError("--own", got, ALLOWED, "give a longer run")
    return tuple(points)
