"""Two calibrations of one model held against each other: what differs, and how far step times moved."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec
import numpy as np

from tlt.sim.steptimes.calibration import Calibration, mixed_errors, predict_s
from tlt.sim.steptimes.errors import FACTORS, session_sds
from tlt.sim.steptimes.law import Coefficients
from tlt.traces.results.calibration_points import PrefillPoint
from tltsched.draft_config import OFF, DraftConfig
from tltsched.errors import InputError

ABOUT = (
    "engine", "engine_version", "device", "date", "tp", "settings", "chunk_tokens", "drafts_accepted"
)  # fmt: skip


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """How far the new calibration is from the old one, as logarithms of new over old.

    `factors` are by FACTORS, the mean over batches and draft configurations that both hold; None: they have
    nothing in common that shows it. `steps` are medians by kind of engine step, at the points of the new one
    inside the range of the old.
    """

    about: dict[str, tuple[str, str]]  # what differs in words: field -> (old, new)
    factors: dict[str, float | None]
    steps: dict[str, tuple[int, float]]  # kind -> (points, median)
    session_sds: tuple[float, float, float]  # by which calibrations of one thing differ, one session each

    def text(self) -> str:
        """Return what moved, a line each."""
        lines = [f"{field}: {old or 'not recorded'} -> {new or 'not recorded'}" for field, (old, new) in
                 self.about.items()] or ["the same engine, device and day"]  # fmt: skip
        lines += [f"{kind}: {np.expm1(change):+.1%} (median of {count} points)"
                  for kind, (count, change) in self.steps.items()]  # fmt: skip
        for (name, change), usual in zip(self.factors.items(), self.session_sds, strict=True):
            if change is None:
                lines.append(f"factor {name}: nothing in common shows it")
                continue
            words = "as sessions differ" if abs(change) <= 2 * 2**0.5 * usual else "more than sessions differ"
            lines.append(f"factor {name}: {np.expm1(change):+.1%}, {words} ({usual:.0%} each)")
        return "\n".join(lines)


def compare(old: Calibration, new: Calibration) -> Moved:
    """Return what changed; raises InputError for calibrations of different models."""
    if old.model != new.model:
        fix = "compare calibrations of one model"
        raise InputError("--compare", old.model, new.model, fix)
    about = {
        field: (f"{getattr(old, field)}", f"{getattr(new, field)}") for field in ABOUT
        if getattr(old, field) != getattr(new, field)
    }  # fmt: skip
    factors = moved_factors(old, new)
    return Moved(about=about, factors=factors, steps=_steps(old, new), session_sds=session_sds(new))


def moved_factors(old: Calibration, new: Calibration) -> dict[str, float | None]:
    """Return the mean logarithm of new over old by FACTORS; see Moved."""
    batches, drafts = _shared(old, new)
    was, now = old.coefficients, new.coefficients
    target = [(_fixed_s(was, OFF, batch), _fixed_s(now, OFF, batch)) for batch in batches]
    drafter = [
        (_drafter_s(was, draft_config, batch), _drafter_s(now, draft_config, batch))
        for batch in batches for draft_config in drafts
    ]  # fmt: skip
    given_kv = any("kv_s_per_token" in each.not_fitted for each in (old, new))
    kv = [] if given_kv else [(was.kv_s_per_token, now.kv_s_per_token)]
    return {name: _mean_log(pairs) for name, pairs in zip(FACTORS, (target, kv, drafter), strict=True)}


def moved_cycle(old: Calibration, new: Calibration) -> float | None:
    """Return the mean logarithm of new over old of engine steps that draft, beyond that of plain ones.

    The mean is over batches and draft configurations that both hold; None: there are none.
    """
    batches, drafts = _shared(old, new)
    was, now = old.coefficients, new.coefficients
    cycles = _mean_log([
        (_fixed_s(was, draft_config, batch), _fixed_s(now, draft_config, batch))
        for batch in batches for draft_config in drafts
    ])  # fmt: skip
    plain = _mean_log([(_fixed_s(was, OFF, batch), _fixed_s(now, OFF, batch)) for batch in batches])
    return None if cycles is None or plain is None else cycles - plain


def _shared(old: Calibration, new: Calibration) -> tuple[list[int], list[DraftConfig]]:
    """Return the batches and the draft configurations that draft of which both have points."""
    batches = sorted({point.batch for point in old.points} & {point.batch for point in new.points})
    before, after = ({point.draft_config for point in each.points} for each in (old, new))
    return batches, [draft_config for draft_config in before & after if draft_config.depth]


def _fixed_s(law: Coefficients, draft_config: DraftConfig, batch: int) -> float:
    return float(law.fixed_s(draft_config, "not_configured", np.float64(batch)))


def _drafter_s(law: Coefficients, draft_config: DraftConfig, batch: int) -> float:
    """Return what drafting adds to the target's verification."""
    silent = law.scaled(1.0, 1.0, 0.0)
    return _fixed_s(law, draft_config, batch) - _fixed_s(silent, draft_config, batch)


def _mean_log(pairs: Sequence[tuple[float, float]]) -> float | None:
    logs = [np.log(after / before) for before, after in pairs if before > 0 and after > 0]
    return float(np.mean(logs)) if logs else None


def _steps(old: Calibration, new: Calibration) -> dict[str, tuple[int, float]]:
    """Return by kind of engine step how the new points lie about the old law: count and median logarithm."""
    ranges = old.ranges
    found: dict[str, list[float]] = {}
    for point in new.points:
        batches = ranges.draft_batch if point.draft_config.depth else ranges.batch
        if point.excluded or not batches[0] <= point.batch <= batches[1]:
            continue
        if not point.context_tokens <= ranges.context_tokens[1] * 1.01:
            continue
        plain = "plain" if point.when_off == "not_configured" else "K = 0"
        kind = f"drafts {point.draft_config}" if point.draft_config.depth else plain
        change = float(np.log(point.engine_step_s / predict_s(old.coefficients, point)))
        found.setdefault(kind, []).append(change)
    if new.mixed_points:
        errors = mixed_errors(old.coefficients, new.mixed_points)
        found["prefill beside decode"] = (-np.log1p(errors)).tolist()
    if new.prefill_points:
        found["prefill alone"] = [
            float(np.log(point.prefill_s / _prefill_s(old, point))) for point in new.prefill_points
        ]
    return {kind: (len(changes), median(changes)) for kind, changes in found.items()}


def _prefill_s(calibration: Calibration, point: PrefillPoint) -> float:
    tokens = point.batch * point.prompt_tokens
    squares = float(tokens) * point.prompt_tokens
    return calibration.coefficients.prefill_s(tokens, squares, calibration.chunk_tokens)
