"""Fitting the points of a live engine: what is found, what is given, and what is said about the fit."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest

from sim.calibration import Calibration, predict_s
from sim.coefficients import Coefficients, padded
from sim.measured import fit_points, gpu_of, knots, off_tax
from tltsched.arms import OFF, chain
from tltsched.errors import InputError
from traces.models import MODELS
from traces.points import MeasuredPoints, Point, PrefillPoint, SwitchPoint

BATCHES = (1, 2, 4, 8, 16, 32, 64)
TRUE = Coefficients(
    knots_tokens=(1.0, 8.0, 64.0),
    floor_s=0.006,
    slopes_s_per_token=(0.0, 2e-5, 6e-5),
    kv_s_per_token=3e-8,
    drafter_kv_share=1 / MODELS["Qwen2.5-7B"].layers,
    off_s=0.0006,
    off_s_per_request=5e-6,
    draft_s=0.0003,
    draft_pass_s=0.0004,
    draft_pass_s_per_request=4e-6,
    graph_tokens=None,
    eager_s=0.0,
    prefill_chunk_s=0.003,
    prefill_s_per_token=3e-5,
    prefill_s_per_pair=2e-9,
    draft_s_per_token=3e-6,
    kv_s_per_verified_token=4e-9,
)


def measured(
    law: Coefficients = TRUE, device: str = "CPU Some, 1 thread", noise: float = 0.0
) -> MeasuredPoints:
    rng = np.random.default_rng(1)
    cases = [("plain", OFF), ("in_step", OFF), *(("in_step", chain(k)) for k in (1, 2, 4))]
    points = []
    for row, batch in enumerate(BATCHES):
        for column, context in enumerate((100.0, 1000.0, 4000.0)):
            for index, (off_state, arm) in enumerate(cases):
                blank = Point(
                    provenance="measured", off_state=off_state, arm=arm, batch=batch, context_tokens=context,
                    cycle_s=1.0, repeats=5, spread_s=1e-4,
                    held_out=0 < row < 6 and (row + 2 * column + index) % 3 == 1,
                )  # fmt: skip
                cycle_s = predict_s(law, blank) * (1 + noise * float(rng.standard_normal()))
                points.append(msgspec.structs.replace(blank, cycle_s=cycle_s))
    return MeasuredPoints(
        name="fake", engine="vLLM", engine_version="0.32.0", device=device, date="2026-11-28",
        model="Qwen2.5-7B", tp=1, licence="Apache-2.0", notes=("a note",), graph_tokens=law.graph_tokens,
        graph_batches=law.graph_batches, chunk_tokens=2048.0, points=tuple(points),
        prefill_points=tuple(
            PrefillPoint(batch=b, prompt_tokens=n, prefill_s=law.prefill_s(b * n, b * n * n, 2048.0))
            for b in (1, 4) for n in (64, 700, 3000)
        ),
        switch_points=(
            SwitchPoint(from_k=0, to_k=4, batch=1, extra_s=-0.001, repeats=5, spread_s=1e-4),
            SwitchPoint(from_k=4, to_k=0, batch=1, extra_s=0.004, repeats=5, spread_s=1e-4),
        ),
    )  # fmt: skip


def note(calibration: Calibration, start: str) -> str:
    (found,) = (text for text in calibration.notes if text.startswith(start))
    return found


def test_a_law_without_noise_is_found_again_on_unseen_points() -> None:
    calibration = fit_points(measured())
    assert calibration.residuals.validation == "held out"
    assert calibration.residuals.held_out_max < 1e-6
    assert calibration.coefficients.kv_s_per_token == pytest.approx(TRUE.kv_s_per_token, rel=1e-4)
    assert calibration.coefficients.kv_s_per_verified_token == pytest.approx(4e-9, rel=1e-4)
    assert calibration.coefficients.prefill_s_per_pair == pytest.approx(2e-9, rel=1e-4)
    assert calibration.chunk_tokens == 2048
    assert calibration.notes[0] == "a note"
    assert "-1.00 ms, K = 0 to 4 and +4.00 ms back" in note(calibration, "a switch takes")


def test_noise_of_a_percent_costs_about_a_percent() -> None:
    calibration = fit_points(measured(noise=0.01))
    assert calibration.residuals.held_out_mean < 0.02
    assert not any("poorly" in text for text in calibration.notes)


def test_what_no_point_shows_is_continued_on_a_cpu_and_a_roofline_on_a_gpu() -> None:
    cpu = fit_points(measured())
    assert cpu.coefficients.slopes_s_per_token[-1] == cpu.coefficients.slopes_s_per_token[-2]
    assert "last fitted slope" in cpu.not_fitted["last slope"]
    gpu = fit_points(measured(device="one NVIDIA H100 80GB HBM3"))
    assert "roofline" in gpu.not_fitted["last slope"]
    assert "roofline" in gpu.not_fitted["prefill_s_per_pair"]
    assert gpu.coefficients.slopes_s_per_token[-1] > 0


def test_a_law_that_does_not_fit_is_said_to_fit_poorly() -> None:
    points = measured()
    falling = tuple(
        msgspec.structs.replace(p, cycle_s=0.02 / p.batch**0.5 if p.arm == OFF else p.cycle_s)
        for p in points.points
    )
    calibration = fit_points(msgspec.structs.replace(points, points=falling))
    assert calibration.residuals.held_out_mean > 0.05
    assert "mean error on unseen points" in note(calibration, "the law fits poorly")
    assert "plain" in note(calibration, "error by arm")


def test_the_tax_of_being_off_compares_the_same_batch_at_the_same_context() -> None:
    tax = off_tax(measured().points)
    assert list(tax) == list(BATCHES)
    assert tax[1] == pytest.approx(0.1, abs=0.01)


def test_batches_between_graphs_cost_what_the_next_graph_costs() -> None:
    law = msgspec.structs.replace(TRUE, graph_batches=(1, 2, 4, 8, 16, 32, 64))
    assert padded([0, 3, 8, 33, 70], law.graph_batches).tolist() == [0, 4, 8, 64, 70]
    assert law.fixed_s(chain(2), "in_step", 33) == law.fixed_s(chain(2), "in_step", 64)
    assert fit_points(measured(law)).coefficients.graph_batches == law.graph_batches


@pytest.mark.parametrize(
    ("device", "name"),
    [("one NVIDIA H100 80GB HBM3", "H100"), ("one NVIDIA H200", "H200"), ("CPU AMD EPYC, 1 thread", None)],
)
def test_the_gpu_is_read_from_the_device(device: str, name: str | None) -> None:
    found = gpu_of(device)
    assert (found.name if found else None) == name


def test_every_piece_holds_two_fitted_values() -> None:
    points = measured().points
    chosen = knots(points, ())
    tokens = {p.batch * p.arm.verify_tokens for p in points if not p.held_out}
    assert chosen[0] == min(tokens)
    assert chosen[-1] == max(tokens)
    for low, high in pairwise(chosen):
        assert sum(low < value <= high for value in tokens) >= 2


@pytest.mark.parametrize("missing", ["points", "prefill_points"])
def test_too_little_is_an_input_error(missing: str) -> None:
    with pytest.raises(InputError, match="calibration points"):
        fit_points(msgspec.structs.replace(measured(), **{missing: ()}))


def test_without_held_out_points_each_is_left_out_in_turn() -> None:
    points = measured(noise=0.01)
    kept = tuple(msgspec.structs.replace(p, held_out=False) for p in points.points if p.batch < 16)
    assert fit_points(msgspec.structs.replace(points, points=kept)).residuals.validation == "leave one out"
