"""A roofline is judged by the side of 1 on which it puts a gain, and by its best K."""

from __future__ import annotations

import msgspec
import pytest

from evidence.other_shapes_claims import RATES, figures_of, judged
from evidence.roofline_claims import assumed_for
from tlt.sim.steptimes.calibration import load, predict_s
from tltsched.errors import InputError

MEASURED = load("vllm-0.32-h200-qwen2.5-7b")
LAW = assumed_for(MEASURED)


def test_points_that_are_the_rooflines_own_are_all_right() -> None:
    own = tuple(
        msgspec.structs.replace(point, engine_step_s=predict_s(LAW, point)) for point in MEASURED.points
    )
    same = msgspec.structs.replace(MEASURED, points=own)
    cells = judged(same, LAW)
    assert len(cells) == 15 * len(RATES), "15 batches and contexts, each at three acceptances"
    assert not any(cell.wrong_signs() or cell.off_by() for cell in cells)
    figures = figures_of("x", same, LAW, cells)
    assert figures["x: gains"] == 15 * len(RATES) * 5
    assert figures["x, chains: mean error"] == 0.0


def test_a_roofline_on_which_drafting_is_free_is_told_wrong_where_it_loses() -> None:
    free = LAW.scaled(1.0, 1.0, 0.0)
    flat = msgspec.structs.replace(free, slopes_s_per_token=tuple(0.0 for _ in free.slopes_s_per_token))
    cells = judged(MEASURED, flat)
    weak = [cell for cell in cells if cell.acceptance == "weak" and cell.batch == 128]
    assert all(len(cell.wrong_signs()) >= 3 for cell in weak), "K = 8 at batch 128 takes five plain steps"
    assert all(cell.off_by() > 1 for cell in weak)


def test_a_batch_without_a_plain_point_is_refused() -> None:
    drafts = tuple(point for point in MEASURED.points if point.when_off == "k0")
    with pytest.raises(InputError, match="a plain point of every batch"):
        judged(msgspec.structs.replace(MEASURED, points=drafts), LAW)
