import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.analysis.fake_run import advice_of, batch_advice, write_recommendation, write_run
from tlt.analysis.comparison.advice import (
    ADVICE_HEADERS,
    advice_sentences,
    advice_table,
    advice_terminal,
    pays_sentence,
)
from tlt.analysis.comparison.drawn.gain_by_batch import draw_gain
from tlt.analysis.load import load_run
from tlt.analysis.report import present, write_report
from tlt.traces.runs.runfolder import BatchAdvice

TWO = {"none": {"speculates": False, "trains": False}, "static-4": {"policy": "static:4", "speed": 1.3}}
OPEN = {"regret": 0.01, "regret_high": 0.03, "ties": ("8_8_8",), "near": ("8_8_16",)}
OFF = {"draft_config": "off", "gain_low": 1.0, "gain_high": 1.0}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(1, 2.0), (8, 1.5), (64, 1.2)], "at every batch of this workload (1 to 64 requests a worker)."),
        ([(4, 2.0)], "at every batch of this workload (4 requests a worker)."),
        ([(1, 2.0), (8, 1.5), (64, 0.9)], "starts to pay at batch <= 8."),
        (
            [(1, 2.0), (8, 1.5), (64, 1.05), (128, 0.9)],
            "at batch <= 8; by the fit alone at batch <= 64, where the interval includes 1.",
        ),
        ([(1, 1.05), (8, 0.9)], "for certain at no batch; by the fit alone at batch <= 1, where"),
        ([(1, 1.0), (8, 0.9)], "Drafting pays at none of the batch sizes"),
        ([(1, 1.05), (2, 1.5), (4, 0.9), (8, 1.5), (64, 0.9)], "at batch <= 8 (but not at 1, 4)."),
    ],
)
def test_from_which_batch_drafting_pays(rows: list[tuple[int, float]], words: str) -> None:
    assert words in pays_sentence(advice_of(*(batch_advice(*row) for row in rows)))


def test_cells_hold_the_gain_with_its_interval() -> None:
    advice = advice_of(batch_advice(1, 1.8, **OPEN), batch_advice(64, 1.0, 0.0, **OFF))
    assert advice_table(advice).rows == [
        ("1", "8,000", "10_8_16", "1.80x [1.70, 1.90]", "1.0% [3.0%]", "8_8_16 (2.0%)", "8_8_8, ~8_8_16"),
        ("64", "125", "off", "1.00x [1.00, 1.00]", "0.1% [0.8%]", "8_8_16 (2.0%)", "none"),
    ]
    assert all(len(row) == len(ADVICE_HEADERS) for row in advice_table(advice).rows)
    assert advice_terminal(advice).row_count == 2


def test_the_words_say_what_the_intervals_cover() -> None:
    assert "step-time error of 4.2 % (leave one out: fake calibration) alone" in " ".join(
        advice_sentences(advice_of(batch_advice(1, 1.8)))
    )


@pytest.mark.parametrize(
    "rows",
    [
        (batch_advice(1, 1.8),),
        (batch_advice(1, 1.0, 0.0, **OFF), batch_advice(2, 1.0, 0.0, **OFF)),
        tuple(
            batch_advice(2**n, 3.0 / (n + 1), draft_config=f"$draft_{n}^漢", regret_high=n % 2 / 10)
            for n in range(9)
        ),
    ],
)
def test_the_gain_is_drawn(tmp_path: Path, rows: tuple[BatchAdvice, ...]) -> None:
    run = load_run(write_run(tmp_path, steps=1, requests_per_worker=1).path)
    picture = draw_gain((run,), advice_of(*rows))
    assert picture.name == "gain"
    assert picture.title.startswith("Drafting")
    assert picture.png.startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_report_of_a_recommendation_shows_the_advice(tmp_path: Path) -> None:
    text = write_report(write_recommendation(tmp_path, TWO, steps=12)).read_text(encoding="utf-8")
    plain = text.replace("\u00a0", " ")
    assert "What to draft at which batch size" in plain
    assert "Drafting starts to pay at batch &lt;= 8." in plain
    assert "1.80x [1.70, 1.90]" in plain
    assert "pooled over draws of the step-time coefficients" in plain
    assert "step-time error of 4.2 %, leave one out: fake calibration (40 draws)" in plain
    assert "static:4" in plain
    assert (tmp_path / "pictures" / "gain.png").is_file()


@pytest.mark.slow
def test_a_recommendation_is_printed_within_80_columns(tmp_path: Path) -> None:
    evil = batch_advice(4, 1.5, draft_config="[red]x")
    write_recommendation(tmp_path, TWO, advice=advice_of(evil), steps=12)
    console = Console(width=80, record=True, file=io.StringIO())
    present(tmp_path, console)
    text = console.export_text()
    assert "Run static:4" in text
    assert "[red]x" in text
    assert "1.50x [1.40, 1.60]" in text
    assert "Drafting pays at every batch" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith(("report", "pict"))) <= 80


@pytest.mark.slow
def test_advice_without_rows_is_said_and_not_drawn(tmp_path: Path) -> None:
    write_recommendation(tmp_path, TWO, advice=advice_of(), draws=2, steps=2)
    console = Console(width=200, record=True, file=io.StringIO())
    present(tmp_path, console)
    assert "no advice by batch size" in console.export_text()
    assert "no advice by batch size" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not (tmp_path / "pictures" / "gain.png").exists()


@pytest.mark.slow
def test_names_in_the_advice_are_escaped(tmp_path: Path) -> None:
    advice = advice_of(batch_advice(1, 1.8, draft_config="<script>", runner_up="<b>"))
    text = write_report(write_recommendation(tmp_path, TWO, advice=advice, draws=1)).read_text(
        encoding="utf-8"
    )
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "&lt;b&gt;" in text
