"""Acceptance by batch, and whether the tail accepts less: by hand, and against chance between requests."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from tests.traces.doctor_runs import STEPS, healthy
from tlt.traces.runs.batch_acceptance import (
    BATCH_ACCEPTANCE_COLUMNS,
    bucket_words,
    buckets,
    by_bucket,
    of_engine_steps,
    read_batch_acceptance,
    tail_acceptance,
)
from tltsched.events import DecisionEnded

RUNS = Path(__file__).parents[2] / "evidence/runs"
REQUESTS, EACH, K = 16, 30, 4  # a rollout: 16 requests, one ends every 30 engine steps


def rollouts(count: int, spread: float, fall: float = 1.0, seed: int = 0) -> pd.DataFrame:
    """Return rows of rollouts whose requests have a rate of their own (log-normal, `spread`), kept for life.

    fall: what the rates of all are multiplied by once 4 requests or fewer are left.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(count):
        rates = np.exp(spread * rng.standard_normal(REQUESTS) - spread**2 / 2)
        for batch in range(REQUESTS, 0, -1):
            chance = np.clip(0.4 * rates[:batch] * (fall if batch <= REQUESTS // 4 else 1.0), 0.0, 0.95)
            accepted = int(rng.binomial(K * EACH, chance).sum())
            rows.append((step, 0, float(batch), False, "4", EACH, EACH * batch, accepted))
    return pd.DataFrame(rows, columns=list(BATCH_ACCEPTANCE_COLUMNS)).astype(BATCH_ACCEPTANCE_COLUMNS)


def test_buckets_double() -> None:
    assert buckets(np.array([1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 8.0, 64.0])).tolist() == [0, 1, 2, 2, 2, 3, 3, 6]
    assert [bucket_words(number) for number in (0, 1, 2, 3, 6)] == ["1", "2", "3-4", "5-8", "33-64"]


def test_rows_of_engine_steps_hold_what_drafted() -> None:
    rows = of_engine_steps(healthy().engine_steps)
    # 12 rollouts; half of 240 engine steps draft, of which 90 at batch 8 and 30 at batch 2
    assert rows.groupby("batch")["engine_steps"].sum().to_dict() == {2.0: 12 * 30, 8.0: 12 * 90}
    assert set(rows["draft_config"]) == {"4"}
    assert (rows["accepted_tokens"] == 2 * rows["request_steps"]).all()


def test_records_say_the_same_by_decision_interval(tmp_path: Path) -> None:
    run = healthy()
    run.left_out.add("engine_steps")
    rows = read_batch_acceptance(run.write(tmp_path))
    assert rows is not None
    assert rows["step"].tolist() == list(range(STEPS))
    assert rows["batch"].unique().tolist() == [8.0]
    assert not rows["falls"].any()
    # An interval that ends with 2 of 8 requests, and had 6 in the mean, is of no one batch.
    run.events = [
        msgspec.structs.replace(event, requests=2, request_steps=200 * 6)
        if isinstance(event, DecisionEnded) else event
        for event in run.events
    ]  # fmt: skip
    rows = read_batch_acceptance(run.write(tmp_path))
    assert rows is not None
    assert rows["falls"].all()
    assert by_bucket(rows) == {}
    assert tail_acceptance(rows) is None


@pytest.mark.parametrize("spread", [0.0, 0.6])
def test_requests_that_differ_are_no_tail_that_accepts_less(spread: float) -> None:
    """Each request keeps its rate, so tail and bulk are alike: 95 % intervals leave 1 out in about 5 %."""
    found = [tail_acceptance(rollouts(20, spread, seed=seed)) for seed in range(60)]
    ends = np.array([each.ratio.interval for each in found if each is not None])
    assert len(ends) == 60
    assert np.mean((ends[:, 1] < 1) | (ends[:, 0] > 1)) <= 0.11


def test_a_tail_that_accepts_less_is_found_and_how_much_less() -> None:
    found = tail_acceptance(rollouts(40, 0.3, fall=0.6))
    assert found is not None
    assert found.ratio.value == pytest.approx(0.6, abs=0.06)
    assert found.ratio.interval is not None
    assert found.ratio.interval[1] < 0.75
    assert found.rollouts == 40


def test_drafts_are_not_so_many_observations() -> None:
    """Ten times the drafts of the same requests tell hardly more: what varies is the requests."""
    few, many = rollouts(20, 0.6), rollouts(20, 0.6)
    counts = ["engine_steps", "request_steps", "accepted_tokens"]
    many[counts] *= 10
    one, ten = tail_acceptance(few), tail_acceptance(many)
    assert one is not None
    assert ten is not None
    assert ten.ratio.interval == pytest.approx(one.ratio.interval)


def test_a_policy_that_drafts_deeper_in_the_tail_is_compared_at_the_same_depth() -> None:
    rows = rollouts(20, 0.0)
    tail = rows["batch"] <= REQUESTS // 4
    assert tail_acceptance(rows.assign(draft_config=np.where(tail, "8", "2"))) is None
    assert tail_acceptance(rows[rows["step"] < 4]) is None, "four rollouts are too few"


@pytest.mark.parametrize(
    ("run", "found"),
    [("h200-smollm2-train/natural/static-4-frozen", 0.73), ("h200-smollm2-acceptance/static-4-frozen", None)],
)
def test_recorded_runs(run: str, found: float | None) -> None:
    """80 rollouts in which the tail accepts a quarter less, and 3, which are too few to tell."""
    rows = read_batch_acceptance(RUNS / run)
    assert rows is not None
    tail = tail_acceptance(rows)
    if found is None:
        assert tail is None
    else:
        assert tail is not None
        assert tail.ratio.value == pytest.approx(found, abs=0.01)
        assert tail.ratio.interval is not None
        assert tail.ratio.interval[1] < 0.85  # the doctor speaks below 0.9
