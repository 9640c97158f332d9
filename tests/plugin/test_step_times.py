"""Step times measured on the fly: which K runs when, and the table that is fitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tlt.plugin.step_times import SETTLE, TURN, Measuring, fit, read_step_times, share
from tlt.traces.runs.runfolder import write_json
from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError
from tltsched.event_log import SchedulerSetup
from tltsched.policies import parse_policy
from tltsched.policies.base import Batch
from tltsched.step_times import DraftConfigTimes, StepTimeTable

DRAFTS = (OFF, chain(1), chain(4))


def law(batch: int, k: int) -> float:
    return 0.006 + (0.0005 if k else 0.0) + 0.0003 * k + 0.00001 * batch * (k + 1)


def measured(kinked: float = 1.0) -> Measuring:
    """Let the batch fall from 64 to 8 while K takes its turns; K = 4 takes `kinked` as long as the law."""
    measuring = Measuring(DRAFTS, steps_each=24, max_running=64)
    batch = 64
    while not measuring.enough():
        k = measuring.k
        measuring.came(batch, k, law(batch, k) * (kinked if k == 4 else 1.0), prompts=False)
        batch = max(batch - 1, 8) if measuring.engine_steps % 3 == 0 else batch
    return measuring


def test_each_k_has_its_turn_and_the_engine_steps_after_a_change_are_left_out() -> None:
    measuring = Measuring(DRAFTS, steps_each=24, max_running=64)
    ks = []
    for _ in range(3 * (SETTLE + TURN)):
        ks.append(measuring.k)
        measuring.came(8, measuring.k, 0.01, prompts=False)
    assert ks == [0] * (SETTLE + TURN) + [1] * (SETTLE + TURN) + [4] * (SETTLE + TURN)
    assert measuring.engine_steps == 3 * TURN


def test_engine_steps_with_prompts_or_another_k_are_not_measured() -> None:
    measuring = Measuring(DRAFTS, steps_each=3, max_running=8)
    for _ in range(50):
        measuring.came(8, 0, 0.01, prompts=True)
        measuring.came(8, 4, 0.01, prompts=False)
    assert measuring.engine_steps == 0


@pytest.mark.parametrize("batch", [8, 30, 64])
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_table_is_that_of_the_engine(batch: int, draft: object) -> None:
    table = measured().table()
    k = next(each.depth for each in DRAFTS if each == draft)
    assert table.engine_step_s(chain(k), Batch(batch, 0)) == pytest.approx(law(batch, k), rel=0.02)


def test_a_k_that_is_no_line_keeps_its_own_level() -> None:
    table = measured(kinked=1.5).table()
    assert table.engine_step_s(chain(4), Batch(16, 0)) == pytest.approx(1.5 * law(16, 4), rel=0.1)
    assert table.engine_step_s(OFF, Batch(16, 0)) == pytest.approx(law(16, 0), rel=0.1)


def test_one_batch_is_enough_when_the_rollout_is_over() -> None:
    measuring = Measuring(DRAFTS, steps_each=TURN, max_running=8)
    for _ in range(3 * (SETTLE + TURN)):
        measuring.came(8, measuring.k, law(8, measuring.k), prompts=False)
    assert not measuring.enough()
    assert measuring.enough(over=True)
    assert measuring.table().engine_step_s(chain(4), Batch(8, 0)) == pytest.approx(law(8, 4), rel=0.05)


def test_no_coefficient_is_negative() -> None:
    found = fit(
        [(1.0, 0.0, 0.0, 8.0), (1.0, 1.0, 1.0, 16.0), (1.0, 1.0, 4.0, 40.0)], [3.0, 2.0, 1.0], [1.0] * 3
    )
    assert min(found) >= 0.0


def test_all_engines_of_a_job_take_the_first_table(tmp_path: Path) -> None:
    first, second = (StepTimeTable((DraftConfigTimes(OFF, (seconds,)),)) for seconds in (0.1, 0.2))
    assert share(tmp_path, first) == first
    assert share(tmp_path, second) == first
    assert [path.name for path in tmp_path.iterdir()] == ["step_times.json"]


def test_a_file_is_a_table_or_holds_one(tmp_path: Path) -> None:
    table = StepTimeTable((DraftConfigTimes(OFF, (0.1,)),))
    write_json(tmp_path / "times.json", table)
    write_json(
        tmp_path / "scheduler.json",
        SchedulerSetup(workers=1, policy=parse_policy("goodput:off"), step_times=table),
    )
    for name in ("times.json", "scheduler.json"):
        assert read_step_times(tmp_path / name, (OFF,)) == table
    with pytest.raises(InputError, match="without 4"):
        read_step_times(tmp_path / "times.json", (OFF, chain(4)))
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match="step-times"):
        read_step_times(tmp_path / "other.json", (OFF,))
