"""An engine over two GPUs that drafts, against what was committed before, the roofline and its calibration.

Measured on a second machine of the kind of evidence.two_gpus, whose data folder holds it as well. The engine
without drafts was timed there again: what both machines are apart bounds what a roofline can be asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from evidence.recording import HERE, RUNS, write, write_raw
from evidence.shapes_claims import BIAS, MEAN
from evidence.training_before import Before
from evidence.two_gpus import BESIDE, DATA, PREDICTED, law_of, lines_of, plain_points
from tlt.analysis.drawing.tables import markdown_rows
from tlt.sim.steptimes.calibration import Calibration, load, mixed_errors, predict_mixed_s, predict_s
from tlt.traces.common.arrays import Floats
from tlt.traces.runs.runfolder import read_struct

CALIBRATION = DATA / "calibration.json"
OVER_ONE = RUNS / "h200-qwen2.5-7b-regimes" / "calibration.json"  # the same kind of engine at TP 1
CONTEXTS_TOKENS = (512, 4096)
KS = (0, 2, 4)
PLAIN = "no drafts"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one kind of engine step at TP 2: measured, and by whom it was said before or after."""

    engine: str  # PLAIN, or K = so many of the engine that drafts
    batch: int
    context_tokens: int  # as asked; some tokens came while it was timed
    prompt_tokens: int  # that are prefilled beside the batch; 0: it decodes alone
    measured_s: float
    roofline_s: float
    calibrated_s: float
    unseen: bool  # by the fit of the calibration
    committed_s: float | None = None  # before any engine step at TP 2 was timed
    first_machine_s: float | None = None

    def error(self, seconds: float) -> float:
        """Return by what share of the measured time `seconds` is off, with its sign."""
        return seconds / self.measured_s - 1.0


def _engine(when_off: str, k: int) -> str:
    return PLAIN if when_off == "not_configured" else f"K = {k}"


def decode_steps(calibration: Calibration) -> list[Step]:
    """Return the engine steps that decode alone, those without drafts first."""
    law, first = law_of(2), plain_points(lines_of(2))
    committed = {
        (f"K = {step.k}", step.batch, step.context_tokens): step.seconds
        for step in read_struct(PREDICTED, Before).two_gpus
    }
    steps = []
    for point in calibration.points:
        context = min(CONTEXTS_TOKENS, key=lambda tokens: abs(tokens - point.context_tokens))
        engine = _engine(point.when_off, point.draft_config.depth)
        before = first.get((point.batch, context)) if engine == PLAIN else None
        steps.append(
            Step(
                engine=engine, batch=point.batch, context_tokens=context, prompt_tokens=0,
                measured_s=point.engine_step_s, roofline_s=predict_s(law, point),
                calibrated_s=predict_s(calibration.coefficients, point), unseen=point.held_out,
                committed_s=committed.get((engine, point.batch, context)),
                first_machine_s=None if before is None else before.engine_step_s,
            )
        )  # fmt: skip
    return sorted(
        steps, key=lambda step: (step.engine != PLAIN, step.engine, step.context_tokens, step.batch)
    )


def beside_steps(calibration: Calibration) -> list[Step]:
    """Return the engine steps that prefill one prompt beside a batch."""
    law = law_of(2)
    steps = [
        Step(
            engine=_engine(point.when_off, point.draft_config.depth), batch=point.batch,
            context_tokens=round(point.context_tokens), prompt_tokens=point.prompt_tokens,
            measured_s=point.engine_step_s, roofline_s=predict_mixed_s(law, point),
            calibrated_s=predict_mixed_s(calibration.coefficients, point), unseen=point.held_out,
        )
        for point in calibration.mixed_points
    ]  # fmt: skip
    return sorted(steps, key=lambda step: (step.engine != PLAIN, step.engine, step.prompt_tokens, step.batch))


def _both(name: str, errors: Sequence[float] | Floats) -> dict[str, float]:
    mean, signed = np.mean(np.abs(errors)), np.mean(errors)
    return {f"{name}: mean error": round(float(mean), 4), f"{name}: signed": round(float(signed), 4)}


def _drafting(steps: Iterable[Step]) -> list[Step]:
    return [step for step in steps if step.engine != PLAIN]


def over_one(k: int) -> list[float]:
    """Return the errors of the roofline at TP 1 on the same kind of engine with K drafts, contexts alike."""
    calibration, law = load(str(OVER_ONE)), law_of(1)
    return [
        predict_s(law, point) / point.engine_step_s - 1.0
        for point in calibration.points
        if point.when_off == "k0" and point.draft_config.depth == k and point.context_tokens < 5_000
    ]


def figures_of(calibration: Calibration, decode: Sequence[Step], beside: Sequence[Step]) -> dict[str, float]:
    """Return the figures of the record."""
    drafting = _drafting(decode)
    before = [step.error(step.committed_s) for step in drafting if step.committed_s]
    values = _both("decode, committed before", before)
    values |= _both("decode, roofline", [step.error(step.roofline_s) for step in drafting])
    for k in KS:
        of = [step for step in drafting if step.engine == f"K = {k}"]
        values |= _both(f"decode, K = {k}, roofline", [step.error(step.roofline_s) for step in of])
        values[f"decode, K = {k}, roofline at TP 1: signed"] = round(float(np.mean(over_one(k))), 4)
    plain = [step for step in decode if step.engine == PLAIN]
    values |= _both(f"decode, {PLAIN}, roofline", [step.error(step.roofline_s) for step in plain])
    machines = [step.measured_s / step.first_machine_s - 1.0 for step in plain if step.first_machine_s]
    values |= _both(f"decode, {PLAIN}, over the first machine", machines)
    residuals, law = calibration.residuals, calibration.coefficients
    values["calibration, decode it did not see: mean error"] = round(residuals.held_out_mean, 4)
    values["calibration, decode it did not see: worst"] = round(residuals.held_out_max, 4)
    unseen = [point for point in calibration.mixed_points if point.held_out]
    values |= _both("calibration, prompts beside decode it did not see", mixed_errors(law, unseen))
    for tokens in sorted({step.prompt_tokens for step in beside}):
        for words, of in (
            (PLAIN, [step for step in beside if step.engine == PLAIN]), ("drafting", _drafting(beside))
        ):  # fmt: skip
            same = [step for step in of if step.prompt_tokens == tokens]
            for who, field in (("measured", "measured_s"), ("roofline", "roofline_s")):
                median_s = float(np.median([getattr(step, field) for step in same]))
                values[f"{tokens:,} tokens beside decode, {words}: {who}"] = round(median_s * 1e3, 2)
    return values


def unit_of(figure: str) -> str:
    """Return the unit of a figure of the record."""
    if "tokens beside" in figure:
        return "ms"
    return "share" if "first machine" in figure else "share of the measured step"


def is_met(values: Mapping[str, float], beside: Sequence[Step]) -> bool:
    """Return whether what was committed for decode is as near as one GPU has to be, and prefill beside it."""
    name = "decode, committed before"
    decode = values[f"{name}: mean error"] <= MEAN and abs(values[f"{name}: signed"]) <= BIAS
    return decode and all(abs(step.error(step.roofline_s)) <= BESIDE for step in beside)


def table_of(steps: Sequence[Step]) -> str:
    """Return a row an engine step that decodes alone, milliseconds and errors."""
    headers = (
        "Engine", "Batch", "Context", "Measured (ms)", "Committed", "Roofline", "Calibration", "Unseen by it",
        "First machine (ms)",
    )  # fmt: skip
    cells = [
        (
            step.engine, str(step.batch), f"{step.context_tokens:,}", f"{step.measured_s * 1e3:.2f}",
            *("-" if seconds is None else f"{step.error(seconds):+.1%}"
              for seconds in (step.committed_s, step.roofline_s, step.calibrated_s)),
            "yes" if step.unseen else "-",
            "-" if step.first_machine_s is None else f"{step.first_machine_s * 1e3:.2f}",
        )
        for step in steps
    ]  # fmt: skip
    return markdown_rows(headers, cells) + "\n"


def how(calibration: Calibration, values: Mapping[str, float], decode: Sequence[Step]) -> str:
    """Say how the figures came about, and what bounds those that miss."""
    law = calibration.coefficients
    spreads = {
        plain: float(np.median([
            point.spread_s / point.engine_step_s for point in calibration.points
            if (point.when_off == "not_configured") is plain
        ]))
        for plain in (True, False)
    }  # fmt: skip
    missing_s = {
        batch: np.mean([
            step.measured_s - step.roofline_s
            for step in decode if step.engine == "K = 4" and step.batch == batch
        ])
        for batch in (1, 64)
    }  # fmt: skip
    machines = values[f"decode, {PLAIN}, over the first machine: signed"]
    eager_s = law.mixed_eager_host_s or 0.0
    layer_s = law.drafter_kv_share * law.prefill_s_per_token
    return (
        "measured: medians of 3 repeats; modelled: the roofline, assumed, and a calibration of these very "
        f"points. Without drafts this machine took {-machines:.1%} less than the first one for the same "
        "engine steps, and the roofline, too long on both, is as much further off: two machines of a kind "
        "are as far apart as the target of the bias is wide. Engine steps that draft are longer than the "
        "roofline has them, which at TP 1 they hardly are: with K = 4 by "
        f"{missing_s[1] * 1e3:.2f} ms for one request, and by {missing_s[64] * 1e3:.2f} for 64 (320 tokens). "
        "The roofline halves their products, has a drafter's pass read half its weights without an "
        "all-reduce, and no host of their own. Which of these it is does not show: repeats of the engine "
        f"that drafts spread by {spreads[False]:.0%} (quartiles, median point; without drafts "
        f"{spreads[True]:.0%}), and minutes later few requests took what the roofline has "
        "(two_gpus_replay). Prefill beside decode: up to 1,024 tokens it is the host, "
        f"{eager_s * 1e3:.0f} ms past the graphs without drafts, which a roofline has none of. The engine "
        "that drafts took longer there, and the fit, with one host for both, takes that for "
        f"{law.draft_prefill_s_per_token * 1e6:.1f} us that a drafter reads a prompt's token in, where a "
        f"layer of the target takes {layer_s * 1e6:.1f}: long prompts come out too long. Not run: drafts at "
        "TP 1 on this machine (errors at TP 1 are of another, evidence/runs/h200-qwen2.5-7b-regimes)"
    )


def two_gpus_drafting() -> None:
    """Engine steps of an engine over two GPUs that drafts, against three predictions of them."""
    calibration = load(str(CALIBRATION))
    decode, beside = decode_steps(calibration), beside_steps(calibration)
    values = figures_of(calibration, decode, beside)
    (HERE / "two_gpus_drafting.md").write_text(table_of(decode), encoding="utf-8")
    write(
        "two_gpus_drafting",
        claim="engine steps of a 7B shape over two H200 (TP 2) that drafts with K = 0, 2 and 4 against those "
        "committed before any were timed, the roofline, and the calibration of the same points",
        value=values,
        unit={figure: unit_of(figure) for figure in values},
        target=f"as for one GPU: decode as committed within {MEAN:.0%} in the mean and {BIAS:.0%} of bias, "
        f"prefill beside it within {BESIDE:.0%} by the roofline",
        met=is_met(values, beside),
        how=how(calibration, values, decode),
        measured_on="two of four H200 of one host, vLLM 0.32.0, stock graphs, 2026-11-29; without drafts the "
        "two H200 of another host, too",
        raw=write_raw(
            "two_gpus_drafting.points.jsonl", [msgspec.to_builtins(step) for step in (*decode, *beside)]
        ),
    )
