"""No quantity is beyond what its unit can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tlt.sim.config import Config, resolve
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.calibration import Calibration, load
from tlt.sim.workload import load_workload
from tlt.traces.common import bounds
from tlt.traces.common.bounds import require_bounds, require_size
from tlt.traces.common.settings import convert, settings_of
from tltsched.errors import InputError


@pytest.mark.parametrize(
    ("assignment", "allowed"),
    [
        ("phases.reward_s=1e300", "116 days"),  # once an answer
        ("phases.by_step_s={reward=[1e8]}", "116 days"),
        ("hardware.gpus=4000000", "131,072 GPUs"),  # once a minute and 3 GB
        ("engine.graph_max_requests=1000000000", "65,536 requests"),
        ("drafter.training_tokens_per_s=9.2e18", "a second"),  # once trained tokens below 0
        ("phases.sync_bytes_per_s=1e-300", "bytes a second"),
        ("phases.training_efficiency=1e-300", "0.001 to 1"),
        ("cost.scale=1e-300", "1e-4 to 1e4"),
        ("workload.samples_per_prompt=1000000000", "in all"),  # once 22 GiB asked of numpy
        ("workload.steps=1000000000", "1,000,000"),
        ("workload.steps=999999", "20,000,000 responses in all"),
        ("workload.length_drift_per_step=1e9", "-10 to 10"),
        ("acceptance.request_spread=1e9", "at most 10"),
        ("engine.max_running=1000000000", "65,536 requests"),
        ("run.seed=9223372036854775808", r"below 2\^63"),
    ],
)
def test_settings_beyond_physics_are_refused_by_name(assignment: str, allowed: str) -> None:
    with pytest.raises(InputError, match=allowed) as caught:
        resolve(settings_of(None, (assignment,)))
    field = assignment.partition("=")[0].rpartition(".")[2]
    assert field in str(caught.value) or "in all" in str(caught.value)


def test_what_is_set_by_default_is_within_bounds() -> None:
    require_bounds(Config())


def test_numbers_in_files_are_bounded_as_well(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    for text in ("[run]\nseed = " + "1" * 5000, "x = " + "[" * 5000, "[phases]\nreward_s = nan"):
        path.write_text(text)
        with pytest.raises(InputError):
            convert(settings_of(path, ()), Config, "tlt sim fields")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MOST_FILE_BYTES", 100)
    path = tmp_path / "x.json"
    path.write_bytes(bytes(101))
    with pytest.raises(InputError, match="of 101 bytes"):
        require_size(path, "x")
    with pytest.raises(InputError, match="of 101 bytes"):
        load(str(path))
    require_size(tmp_path / "none", "x")


def spoil(**coefficients: Any) -> dict[str, Any]:
    table: dict[str, Any] = msgspec.to_builtins(load("paper-qwen32b-tp4"))
    table["coefficients"] |= coefficients
    return table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (spoil(knots_tokens=[1.0, 2.0]), "as many slopes as knots"),
        (spoil(knots_tokens=[], slopes_s_per_token=[]), "as many slopes as knots"),
        (spoil(knots_tokens=[5.0], slopes_s_per_token=[1e30]), "0 to 10000"),
        (spoil(knots_tokens=[5.0, 5.0], slopes_s_per_token=[0.0, 0.0]), "rising"),
        (spoil(floor_s=-1.0), "floor_s"),
        (spoil(kv_s_per_token=1e30), "kv_s_per_token"),
        (spoil(graph_batches=[4, 2]), "rising"),
        (spoil(drafter_kv_share=1e9), "drafter_kv_share"),
        (spoil() | {"tp": 0}, "1 or more"),
        (spoil() | {"chunk_tokens": 0.0}, "1 or more"),
        (spoil() | {"ranges": spoil()["ranges"] | {"batch": [9, 1]}}, "ranges.batch"),
        (spoil() | {"residuals": spoil()["residuals"] | {"fitted_mean": -1.0}}, "residuals"),
    ],
)
def test_step_times_that_cannot_be_are_refused(table: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(msgspec.json.encode(table))
    with pytest.raises(InputError, match=message):
        load(str(path))


def test_shipped_step_times_pass() -> None:
    table = spoil()
    assert msgspec.convert(table, Calibration).coefficients.floor_s > 0


def test_a_run_of_centuries_is_refused_as_such() -> None:
    """Each setting may be within its bounds, and all of them together beyond any run."""
    settings = settings_of(None, (
        "hardware.gpus=4", "workload.steps=1200", "workload.prompts_per_step=1",
        "workload.samples_per_prompt=1", "workload.max_response_tokens=4",
        "phases.reward_s=1e7", "policy='none'",
    ))  # fmt: skip
    config = resolve(settings)
    with pytest.raises(InputError, match="three centuries"):
        Simulation(config, load_workload(config.workload, 0)).run()
