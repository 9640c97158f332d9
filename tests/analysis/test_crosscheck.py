"""The cross-check reports exactly the distortion that a measured run was given, and flags what spoils it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from tests.sim.measured_world import write_calibration, write_measured
from tlt.analysis.crosscheck.figures import Crosscheck, crosscheck, kendall_tau, load_pair, regret
from tlt.analysis.crosscheck.flags import find_flags
from tlt.analysis.crosscheck.pictures import draw_crosscheck
from tlt.analysis.crosscheck.report import render, verdict
from tlt.analysis.drawing.estimates import error_text
from tlt.commands.report import report
from tlt.sim.validate.replay_measured import simulate_replay
from tlt.traces.catalogue.gpus import same_device
from tlt.traces.common.manifest import seal_also
from tlt.traces.results.simulated_replay import SIMULATED_REPLAY, SimulatedReplay
from tlt.traces.runs.runfolder import RunFolder, read_struct, write_json
from tltsched.errors import InputError

DISTORTION = {"none": 1.0, "static:2": 1.1, "static:4": 1.0, "tlt_chains": 0.95}
World = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Return (measured, calibration, simulated)."""
    root = tmp_path_factory.mktemp("crosscheck")
    calibration = write_calibration(root / "calibration.json")
    measured = write_measured(root / "measured", calibration, DISTORTION)
    simulate_replay(measured, calibration, root / "simulated")
    return measured, calibration, root / "simulated"


@pytest.fixture
def copy(world: World, tmp_path: Path) -> World:
    """Return a copy of the world that a test may spoil."""
    for folder in (world[0], world[2]):
        shutil.copytree(folder, tmp_path / folder.name)
    return tmp_path / world[0].name, world[1], tmp_path / world[2].name


def checked(world: World) -> Crosscheck:
    return crosscheck(load_pair(world[0], world[2]))


def test_errors_are_the_distortion(world: World) -> None:
    check = checked(world)
    assert check.rollouts == 6
    for policy in check.policies:
        factor = DISTORTION[policy.policy]
        assert policy.makespan_error.value == pytest.approx(1 / factor - 1)
        assert policy.makespan_error.interval == pytest.approx((1 / factor - 1,) * 2)
        assert policy.speedup_error.value == pytest.approx(factor - 1)
        assert policy.engine_steps is not None
        assert policy.engine_steps.error.value == pytest.approx(1 / factor - 1, abs=1e-6)
        assert policy.engine_steps.typical_error == pytest.approx(abs(1 / factor - 1), abs=1e-6)
        assert policy.engine_steps.error_per_1000_tokens == pytest.approx(0, abs=1e-6)
        assert {part.low for part in policy.engine_steps.by_k} == {
            float(max(0, int(policy.engine_steps.by_k[-1].low)))
        }
    assert check.worst().policy == "static:2"
    assert check.worst_error() == pytest.approx(0.1)
    assert check.policies[0].measured_speedup.value == 1.0


def test_idle_and_busy_time_by_cause_differ_by_the_distortion(world: World) -> None:
    policy = checked(world).policies[1]
    causes = {cause.cause: cause for cause in policy.causes}
    assert {"prefill", "speculate", "tail_idle"} <= set(causes)
    for cause in causes.values():
        assert cause.measured_gpu_s == pytest.approx(1.1 * cause.simulated_gpu_s)
    total = sum(cause.difference.value for cause in causes.values())
    assert total == pytest.approx(1 / 1.1 - 1)
    assert causes["tail_idle"].difference.interval is not None


def test_the_order_and_the_price_of_the_simulators_choice(world: World) -> None:
    check = checked(world)
    real = np.array([[policy.measured_s] for policy in check.policies])
    model = np.array([[policy.simulated_s] for policy in check.policies])
    assert check.order.value == kendall_tau(real, model)[0]
    assert check.regret.value == pytest.approx(real[model.argmin()][0] / real.min() - 1)


@pytest.mark.parametrize(
    ("real", "model", "tau", "lost"),
    [
        ([3.0, 2.0, 1.0], [30.0, 20.0, 10.0], 1.0, 0.0),
        ([3.0, 2.0, 1.0], [1.0, 2.0, 3.0], -1.0, 2.0),
        ([3.0, 1.0, 2.0], [3.0, 2.0, 1.0], 1 / 3, 1.0),
        ([5.0], [4.0], 1.0, 0.0),
    ],
)
def test_tau_and_regret_by_hand(real: list[float], model: list[float], tau: float, lost: float) -> None:
    columns = np.array(real)[:, None], np.array(model)[:, None]
    assert kendall_tau(*columns)[0] == pytest.approx(tau)
    assert regret(*columns)[0] == pytest.approx(lost)


def test_an_undistorted_run_has_no_flag_that_stops(world: World) -> None:
    check = checked(world)
    assert not check.stopped()
    assert verdict(check).startswith("The simulator predicts the makespan of 4 policies within 9.1%")


def _edit(path: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    change(pd.read_parquet(path)).to_parquet(path, index=False)
    seal_also(path.parent, path.name)  # as whoever wrote it so would


def _other_lengths(world: World) -> None:
    _edit(
        world[0] / "static-2" / "responses.parquet",
        lambda rows: rows.assign(response_tokens=rows["response_tokens"] + 1),
    )


def _lost_worker(world: World) -> None:
    with (world[0] / "none" / "records.jsonl").open("ab") as file:
        file.write(
            b'{"t_s":1.0,"seq":9,"owner":"cluster","body":{"kind":"worker_lost","t_s":1.0,"worker":1}}\n'
        )


def _other_engine(world: World) -> None:
    write_json(
        world[0] / "none" / "engine.json", {"engine": "vLLM", "engine_version": "0.31.0", "device": "x"}
    )


def _no_engine(world: World) -> None:
    (world[0] / "none" / "engine.json").unlink()


def _accepted(share: float) -> Callable[[World], None]:
    def spoil(world: World) -> None:
        def change(rows: pd.DataFrame) -> pd.DataFrame:
            return rows.assign(accepted_tokens=(rows["drafted_tokens"] * share).astype(int))

        _edit(world[0] / "static-2" / "engine_steps.parquet", change)
        _edit(
            world[0] / "static-2" / "steps.parquet",
            lambda rows: rows.assign(accepted_tokens=(rows["request_steps"] * 2 * share).astype(int)),
        )

    return spoil


def _basis(world: World, **changes: object) -> None:
    path = world[2] / SIMULATED_REPLAY
    basis = read_struct(path, SimulatedReplay)
    limits = {name: value for name, value in changes.items() if hasattr(basis.calibrated, name)}
    rest = {name: value for name, value in changes.items() if name not in limits}
    calibrated = msgspec.structs.replace(basis.calibrated, **limits)
    write_json(path, msgspec.structs.replace(basis, calibrated=calibrated, **rest))
    seal_also(path.parent, path.name)


def _compiled(rows_marked: int) -> Callable[[World], None]:
    def spoil(world: World) -> None:
        _edit(
            world[2] / "none" / "predicted_engine_steps.parquet",
            lambda rows: rows.assign(
                compiled=np.arange(len(rows)) < rows_marked,
                seconds=rows["seconds"].where(np.arange(len(rows)) > 0, 1e-5),
            ),
        )

    return spoil


def _moved(world: World) -> None:
    basis = read_struct(world[2] / SIMULATED_REPLAY, SimulatedReplay)
    policies = tuple(msgspec.structs.replace(policy, same_placement=False) for policy in basis.policies[:1])
    _basis(world, policies=(*policies, *basis.policies[1:]))


@pytest.mark.parametrize(
    ("spoil", "name", "text", "stops"),
    [
        (_other_lengths, "lengths", "static:2 has other lengths", True),
        (_lost_worker, "workers", "none lost a worker", True),
        (_moved, "placement", "none: requests ran on other workers", True),
        (_other_engine, "engine", "ran on vLLM 0.31.0, the calibration is of vLLM 0.32.0", True),
        (_other_engine, "device", "ran on x", True),
        (_no_engine, "engine", "not known which engine", False),
        (_accepted(1.0), "acceptance", "every draft was accepted", True),
        (_accepted(0.0), "acceptance", "no draft was accepted", False),
        (_accepted(0.05), "acceptance", "below the break-even", False),
        (lambda world: _basis(world, batch=(1, 8)), "range", "batches above 8)", False),
        (lambda world: _basis(world, draft_batch=(1, 4)), "range", "batches above 4 while drafting", False),
        (
            lambda world: _basis(world, context_tokens=(10.0, 90.0)),
            "range",
            "contexts above 90 tokens",
            False,
        ),
        (lambda world: _basis(world, held_tokens=100.0), "range", "more than 100 tokens in the cache", False),
        (lambda world: _basis(world, acceptance_steps=(0, 1)), "rollouts", "only 4 rollouts", False),
        (
            lambda world: _basis(world, acceptance_steps=tuple(range(6))),
            "acceptance",
            "acceptance was measured on the rollouts that are judged",
            False,
        ),
        (lambda world: _basis(world, sampler_left_out=True), "sampler", "compared distributions", False),
        (_compiled(1), "compiled", "inside 1 timed engine steps", False),
        (_compiled(20), "compiled", "inside 20 timed engine steps", True),
    ],
)
def test_flags(copy: World, spoil: Callable[[World], None], name: str, text: str, stops: bool) -> None:
    spoil(copy)
    pair = load_pair(copy[0], copy[2])
    flags = find_flags(pair.measured, pair.simulated, pair.basis, pair.steps)
    found = [flag for flag in flags if flag.name == name and text in flag.text]
    assert len(found) >= 1, flags
    assert all(flag.stops is stops for flag in found)
    assert flags[0].stops >= stops


@pytest.mark.parametrize(
    ("ran", "calibrated", "same"),
    [
        ("one NVIDIA H100 80GB HBM3", "one H100 80 GB", True),
        ("one NVIDIA H200", "one NVIDIA H200", True),
        ("one NVIDIA H200", "one H100 80 GB", False),
        ("two NVIDIA H200", "one NVIDIA H200", False),
        ("one x", "one y", False),
    ],
)
def test_a_device_is_the_same_however_it_is_written(ran: str, calibrated: str, same: bool) -> None:
    assert same_device(ran, calibrated) is same


def test_policies_that_differ_alike_from_the_calibration_share_a_flag(copy: World) -> None:
    _basis(copy, device="two x")
    pair = load_pair(copy[0], copy[2])
    flags = find_flags(pair.measured, pair.simulated, pair.basis, pair.steps)
    found = [flag for flag in flags if flag.name == "device"]
    assert len(found) == 1
    assert found[0].text.startswith(", ".join(run.policy for run in pair.measured) + ": ran on ")


def test_a_flag_that_stops_forbids_a_conclusion(copy: World) -> None:
    _lost_worker(copy)
    assert verdict(checked(copy)).startswith("No conclusion: none lost a worker")


def test_rollouts_that_acceptance_was_measured_on_are_left_out(copy: World) -> None:
    _basis(copy, acceptance_steps=(0,))
    check = checked(copy)
    assert check.rollouts == 5
    steps = RunFolder(copy[0] / "none").steps()
    assert check.policies[0].measured_s == pytest.approx(
        float((steps["rollout_end_s"] - steps["start_s"])[1:].sum())
    )


@pytest.mark.slow
def test_a_single_rollout_has_no_intervals(copy: World) -> None:
    _basis(copy, acceptance_steps=(0, 1, 2, 3, 4))
    check = checked(copy)
    assert check.policies[1].makespan_error.interval is None
    assert error_text(check.policies[1].makespan_error) == "-9.1%"
    draw_crosscheck(load_pair(copy[0], copy[2]), check)


def test_other_policies_are_refused(world: World, tmp_path: Path) -> None:
    simulate_replay(world[0] / "none", world[1], tmp_path / "one")
    with pytest.raises(InputError, match="the policies of a measured run"):
        load_pair(world[0], tmp_path / "one")


@pytest.mark.slow
def test_the_page_escapes_names_and_loads_nothing(copy: World) -> None:
    for folder in (copy[0], copy[2]):
        summary = RunFolder(folder / "none").summary()
        write_json(folder / "none" / "summary.json", msgspec.structs.replace(summary, policy="<b>&none"))
        seal_also(folder / "none", "summary.json")
    pair = load_pair(copy[0], copy[2])
    page = render(crosscheck(pair), draw_crosscheck(pair, crosscheck(pair)))
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;none" in page
    assert "<script>" not in page  # its own have names
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<figure ") == 3


class Simulator:
    """Stands in for the root command's tools."""

    def simulate(self, run_folder: Path, calibration: Path, out: Path) -> None:
        simulate_replay(run_folder, calibration, out)


@pytest.mark.slow
def test_the_command_simulates_writes_and_judges(copy: World) -> None:
    measured, calibration, _ = copy
    arguments = ["crosscheck", str(measured), "--calibration", str(calibration)]
    result = CliRunner().invoke(report, arguments, obj=Simulator())
    assert result.exit_code == 0, result.output
    assert "static:2" in result.output
    assert json.loads((measured / "crosscheck.json").read_text())["best"]
    assert (measured / "crosscheck.html").is_file()
    assert (measured / "pictures" / "crosscheck_makespan.png").is_file()
    again = ["crosscheck", str(measured), "--simulated", f"{measured}.simulated"]
    for share, code in (("0.05", 1), ("0.2", 0)):
        judged = CliRunner().invoke(report, [*again, "--max-error", share], obj=Simulator())
        assert judged.exit_code == code, judged.output


def test_the_command_needs_a_calibration_or_a_simulation(copy: World) -> None:
    result = CliRunner().invoke(report, ["crosscheck", str(copy[0])], obj=Simulator())
    assert isinstance(result.exception, InputError)


@pytest.mark.slow
def test_the_same_folders_give_the_same_pictures(world: World) -> None:
    pair = load_pair(world[0], world[2])
    first, second = (draw_crosscheck(pair, crosscheck(pair)) for _ in range(2))
    assert [picture.png for picture in first] == [picture.png for picture in second]
