"""GPU time of small runs, added up by hand, and the ends of what is tolerated."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pandas as pd
import pytest

from tests.analysis.test_ledger import SUMMARY, _intervals
from tlt.analysis.ledger import (
    TOLERANCE,
    AccountingError,
    Ledger,
    book,
    check_accounting,
    rollout_share_of_step,
    useful_tokens_per_s,
)
from tlt.traces.runs.runfolder import CAUSES

THREE = msgspec.structs.replace(SUMMARY, workers=3, gpus_per_worker=4, wall_s=8.0)
WHOLE = [(0, "decode", 0, 8), (1, "decode", 0, 3), (1, "tail_idle", 3, 8), (2, "reward", 0, 8)]


def test_a_worker_books_all_of_its_gpus() -> None:
    ledger = book(THREE, _intervals(WHOLE))
    assert (ledger.gpus, ledger.wall_s, ledger.total_gpu_s()) == (12, 8.0, 96.0)
    assert {cause: gpu_s for cause, gpu_s in ledger.gpu_seconds.items() if gpu_s} == {
        "decode": 44.0, "tail_idle": 20.0, "reward": 32.0,
    }  # fmt: skip
    assert {kind: ledger.category_gpu_s(kind) for kind in ("rollout", "idle", "drafter", "phase")} == {
        "rollout": 44.0, "idle": 20.0, "drafter": 0.0, "phase": 32.0,
    }  # fmt: skip
    assert ledger.share(24.0) == 0.25
    assert ledger.idle_share() == pytest.approx(20 / 96)
    assert ledger.drafter_share_of_idle() == 0.0
    assert check_accounting(THREE, _intervals(WHOLE)) == 0.0


def test_causes_that_did_not_occur_are_there_with_zeros() -> None:
    assert book(THREE, _intervals([])).gpu_seconds == dict.fromkeys(CAUSES, 0.0)


def test_a_ledger_of_nothing_has_no_shares() -> None:
    nothing = Ledger(dict.fromkeys(CAUSES, 0.0), 4, 0.0)
    assert (nothing.share(1.0), nothing.drafter_share_of_idle()) == (0.0, 0.0)
    trained = Ledger(dict.fromkeys(CAUSES, 0.0) | {"drafter_training": 1e-9}, 4, 1.0)
    assert trained.drafter_share_of_idle() == 1.0
    short = Ledger(dict.fromkeys(CAUSES, 0.0) | {"tail_idle": 0.5}, 1, 0.5)
    assert short.idle_share() == 1.0
    with pytest.raises(AttributeError):
        short.gpus = 3  # type: ignore[misc]


@pytest.mark.parametrize("worker", [0, 1, 2])
@pytest.mark.parametrize(
    ("start_s", "end_s", "words"),
    [(0.5, 8, "a gap of 0.5 s at 0 s"), (0, 7.75, "a gap of 0.25 s at 7.75 s"),
     (0, 8.125, "an overlap of 0.125 s at 8.12")],
)  # fmt: skip
def test_every_worker_is_looked_at(worker: int, start_s: float, end_s: float, words: str) -> None:
    rows = [(each, "decode", 0.0, 8.0) for each in range(3) if each != worker]
    with pytest.raises(AccountingError, match=f"worker {worker}") as caught:
        check_accounting(THREE, _intervals([*rows, (worker, "decode", start_s, end_s)]))
    assert words in str(caught.value)


@pytest.mark.parametrize("strange", [-1, 3])
def test_workers_that_a_run_has_not(strange: int) -> None:
    with pytest.raises(AccountingError, match=r"outside 0\.\.2"):
        check_accounting(THREE, _intervals([*WHOLE, (strange, "decode", 0, 8)]))


def test_what_rounding_leaves_is_tolerated_and_more_is_not() -> None:
    """Relative to the wall time: 8e-9 s of 8."""
    assert TOLERANCE == 1e-9
    for off_s, fits in ((4e-9, True), (-4e-9, True), (1.2e-8, False), (-1.2e-8, False)):
        rows = [(0, "decode", 0.0, 3.0), (0, "reward", 3.0 + off_s, 8.0), *WHOLE[1:]]
        if fits:
            assert check_accounting(THREE, _intervals(rows)) <= TOLERANCE
        else:
            with pytest.raises(AccountingError, match="worker 0"):
                check_accounting(THREE, _intervals(rows))


def test_small_gaps_of_many_intervals_are_found_in_the_sum() -> None:
    """Each is below what is tolerated of one; together they are not."""
    one = msgspec.structs.replace(THREE, workers=1)
    edges = [each * 0.08 for each in range(101)]
    rows = [(0, "decode", low, high - 7e-9) for low, high in pairwise(edges)]
    with pytest.raises(AccountingError, match="booked GPU-seconds"):
        check_accounting(one, _intervals(rows))


def test_an_interval_of_no_time_is_no_fault_and_one_backwards_is() -> None:
    rows = [(0, "decode", 0, 4), (0, "switch", 4, 4), (0, "decode", 4, 8), *WHOLE[1:]]
    assert check_accounting(THREE, _intervals(rows)) == 0.0
    with pytest.raises(AccountingError, match="from 5 s to 3 s' for intervals of worker 2"):
        check_accounting(THREE, _intervals([*WHOLE[:3], (2, "reward", 0, 8), (2, "reward", 5, 3)]))


def test_a_run_without_time_may_book_none() -> None:
    nothing = msgspec.structs.replace(THREE, wall_s=0.0)
    assert check_accounting(nothing, _intervals([])) == 0.0
    with pytest.raises(AccountingError, match="booked GPU-seconds"):
        check_accounting(nothing, _intervals([(0, "decode", 0, 1)]))


def test_rates_and_shares_of_steps() -> None:
    assert useful_tokens_per_s(msgspec.structs.replace(SUMMARY, wall_s=0.5, response_tokens=50)) == 100
    assert useful_tokens_per_s(msgspec.structs.replace(SUMMARY, wall_s=0.0)) == 0
    steps = pd.DataFrame({"start_s": [0.0, 10.0], "rollout_end_s": [6.0, 13.0], "end_s": [10.0, 20.0]})
    assert rollout_share_of_step(steps) == pytest.approx(9 / 20)
    short = pd.DataFrame({"start_s": [0.0], "rollout_end_s": [0.25], "end_s": [0.5]})
    assert rollout_share_of_step(short) == 0.5
    assert rollout_share_of_step(steps * 0) == 0.0
