"""Step times out of others' tables: what is asked, how it becomes a law, and what own points change.

The table here is a law that is known: G(x) = 5 ms + 20 us x, 10 ns a cached token, 0.3 ms a pass.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from tlt.sim.borrowed.aisimulate import SETUP, ask, system_of
from tlt.sim.borrowed.calibration import About, borrowed
from tlt.sim.borrowed.correct import fit_factors, read_own
from tlt.sim.borrowed.questions import Answer, Answers, Question, Subject, Table, grid
from tlt.sim.steptimes.calibration import Calibration, load, predict_s
from tlt.sim.steptimes.errors import BORROWED_SDS, CORRECTED_SDS, cost_error
from tlt.traces.catalogue.gpus import gpu_spec
from tlt.traces.catalogue.models import model_shape
from tlt.traces.results.calibration_points import Point
from tlt.traces.runs.engine_steps import ENGINE_STEP_COLUMNS, ENGINE_STEPS
from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError

SUBJECT = Subject(model="m", system="h100_sxm", engine="vllm", draft_config={})
TABLE = Table(name="AISimulate", version="0.13", engine_version="0.24.0")
ABOUT = About(
    name="b", model="Qwen2.5-7B", shape=model_shape("Qwen2.5-7B"), gpu=gpu_spec("H100"), date="2026-11-28",
    max_running=64, ks=(1, 2, 4),
)  # fmt: skip
FAKE = """
import json, sys
asked = json.load(sys.stdin)
for q in asked["questions"]:
    print(json.dumps({"seconds": q["batch"] / 1e3} if q["batch"] < 9 else {"refused": "too large"}))
print(json.dumps({"name": "AISimulate", "version": "1", "engine_version": "2"}))
"""


def seconds(question: Question) -> float:
    """Return what the known law says."""
    if question.kind == "prefill":
        return 3e-3 + 20e-6 * question.batch * question.context_tokens
    x = question.batch * (question.k + 1)
    cached = 10e-9 * question.batch * question.context_tokens * (1 + question.k / 28)
    return 5e-3 + 20e-6 * x + cached + 0.3e-3 * question.k


def answers(drafts: bool = True) -> Answers:
    asked = grid(64, (256, 4096), (1, 2, 4))
    told = [Answer(seconds=seconds(each)) if drafts or not each.k else Answer(refused="ValueError: no MOE")
            for each in asked]  # fmt: skip
    return Answers(table=TABLE, subject=SUBJECT, questions=asked, answers=tuple(told))


def own_points(factor: float) -> list[Point]:
    """Return engine steps of an engine that is slower by a factor than the table says."""
    return [
        Point(provenance="measured", when_off="k0" if k else "not_configured", draft_config=chain(k),
              batch=batch, context_tokens=300.0,
              engine_step_s=factor * seconds(Question(kind="decode", k=k, batch=batch, context_tokens=300)))
        for batch in (1, 8, 64) for k in (0, 4)
    ]  # fmt: skip


def test_the_grid_covers_batches_contexts_drafts_and_what_the_largest_batch_verifies() -> None:
    asked = grid(48, (2000, 10), (4, 1))
    plain = [q for q in asked if q.kind == "decode" and not q.k]
    assert [q.batch for q in plain if q.context_tokens == 64] == [1, 2, 4, 8, 16, 32, 48, 64, 128, 240]
    assert [q.batch for q in plain if q.context_tokens == 2000] == [1, 4, 16, 48]
    assert {q.k for q in asked} == {0, 1, 4}
    assert {(q.batch, q.context_tokens) for q in asked if q.kind == "prefill"} == {
        (1, 64), (1, 2000), (4, 64), (16, 64)
    }  # fmt: skip
    for wrong in ((0, (10,), (1,)), (8, (), (1,)), (8, (10,), (0,))):
        with pytest.raises(InputError, match="one request or more, a context, K of 1 or more"):
            grid(*wrong)


def test_answers_become_a_law_that_says_the_same() -> None:
    made = borrowed(answers(), ABOUT)
    worst = max(abs(predict_s(made.coefficients, point) / point.engine_step_s - 1) for point in made.points)
    assert worst < 0.002
    assert made.residuals.held_out_mean < 0.005
    assert made.provenance == "borrowed"
    assert made.describe() == (
        "borrowed: AISimulate 0.13 for vLLM 0.24.0, not corrected by own points, one H100 by its tables, "
        "2026-11-28 (b)"
    )
    assert made.coefficients.off_s == made.coefficients.draft_pass_s == pytest.approx(0.3e-3, rel=0.05)
    assert made.not_fitted["off_s"].startswith("assumed")
    assert (made.ranges.batch, made.ranges.draft_batch, made.ranges.depth) == ((1, 64), (1, 64), (1, 4))
    assert msgspec.json.decode(msgspec.json.encode(made), type=Calibration) == made
    assert cost_error(made).sds == BORROWED_SDS


def test_a_model_whose_drafts_the_table_refuses_gets_the_drafter_of_the_roofline() -> None:
    made = borrowed(answers(drafts=False), ABOUT)
    assert made.not_fitted["drafter"].endswith("refused drafts: ValueError: no MOE")
    law = made.coefficients
    whole_s = float(law.fixed_s(chain(4), "not_configured", np.float64(64)))
    verify_s = whole_s - law.draft_s - 4 * law.draft_pass_s
    assert verify_s == pytest.approx(5e-3 + 20e-6 * 320, rel=0.01), "what is verified, plain steps say"
    assert 0.1e-3 < law.draft_pass_s < 0.4e-3
    assert (made.ranges.draft_batch, made.ranges.depth) == ((1, 64), (1, 4))


def test_own_points_correct_it() -> None:
    own = own_points(1.1)
    made = borrowed(answers(), ABOUT, own)
    misses = [predict_s(made.coefficients, point) / point.engine_step_s - 1 for point in own]
    assert max(map(abs, misses)) < 0.01
    assert "corrected by 6 own points" in made.describe()
    assert "corrected by 6 points of your own, which it meets within" in made.notes[0]
    assert cost_error(made).sds == CORRECTED_SDS
    factors = fit_factors(borrowed(answers(), ABOUT).coefficients, own)
    assert factors.floor == pytest.approx(1.1, abs=0.01)
    assert factors.kv == pytest.approx(1.0, abs=0.05), "short contexts say nothing of the cache"
    with pytest.raises(InputError, match="own points"):
        fit_factors(made.coefficients, ())


def test_own_points_are_read_from_a_calibration_or_a_live_run(tmp_path: Path) -> None:
    shipped = load("vllm-0.32-h100-qwen2.5-7b")
    file = tmp_path / "calibration.json"
    file.write_bytes(msgspec.json.encode(shipped))
    assert read_own(file) == tuple(point for point in shipped.points if not point.excluded)
    rows = pd.DataFrame(
        {"step": 0, "worker": 0, "t_s": np.arange(40) / 100, "seconds": 0.01, "batch": 8,
         "context_tokens": 800, "prompt_tokens": 0, "k": [0] * 20 + [4] * 20, "drafted_tokens": 0,
         "accepted_tokens": 0, "compiled": False}
    ).astype(ENGINE_STEP_COLUMNS)  # fmt: skip
    rows.to_parquet(tmp_path / ENGINE_STEPS)
    points = read_own(tmp_path)
    assert [(point.draft_config, point.batch, point.context_tokens) for point in points] == [
        (OFF, 8, 100.0), (chain(4), 8, 100.0)
    ]  # fmt: skip
    assert {point.when_off for point in points} == {"k0"}, "an engine that drafts at times is configured to"
    assert {point.engine_step_s for point in points} == {0.01}
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "empty", tmp_path / "none.json"):
        with pytest.raises(InputError, match="--own"):
            read_own(wrong)


def test_the_other_interpreter_is_asked_in_a_process_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "answers.py"
    script.write_text(FAKE, encoding="utf-8")
    asked = grid(16, (256,), (1,))
    found = ask(Path(sys.executable), SUBJECT, asked, script)
    assert found.table == Table(name="AISimulate", version="1", engine_version="2")
    assert {question.batch for question, _ in found.answered("decode")} == {1, 2, 4, 8}
    assert found.refusal(drafting=True) == "too large"
    script.write_text("raise SystemExit('out of order')", encoding="utf-8")
    with pytest.raises(InputError, match="after 0 answers: out of order"):
        ask(Path(sys.executable), SUBJECT, asked, script)
    with pytest.raises(InputError, match=r"No module named .*aisimulate") as told:
        ask(Path(sys.executable), SUBJECT, asked)
    assert SETUP in str(told.value)
    with pytest.raises(InputError, match="interpreter of an environment"):
        ask(tmp_path / "none", SUBJECT, asked)


def test_a_gpu_without_tables_is_refused_unless_a_system_is_named() -> None:
    assert system_of("H200", None) == "h200_sxm"
    assert system_of("MI300X", "b60") == "b60"
    with pytest.raises(InputError, match="GPUs with tables"):
        system_of("MI300X", None)


def test_a_table_that_answers_too_little_is_refused_with_its_reason() -> None:
    asked = grid(64, (256,), (1,))
    none = Answers(table=TABLE, subject=SUBJECT, questions=asked,
                   answers=tuple(Answer(refused="KeyError: no such model") for _ in asked))  # fmt: skip
    with pytest.raises(InputError, match="KeyError: no such model"):
        borrowed(none, ABOUT)
