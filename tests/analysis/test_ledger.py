from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.fake_run import write_run
from tlt.analysis.ledger import (
    TOLERANCE,
    AccountingError,
    book,
    check_accounting,
    rollout_share_of_step,
    useful_tokens_per_s,
)
from tlt.analysis.load import load_run
from tlt.traces.runs.runfolder import CAUSES, INTERVAL_COLUMNS, Summary
from tltsched.errors import InputError

SUMMARY = Summary(
    kind="simulated",
    name="n",
    policy="p",
    model="m",
    gpu="H100",
    workers=1,
    gpus_per_worker=2,
    steps=1,
    wall_s=10.0,
    response_tokens=50,
    cost_source="assumed",
    lengths_source="generated",
    acceptance_source="assumed",
    seed=0,
    tool_version="0",
)


def _intervals(rows: list[tuple[int, str, float, float]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["worker", "cause", "start_s", "end_s"]).assign(step=0)
    return frame[list(INTERVAL_COLUMNS)].astype(INTERVAL_COLUMNS)


@st.composite
def tilings(draw: st.DrawFn) -> tuple[Summary, pd.DataFrame]:
    workers = draw(st.integers(1, 6))
    wall_s = draw(st.floats(1e-3, 1e6))
    rows = []
    for worker in range(workers):
        cuts = draw(st.lists(st.floats(0, 1), max_size=20))
        edges = [0.0, *sorted(cut * wall_s for cut in cuts), wall_s]
        for start_s, end_s in pairwise(edges):
            rows.append((worker, draw(st.sampled_from(sorted(CAUSES))), start_s, end_s))
    order = draw(st.permutations(rows))
    summary = msgspec.structs.replace(
        SUMMARY, workers=workers, gpus_per_worker=draw(st.integers(1, 8)), wall_s=wall_s
    )
    return summary, _intervals(list(order))


@given(tilings())
def test_gpu_time_of_any_tiling_adds_up(tiling: tuple[Summary, pd.DataFrame]) -> None:
    summary, intervals = tiling
    assert check_accounting(summary, intervals) <= TOLERANCE
    ledger = book(summary, intervals)
    assert sum(ledger.gpu_seconds.values()) == pytest.approx(summary.gpus * summary.wall_s, rel=1e-9)
    assert list(ledger.gpu_seconds) == list(CAUSES)


@given(tilings(), st.data())
def test_a_missing_or_stretched_interval_is_found(
    tiling: tuple[Summary, pd.DataFrame], data: st.DataObject
) -> None:
    summary, intervals = tiling
    at = data.draw(st.integers(0, len(intervals) - 1))
    length_s = float(intervals["end_s"].iloc[at] - intervals["start_s"].iloc[at])
    if length_s > 1e-6 * summary.wall_s:
        with pytest.raises(AccountingError, match=f"worker {intervals['worker'].iloc[at]}"):
            check_accounting(summary, intervals.drop(index=at))
    stretched = intervals.copy()
    stretched.loc[at, "end_s"] += 1e-3 * summary.wall_s
    with pytest.raises(AccountingError):
        check_accounting(summary, stretched)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(0, "decode", 0, 4), (0, "tail_idle", 5, 10)], "a gap of 1 s at 4 s"),
        ([(0, "decode", 0, 6), (0, "tail_idle", 5, 10)], "an overlap of 1 s at 6 s"),
        ([(0, "decode", 0, 9)], "a gap of 1 s at 9 s"),
        ([(0, "decode", 2, 10)], "a gap of 2 s at 0 s"),
        ([(0, "decode", 0, 11)], "an overlap of 1 s at 11 s"),
        ([], "a gap of 10 s at 0 s"),
        ([(0, "decode", 0, 6), (0, "reward", 6, 5), (0, "decode", 5, 10)], "an interval from 6 s to 5 s"),
        ([(0, "decode", 0, float("nan"))], "to nan s"),
        ([(0, "decode", 0, 10), (3, "decode", 0, 10)], "a worker outside 0..0"),
    ],
)
def test_time_that_does_not_add_up_names_worker_and_time(
    rows: list[tuple[int, str, float, float]], words: str
) -> None:
    with pytest.raises(AccountingError, match="worker") as caught:
        check_accounting(SUMMARY, _intervals(rows))
    assert words in str(caught.value)


def test_shares_are_of_gpu_time() -> None:
    rows = [(0, "decode", 0, 4), (0, "tail_idle", 4, 6), (0, "drafter_training", 6, 9), (0, "reward", 9, 10)]
    ledger = book(SUMMARY, _intervals(rows))
    assert ledger.gpu_seconds["decode"] == 8
    assert ledger.total_gpu_s() == 20
    assert ledger.idle_share() == pytest.approx(0.2)
    assert ledger.drafter_share_of_idle() == pytest.approx(0.6)
    assert ledger.category_gpu_s("phase") == 2
    assert useful_tokens_per_s(SUMMARY) == 5


def test_a_run_without_time_has_zeros() -> None:
    summary = msgspec.structs.replace(SUMMARY, wall_s=0.0)
    assert check_accounting(summary, _intervals([])) == 0
    ledger = book(summary, _intervals([]))
    assert (ledger.idle_share(), ledger.drafter_share_of_idle(), useful_tokens_per_s(summary)) == (0, 0, 0)


def test_rollout_share_is_of_the_steps(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path).path)
    share = rollout_share_of_step(run.steps)
    assert 0 < share < 1
    phases_s = 18.0 * len(run.steps)
    assert share == pytest.approx(1 - phases_s / run.summary.wall_s)


def test_the_fake_run_uses_every_cause_but_none_twice_at_a_time(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path).path)
    check_accounting(run.summary, run.intervals)
    ledger = book(run.summary, run.intervals)
    unused = [cause for cause, gpu_s in ledger.gpu_seconds.items() if gpu_s == 0]
    # of sessions, of rollouts that never end, and of logs
    assert unused == ["tool_wait", "admission_wait", "batch_wait", "sync_pause", "lend", "other"]


def test_an_unknown_cause_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    intervals = folder.intervals()
    intervals["cause"] = intervals["cause"].astype(str).replace("decode", "napping")
    folder.write(folder.summary(), folder.responses(), intervals, folder.steps())
    with pytest.raises(InputError, match="napping"):
        load_run(tmp_path)


def test_book_keeps_causes_apart_when_categories_are_in_another_order() -> None:
    frame = _intervals([(0, "weight_sync", 0, 1), (0, "prefill", 1, 10)])
    frame["cause"] = frame["cause"].cat.set_categories(["weight_sync", "reward", "prefill"])
    ledger = book(SUMMARY, frame)
    assert np.allclose([ledger.gpu_seconds["weight_sync"], ledger.gpu_seconds["prefill"]], [2, 18])
