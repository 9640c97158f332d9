"""AISimulate's tables against measured engine steps, and eleven pairs of model and GPU.

`python -m evidence.borrowed PYTHON`: the interpreter of an environment with aisimulate; `tlt sim borrow` says
how to make one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evidence.recording import HERE, OTHERS, Figure, write, write_raw
from tlt.realrun.models.drafter import head_config
from tlt.realrun.models.target import config_json
from tlt.sim.borrowed.aisimulate import SYSTEMS, ask
from tlt.sim.borrowed.calibration import About, borrowed
from tlt.sim.borrowed.correct import fit_factors
from tlt.sim.borrowed.questions import Answers, Question, Subject, grid
from tlt.sim.steptimes.calibration import Calibration, load, predict_s
from tlt.traces.catalogue.gpus import gpu_spec
from tlt.traces.catalogue.models import model_shape
from tlt.traces.results.calibration_points import Point
from tlt.traces.runs.runfolder import write_json
from tltsched.draft_config import OFF, chain

HELD_AGAINST = {"H100": "vllm-0.32-h100-qwen2.5-7b", "H200": "vllm-0.32-h200-qwen2.5-7b"}
CONTEXTS, KS = (272, 2048, 8192), (1, 2, 3, 4, 8)
# The six own points: the ends and the middle of the batches at the shortest context, plain and K = 4.
OWN_BATCHES, OWN_KS, OWN_BELOW_TOKENS = (1, 32, 128), (0, 4), 600
PLAIN_WITHIN, DRAFTS_WITHIN, CORRECTED_WITHIN = 0.04, 0.065, 0.03
# Model, GPU, GPUs of an engine, GPUs that experts are spread over (0: it has none).
PAIRS = (
    ("Qwen3-8B", "A100", 1, 0), ("Qwen3-8B", "L40S", 1, 0), ("Qwen3-8B-FP8", "H100", 1, 0),
    ("Qwen3-32B", "H100", 2, 0), ("Qwen3-32B", "B200", 1, 0), ("Llama-3.3-70B", "H200", 4, 0),
    ("Qwen3-30B-A3B", "H200", 1, 1), ("gpt-oss-120b", "H100", 2, 1), ("Qwen3-235B-A22B-FP8", "H200", 4, 4),
    ("DeepSeek-V3", "H200", 8, 8), ("DeepSeek-V3", "B200", 8, 8),
)  # fmt: skip
SHOWN_BATCHES, SHOWN_K, SHOWN_CONTEXT = (8, 64), 4, 2048


def subject(model: str, gpu: str, tp: int, experts: int, place: Path) -> Subject:
    """Return whose engine steps are asked for; the model's configuration is written into `place`."""
    written = config_json(model_shape(model), "bfloat16")
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / "config.json", written)
    return Subject(
        model=str(place), system=SYSTEMS[gpu], engine="vllm", tp=tp, experts_parallel=experts or None,
        draft_config=head_config(written, 32_000),
    )  # fmt: skip


def about(model: str, gpu: str, max_running: int, ks: tuple[int, ...]) -> About:
    """Return what a calibration of the answers is of."""
    return About(name=f"{model}-{gpu}", model=model, shape=model_shape(model), gpu=gpu_spec(gpu), date="",
                 max_running=max_running, ks=ks)  # fmt: skip


def counted(calibration: Calibration) -> list[Point]:
    """Return the measured points: plain ones, and those that draft (a table knows no K of 0)."""
    return [
        point for point in calibration.points
        if not point.excluded and (point.draft_config.depth or point.when_off == "not_configured")
    ]  # fmt: skip


def told(name: str, errors: Sequence[float], points: Sequence[Point]) -> dict[str, Figure]:
    """Return mean and signed errors of plain steps and of those that draft."""
    values: dict[str, Figure] = {}
    for kind, drafts in (("plain", False), ("drafting", True)):
        some = [error for error, point in zip(errors, points, strict=True)
                if bool(point.draft_config.depth) == drafts]  # fmt: skip
        values[f"{name}, {kind}: mean error"] = round(float(np.mean(np.abs(some))), 4)
        values[f"{name}, {kind}: signed"] = round(float(np.mean(some)), 4)
    return values


def held_against(python: Path, gpu: str, place: Path) -> tuple[dict[str, Figure], list[dict[str, Any]], str]:
    """Return figures, rows and version of one calibration: as the table says it, and after six own points."""
    points = counted(load(HELD_AGAINST[gpu]))
    asked = grid(128, CONTEXTS, KS)
    exact = tuple(
        Question(kind="decode", k=point.draft_config.depth, batch=point.batch,
                 context_tokens=int(point.context_tokens)) for point in points
    )  # fmt: skip
    answers = ask(python, subject("Qwen2.5-7B", gpu, 1, 0, place), (*asked, *exact))
    of_points = [answer.seconds or float("nan") for answer in answers.answers[len(asked) :]]
    raw = [said / point.engine_step_s - 1.0 for said, point in zip(of_points, points, strict=True)]
    own = [
        point for point in points
        if point.batch in OWN_BATCHES and point.draft_config.depth in OWN_KS
        and point.context_tokens < OWN_BELOW_TOKENS
    ]  # fmt: skip
    whole = Answers(table=answers.table, subject=answers.subject, questions=asked,
                    answers=answers.answers[: len(asked)])  # fmt: skip
    law = borrowed(whole, about("Qwen2.5-7B", gpu, 128, KS)).coefficients
    factors = fit_factors(law, own)
    rest = [point for point in points if point not in own]
    left = [predict_s(factors.of(law), point) / point.engine_step_s - 1.0 for point in rest]
    values = told(f"{gpu}, as it comes", raw, points) | told(f"{gpu}, six own points", left, rest)
    values[f"{gpu}, six own points, all: mean error"] = round(float(np.mean(np.abs(left))), 4)
    values[f"{gpu}: points"] = float(len(points))
    rows = [
        {"gpu": gpu, "draft_config": str(point.draft_config), "batch": point.batch,
         "context_tokens": round(point.context_tokens), "engine_step_s": point.engine_step_s,
         "as_it_comes": round(error, 4)} for point, error in zip(points, raw, strict=True)
    ]  # fmt: skip
    return values, rows, answers.table.version


def pairs_table(python: Path, place: Path) -> str:
    """Return the engine steps of PAIRS, as a table in Markdown."""
    lines = [
        f"| model | engine | plain, batch {SHOWN_BATCHES[0]} | K = {SHOWN_K} | plain, batch "
        f"{SHOWN_BATCHES[1]} | K = {SHOWN_K} | drafts | tables of |",
        "|:--|:--|--:|--:|--:|--:|:--|:--|",
    ]
    for number, (model, gpu, tp, experts) in enumerate(PAIRS):
        asked = grid(SHOWN_BATCHES[1], (SHOWN_CONTEXT,), (1, 2, SHOWN_K))
        answers = ask(python, subject(model, gpu, tp, experts, place / str(number)), asked)
        made = borrowed(answers, about(model, gpu, SHOWN_BATCHES[1], (1, 2, SHOWN_K)))
        milliseconds = []
        for batch in SHOWN_BATCHES:
            for draft_config in (OFF, chain(SHOWN_K)):
                law = made.coefficients
                seconds = float(law.fixed_s(draft_config, "not_configured", np.float64(batch)))
                per_token = law.context_s_per_token(draft_config, "not_configured")
                milliseconds.append(f"{(seconds + per_token * batch * SHOWN_CONTEXT) * 1e3:.1f} ms")
        drafts = "assumed" if "drafter" in made.not_fitted else "borrowed"
        spread = f", EP {experts}" if experts > 1 else ""
        lines.append(
            f"| {model} | {tp} x {gpu}{spread} | {' | '.join(milliseconds)} | {drafts} | "
            f"vLLM {answers.table.engine_version} |"
        )
    return "\n".join(lines) + "\n"


def main(python: Path) -> None:
    """Ask for everything, and write the record and the table."""
    values: dict[str, Figure] = {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        for gpu in HELD_AGAINST:
            found, points, version = held_against(python, gpu, Path(made) / gpu)
            values |= found
            rows += points
        (HERE / "borrowed.md").write_text(pairs_table(python, Path(made)), encoding="utf-8")

    def within(figure: str, most: float) -> bool:
        value = values[figure]
        assert isinstance(value, float)
        return value <= most

    met = (
        within("H100, as it comes, plain: mean error", PLAIN_WITHIN)
        and within("H100, as it comes, drafting: mean error", DRAFTS_WITHIN)
        and within("H100, six own points, all: mean error", CORRECTED_WITHIN)
    )
    write(
        "borrowed",
        claim=f"engine steps out of the tables of AISimulate {version} against measured ones, as they come "
        "and after six measured points of one's own",
        value=values,
        unit={OTHERS: "share of the measured step", "H100: points": "", "H200: points": ""},
        target=f"on the H100 at most {PLAIN_WITHIN:.0%} for plain steps and {DRAFTS_WITHIN:.1%} for those "
        f"that draft, as they come, and at most {CORRECTED_WITHIN:.0%} on all others after six points",
        met=met,
        how="modelled by that package, against measured points of vLLM 0.32.0 (7B shape, EAGLE-3 head, K up "
        "to 8); the six: batch 1, 32 and 128 at the shortest context, plain and K = 4",
        measured_on="one H100 80 GB and one H200, vLLM 0.32.0 (step times)",
        command="python -m evidence.borrowed PYTHON",
        raw=write_raw("borrowed.points.jsonl", rows),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
