"""Shots at a live run with the engine of the tests: `evidence.kills` sees who is lost, and what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")  # the driver that is shot at can train, too

from evidence.fire.moments import MOMENTS
from evidence.kills import Range


def test_a_replay_whose_worker_is_killed_is_seen_to_lose_nothing(tmp_path: Path) -> None:
    moment = MOMENTS[0]
    assert (moment.task, moment.whom, moment.signal) == ("replay", "worker", "SIGKILL")
    shot = Range(tmp_path / "references", "tests").fire(moment, tmp_path / "shot")
    assert shot.moment == moment.title()
    assert (shot.lost_or_changed, shot.half_written, shot.left) == (0, 0, ())
