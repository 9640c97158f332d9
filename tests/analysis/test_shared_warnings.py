"""Warnings of several policies as one list: once each, and those that are alike but for a place as one."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.fake_run import write_comparison
from tlt.analysis.comparison.compare import compare
from tlt.analysis.comparison.shared_warnings import shared_warnings
from tlt.analysis.load import load_runs

UNHELD = "no live engine was held against {} (docs/regimes.md)"


def said(tmp_path: Path, **warnings: tuple[str, ...]) -> list[str]:
    """Return what a comparison says whose policies have these warnings; the first is the baseline."""
    policies: dict[str, dict[str, object]] = {
        name: {"warnings": texts, "speculates": False, "trains": False} for name, texts in warnings.items()
    }
    write_comparison(tmp_path, policies)
    return shared_warnings(compare(load_runs(tmp_path)))


def test_what_all_say_is_said_once_and_else_with_the_policies(tmp_path: Path) -> None:
    assert said(tmp_path, a=("Rewards are assumed.", "x"), b=("Rewards are assumed.",)) == [
        "Rewards are assumed.", "a: x"
    ]  # fmt: skip


def test_lines_that_differ_in_one_place_become_one(tmp_path: Path) -> None:
    overflow = "the KV cache overflowed: {} requests were preempted and redone"
    found = said(
        tmp_path,
        a=(UNHELD.format("TP 2"), overflow.format(7)),
        b=(UNHELD.format("TP 2"), UNHELD.format("the schedule divided"), overflow.format(12)),
        c=(UNHELD.format("TP 2"), UNHELD.format("the schedule repack")),
        d=(UNHELD.format("TP 2"), UNHELD.format("the schedule divided")),
    )
    assert found == [
        UNHELD.format("TP 2, the schedule divided (b, d), the schedule repack (c)"),
        overflow.format("7 (a), 12 (b)"),
    ]


def test_a_warning_that_repeats_its_own_words_keeps_them(tmp_path: Path) -> None:
    # no place is left in the shorter one where the longer differs
    found = said(tmp_path, a=("it is very very long",), b=("it is very long",))
    assert found == ["a: it is very very long", "b: it is very long"]


def test_warnings_about_other_things_stay_apart(tmp_path: Path) -> None:
    texts = ("step times are assumed: no calibration", "drafter drift is assumed: no calibration")
    assert said(tmp_path, a=texts, b=()) == [f"a: {text}" for text in texts]
