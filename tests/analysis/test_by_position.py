"""Acceptance by position in the response: the table, and the spread between responses without chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.fake_run import write_run
from tlt.analysis.comparison.by_position import position_table, spread_between_responses
from tlt.analysis.load import load_run
from tlt.analysis.report import write_report
from tlt.traces.runs.request_acceptance import write_acceptance


def counts(
    sd: float, requests: int = 3000, steps: int = 40, slope: float = 0.3, seed: int = 3
) -> pd.DataFrame:
    """Return counts of a chain of 4 whose mean differs by `sd` between responses and falls by bin."""
    rng = np.random.default_rng(seed)
    mean = np.clip(2.0 + sd * rng.standard_normal(requests), 0.4, 3.6)
    parts = [
        pd.DataFrame(
            {"step": 0, "request": np.arange(requests), "from_token": edge, "draft_config": "4",
             "request_steps": steps, "drafted_tokens": 4 * steps,
             "accepted_tokens": rng.binomial(4 * steps, np.clip(mean - slope * index, 0, 4) / 4)}
        )
        for index, edge in enumerate((0, 128, 256))
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("sd", [0.2, 0.4])
def test_the_spread_is_that_between_responses_and_not_chance(sd: float) -> None:
    rows = counts(sd)
    found = spread_between_responses(rows)
    assert found == pytest.approx(sd, rel=0.05)
    rate = (rows["accepted_tokens"] / rows["request_steps"])[:3000]
    # Binomial: 160 draws of probability 0.5 have variance 40 tokens in 40 engine steps, 0.025 an engine step.
    assert rate.var() == pytest.approx(sd**2 + 0.025, rel=0.1)


def test_responses_that_are_alike_have_no_spread_and_few_say_nothing() -> None:
    found = spread_between_responses(counts(0.0))
    assert found is not None
    assert found < 0.05
    assert spread_between_responses(counts(0.4, requests=10)) is None
    assert spread_between_responses(counts(0.4, steps=19)) is None


def test_the_page_shows_it_where_it_was_counted(tmp_path: Path) -> None:
    folder = write_run(tmp_path, policy="static:4").path
    assert position_table((load_run(folder),)) is None
    longest = folder / "responses.parquet"
    responses = pd.read_parquet(longest)
    long = responses[responses["response_tokens"] >= 256].head(2)
    row = {"step": long["step"].to_numpy(), "request": long["request"].to_numpy(), "draft_config": "4",
           "request_steps": 10, "drafted_tokens": 40, "accepted_tokens": [10, 25]}  # fmt: skip
    both = pd.concat([pd.DataFrame(row).assign(from_token=edge) for edge in (0, 256)])
    write_acceptance(folder, both[both["from_token"].eq(0) | both["accepted_tokens"].eq(10)])
    table = position_table((load_run(folder),))
    assert table is not None
    assert table.headers == ("Tokens before", "static:4")
    # 1 + 35 / 20, and of the first alone 1 + 10 / 10.
    # Whole responses: 1 + 20 / 20 of the first; the second drafted in 10 engine steps, too few to count.
    assert table.rows == [
        ("from 0", "2.75 (2)"), ("from 256", "2.00 (1)"),
        ("lowest tenth below", "2.00 (1)"), ("median response", "2.00 (1)"),
        ("highest tenth above", "2.00 (1)"), ("between responses", "-"),
    ]  # fmt: skip
    assert "Acceptance by position in the response" in write_report(folder).read_text(encoding="utf-8")
