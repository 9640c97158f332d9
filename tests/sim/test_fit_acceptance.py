"""Fits of acceptance by request: what a simulation was told is found again, and what cannot be is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from tests.sim.small_world import PLAIN, config_of, trace_of
from tlt.commands import main
from tlt.sim.acceptance.fitted import FittedAcceptance, fit_runs, load_law, shipped_laws, steps_between
from tlt.sim.acceptance.prior import PRIOR, SLOPE_ERROR, SPREAD_ERROR
from tlt.sim.config import resolve
from tlt.sim.simulation import Simulation
from tlt.sim.write_run import run_into
from tltsched.errors import InputError

NATURAL = Path("evidence/runs/h200-smollm2-train/natural")
ONE: dict[str, Any] = {
    "hardware.gpus": 1, "hardware.tp": 1, "hardware.model": "Qwen2.5-7B", "cost.source": "roofline",
    "cluster.phases": [], "acceptance.kind": "per_position",
    "acceptance.survival_by_position": (0.7, 0.5, 0.35, 0.25), "engine.max_running": 64,
}  # fmt: skip
UNLIKE = {
    "request_spread": 0.6, "length_correlation": 0.5, "group_correlation": 0.6, "position_spread": 0.3,
    "position_slope": -0.15, "start_excess": 0.3,
}  # fmt: skip


def run_of(folder: Path, policy: str, steps: int, **acceptance: float) -> Path:
    """Simulate responses of 60 to 3,000 tokens, groups of 4, into a run folder."""
    rng = np.random.default_rng(0)
    lengths = [np.clip(rng.lognormal(6.3, 0.8, 128), 60, 3000).astype(int).tolist() for _ in range(steps)]
    chosen = ONE | {f"acceptance.{name}": value for name, value in acceptance.items()}
    run_into(Simulation(config_of(chosen, policy), trace_of(lengths, 30, 4), PLAIN), folder, policy)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "mode"), [("static:4", "jump"), ("goodput:off+2+4", "exact")])
def test_parameters_are_found_again_within_their_errors(policy: str, mode: str, tmp_path: Path) -> None:
    ONE["run.mode"] = mode
    found = fit_runs(run_of(tmp_path / "run", policy, 6, **UNLIKE), "found").parameters
    for name, value in UNLIKE.items():
        each = found[name]
        assert each.error is not None, name
        assert each.error < 0.12, name
        # four standard errors, and what the linear expansion and a normal draw leave out
        assert abs(each.value - value) < 4 * each.error + 0.03, (name, each)


def test_requests_that_are_alike_are_found_to_be(tmp_path: Path) -> None:
    law = fit_runs(run_of(tmp_path / "run", "static:4", 2), "found")
    assert law.parameters["request_spread"].value < 0.06
    assert abs(law.parameters["position_slope"].value) < 0.03
    assert law.survival_by_position == pytest.approx((0.7, 0.5, 0.35, 0.25), abs=0.02)
    assert law.overdispersion < 1.2
    assert law.provenance.startswith("simulated: ")
    assert law.settings()["measured"] == ""


def test_a_law_in_a_file_sets_the_acceptance_and_resolves_to_itself(tmp_path: Path) -> None:
    law = load_law("smollm2-135m-h200")
    settings = {"acceptance": {"law": "smollm2-135m-h200"}, "cost": {"source": "roofline"}}
    config = resolve(settings)
    assert config.acceptance.survival_of == "request"
    assert config.acceptance.population.request_spread == law.parameters["request_spread"].value
    assert "vLLM 0.32.0" in config.acceptance.measured
    assert resolve(msgspec.to_builtins(config)).acceptance == config.acceptance
    with pytest.raises(InputError, match="leave one of the two out"):
        resolve({"acceptance": {"law": "smollm2-135m-h200", "request_spread": 0.1}})
    with pytest.raises(InputError, match="smollm2-135m-h200"):
        resolve({"acceptance": {"law": "smollm2"}})
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(InputError, match="fit it again"):
        load_law(str(tmp_path / "broken.json"))


def test_the_prior_holds_what_was_measured_within_two_of_its_errors() -> None:
    law = load_law("smollm2-135m-h200")
    assert shipped_laws() == ("smollm2-135m-h200",)
    spread = law.parameters["request_spread"].value
    assert 0.0 < np.log(spread / PRIOR.request_spread) < 2 * SPREAD_ERROR
    assert abs(law.parameters["position_slope"].value - PRIOR.position_slope) < 2 * SLOPE_ERROR
    assert not law.by_request
    assert law.steps == tuple(range(20))


def test_the_command_writes_the_law_and_says_what_it_found(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "static:4", 2, request_spread=0.5)
    out = tmp_path / "law.json"
    words = ["sim", "fit-acceptance", str(run), "--steps", "0-0", "--out", str(out)]
    result = CliRunner().invoke(main.cli, words)
    assert result.exit_code == 0, result.output
    law = msgspec.json.decode(out.read_bytes(), type=FittedAcceptance)
    assert law.steps == (0,)
    assert law.requests == 128
    assert "request_spread" in result.output
    assert f"acceptance.law={out}" in result.output
    assert resolve({"acceptance": {"law": str(out)}}).acceptance.survival_of == "request"


@pytest.mark.parametrize(
    ("policy", "acceptance", "why"),
    [
        ("none", {}, "a run whose policy drafted"),
        ("static:4", {"survival_by_position": (1.0, 1.0)}, "0.005 to 0.995"),
        ("static:4", {"survival_by_position": (0.0,)}, "a run whose policy drafted"),
    ],
)
def test_what_tells_nothing_is_refused(
    policy: str, acceptance: dict[str, Any], why: str, tmp_path: Path
) -> None:
    run = run_of(tmp_path / "run", policy, 1, **acceptance)
    with pytest.raises(InputError, match=why):
        fit_runs(run, "none")


def test_a_run_without_drafts_by_request_is_refused_and_other_steps_too(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "static:4", 1)
    with pytest.raises(InputError, match="a run that drafted"):
        fit_runs(run, "none", np.array([7]))
    (run / "acceptance.parquet").unlink()
    with pytest.raises(InputError, match="cannot be known from it"):
        fit_runs(run, "none")


@pytest.mark.parametrize("written", ["", "a", "3-1", "-", "1-2-3"])
def test_steps_that_are_no_range_are_refused(written: str) -> None:
    with pytest.raises(InputError, match="FIRST-LAST"):
        steps_between(written)


def test_steps_are_counted_with_both_ends() -> None:
    assert steps_between("3").tolist() == [3]
    assert steps_between("0-2").tolist() == [0, 1, 2]
