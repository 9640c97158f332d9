"""Answers of a table as a calibration in the project's own law, and what of it the table did not say."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tlt.sim.borrowed.correct import Factors, fit_factors
from tlt.sim.borrowed.questions import Answers
from tlt.sim.steptimes.calibration import (
    CHUNK_TOKENS,
    MIXED_NOT_TIMED,
    Borrowed,
    Calibration,
    leave_one_out,
    predict_s,
    ranges_of,
)
from tlt.sim.steptimes.fit import LawSettings, fit
from tlt.sim.steptimes.fit_live import knots
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.parallel import Parallel
from tlt.sim.steptimes.roofline import Assumptions, roofline
from tlt.traces.catalogue.gpus import GpuSpec
from tlt.traces.catalogue.shape import ModelShape
from tlt.traces.results.calibration_points import Point, PrefillPoint
from tltsched.draft_config import chain
from tltsched.errors import InputError

LEAST_POINTS = 4
BEYOND = "assumed: roofline; nothing was asked of more tokens in an engine step"
DRAFTER = "assumed: roofline of a head of one layer, since the table refused drafts: "
OFF = "assumed: one pass of the drafter; the table knows no engine that is configured to draft and does not"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What the calibration is of."""

    name: str
    model: str  # as hardware.model names it
    shape: ModelShape
    gpu: GpuSpec
    date: str  # when the table was asked
    max_running: int
    ks: tuple[int, ...]
    assumed: Assumptions = Assumptions()


def borrowed(answers: Answers, about: About, own: Sequence[Point] = ()) -> Calibration:
    """Return the calibration of what a table answered, corrected by `own` points if there are any.

    Raises InputError if it answered too little for a law.
    """
    points, prefill = _points(answers), _prefill(answers)
    drafting = [point for point in points if point.draft_config.depth]
    if len(points) - len(drafting) < LEAST_POINTS or not prefill:
        got = answers.refusal(drafting=False) or "too few answers"
        raise InputError("the table", got, "engine steps of this model on this system", "see `--system`")
    assumed = roofline(about.shape, about.gpu, Parallel(tp=answers.subject.tp), about.assumed)
    settings = _settings(points, assumed)

    def refit(some: Sequence[Point]) -> Coefficients:
        return _with_drafter(fit(some, prefill, settings, about.shape), assumed, bool(drafting))

    law = refit(points)
    factors = fit_factors(law, own) if own else Factors()
    corrected = factors.of(law)
    return Calibration(
        name=about.name,
        provenance="borrowed",
        engine={"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}[answers.subject.engine],
        engine_version=answers.table.engine_version,
        device=_device(answers, about),
        date=about.date,
        model=about.model,
        tp=answers.subject.tp,
        source=f"{answers.table.name} {answers.table.version}, its system {answers.subject.system}",
        licence=f"facts out of {answers.table.name} (Apache-2.0)",
        notes=_notes(law, factors, own),
        not_fitted=_not_fitted(answers, bool(drafting)),
        coefficients=corrected,
        residuals=leave_one_out(law, points, refit),
        ranges=ranges_of(_all_ranges(points, about)),
        points=tuple(points),
        prefill_points=prefill,
        settings="as its tables were collected: graphs, no prefix caching",
        borrowed=Borrowed(table=answers.table.name, version=answers.table.version, own_points=len(own)),
    )


def _points(answers: Answers) -> list[Point]:
    found = [*answers.answered("decode"), *answers.answered("decode", drafting=True)]
    return [
        Point(
            provenance="borrowed", when_off="k0" if question.k else "not_configured",
            draft_config=chain(question.k), batch=question.batch, context_tokens=question.context_tokens,
            engine_step_s=seconds,
        )
        for question, seconds in found
    ]  # fmt: skip


def _prefill(answers: Answers) -> tuple[PrefillPoint, ...]:
    return tuple(
        PrefillPoint(batch=question.batch, prompt_tokens=question.context_tokens, prefill_s=seconds)
        for question, seconds in answers.answered("prefill")
    )


def _settings(points: Sequence[Point], assumed: Coefficients) -> LawSettings:
    return LawSettings(
        knots_tokens=knots(points, ()),
        least_slope_s_per_token=0.0,
        open_slope_s_per_token=assumed.slopes_s_per_token[-1],
        graph_tokens=None,
        chunk_tokens=CHUNK_TOKENS,
        prefill_s_per_pair=None,
        verified_terms=True,
    )


def _with_drafter(fitted: Coefficients, assumed: Coefficients, knows_drafts: bool) -> Coefficients:
    """Return the law with the drafter of the roofline where the table knows none, and with a K of 0."""
    law = fitted
    if not knows_drafts:
        names = (
            "draft_s",
            "draft_pass_s",
            "draft_pass_s_per_request",
            "draft_s_per_token",
            "drafter_kv_share",
        )
        law = msgspec.structs.replace(law, **{name: getattr(assumed, name) for name in names})
    return msgspec.structs.replace(law, off_s=law.draft_pass_s)


def _device(answers: Answers, about: About) -> str:
    count = answers.subject.tp
    return f"{'one' if count == 1 else f'{count} x'} {about.gpu.name} by its tables"


def _all_ranges(points: Sequence[Point], about: About) -> list[Point]:
    """Return points that span what was asked for: verification of drafts is known from plain steps, too."""
    plain = [point for point in points if point.batch <= about.max_running]
    return [
        *plain,
        *(msgspec.structs.replace(point, draft_config=chain(k)) for point in plain for k in about.ks),
    ]


def _notes(law: Coefficients, factors: Factors, own: Sequence[Point]) -> tuple[str, ...]:
    if not own:
        return ("no engine step of your own corrects it: its error is that of such tables on other models",)
    misses = [predict_s(factors.of(law), point) / point.engine_step_s - 1.0 for point in own]
    mean = sum(map(abs, misses)) / len(misses)
    changed = ", ".join(f"{name} {value:.3f}" for name, value in msgspec.structs.asdict(factors).items())
    corrected = f"corrected by {len(own)} points of your own, which it meets within {mean:.1%} on average"
    return (f"{corrected}: factors {changed}",)


def _not_fitted(answers: Answers, knows_drafts: bool) -> dict[str, str]:
    told = {"last slope": BEYOND, "off_s": OFF} | MIXED_NOT_TIMED
    if not knows_drafts:
        told["drafter"] = DRAFTER + (answers.refusal(drafting=True) or "none were asked for")
    return told
