"""Fitting the points of a live engine: what is found, what is given, and what is said about the fit."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from tests.sim.measured_world import BATCHES, TRUE, measured
from tlt.sim.steptimes.calibration import Calibration
from tlt.sim.steptimes.fit_live import fit_points, gpu_of, knots, off_tax
from tlt.sim.steptimes.law import padded
from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError


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
        msgspec.structs.replace(
            p, engine_step_s=0.02 / p.batch**0.5 if p.draft_config == OFF else p.engine_step_s
        )
        for p in points.points
    )
    calibration = fit_points(msgspec.structs.replace(points, points=falling))
    assert calibration.residuals.held_out_mean > 0.05
    assert "mean error on unseen points" in note(calibration, "the law fits poorly")
    assert "plain" in note(calibration, "error by draft configuration")


def test_the_tax_of_being_off_compares_the_same_batch_at_the_same_context() -> None:
    tax = off_tax(measured().points)
    assert list(tax) == list(BATCHES)
    assert tax[1] == pytest.approx(0.1, abs=0.01)


def test_batches_between_graphs_cost_what_the_next_graph_costs() -> None:
    law = msgspec.structs.replace(TRUE, graph_batches=(1, 2, 4, 8, 16, 32, 64))
    assert padded([0, 3, 8, 33, 70], law.graph_batches).tolist() == [0, 4, 8, 64, 70]
    assert law.fixed_s(chain(2), "k0", 33) == law.fixed_s(chain(2), "k0", 64)
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
    tokens = {p.batch * p.draft_config.verify_tokens for p in points if not p.held_out}
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
