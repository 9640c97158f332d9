"""The committed regimes of one H200: what the law of step times says of them, and which rollouts count."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from evidence.recording import RUNS
from evidence.regimes import Machine, names_of
from evidence.regimes_claims import began_empty, rows_of
from tlt.sim.steptimes.calibration import Calibration, load, mixed_errors
from tlt.sim.steptimes.fit_live import fit_points
from tlt.traces.results.calibration_points import MeasuredPoints
from tlt.traces.runs.runfolder import read_struct

FOLDER = RUNS / "h200-qwen2.5-7b-regimes"


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return load(str(FOLDER / "calibration.json"))


def test_the_calibration_is_what_its_points_say(calibration: Calibration) -> None:
    assert fit_points(read_struct(FOLDER / "calibration.points.json", MeasuredPoints)) == calibration


def test_prefill_beside_decode_on_stock_graphs(calibration: Calibration) -> None:
    """Two hosts, by whether a graph holds the engine step; the constant of an idle engine is none of it."""
    law, points = calibration.coefficients, calibration.mixed_points
    assert (law.plain_graph_tokens, law.graph_tokens) == (128, 512)
    assert law.mixed_host_s == pytest.approx(0.0095, abs=0.001)
    assert law.mixed_eager_host_s == pytest.approx(0.0216, abs=0.002)
    fitted = [point for point in points if not point.held_out]
    unseen = [point for point in points if point.held_out]
    assert abs(mixed_errors(law, fitted)).mean() < 0.04
    assert abs(mixed_errors(law, unseen)).mean() < 0.11
    # A drafter of one layer reads prompts at about one layer's share of the target's time for them.
    layer = law.prefill_s_per_token * law.drafter_kv_share
    assert 0.3 * layer < law.draft_prefill_s_per_token < 2.0 * layer
    one_host = msgspec.structs.replace(law, mixed_eager_host_s=None)
    of_idle = msgspec.structs.replace(law, mixed_host_s=None)
    for worse in (one_host, of_idle):
        assert abs(mixed_errors(worse, fitted)).mean() > 1.5 * abs(mixed_errors(law, fitted)).mean()
        assert abs(mixed_errors(worse, points)).mean() > abs(mixed_errors(law, points)).mean()


def test_rollouts_that_found_prompts_of_another_policy_are_left_out(calibration: Calibration) -> None:
    del calibration
    replay = FOLDER / "replay"
    assert began_empty(replay, "none") == [True] * 7
    assert began_empty(replay, "static-2") == [True, True, False, True, True, False, True]
    assert began_empty(replay, "static-4") == [False, True, True, False, False, True, False]
    for run in ("none", "static-2", "static-4"):
        assert began_empty(FOLDER / "uncached" / "replay", run) == [True] * 3


def test_queues_without_prefix_caching_are_met() -> None:
    """The repeated queue of short prompts, as docs/regimes.md has it: within 2 %, the others within 8 %."""
    folder = FOLDER / "uncached"
    names = names_of(read_struct(folder / "machine.json", Machine))
    rows = rows_of(folder / "replay", names, FOLDER / "calibration.json")
    again = [row.error for row in rows if row.regime.endswith("again")]
    assert len(again) == 3
    assert np.abs(again).max() < 0.02
    assert max(abs(row.error) for row in rows) < 0.08
    assert max(abs(row.speedup_error or 0.0) for row in rows) < 0.05
