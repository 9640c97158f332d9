"""Calibrating: the sweep, its points, and what an interrupt leaves."""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
from pathlib import Path

import msgspec
import pytest

from tlt.realrun.calibrate.measurement_plan import Cell, make_plan
from tlt.realrun.calibrate.points import to_points, to_switch_points
from tlt.realrun.calibrate.progress_file import PartialFile
from tlt.realrun.calibrate.sweep import calibrate, in_processes_apart
from tlt.realrun.calibrate.time_steps import Block
from tlt.realrun.config import CalibrationConfig, DrafterConfig, EngineConfig, RealConfig, WorkersConfig
from tlt.realrun.workers.executor import WorkerError
from tlt.sim.steptimes.calibration import MIXED_NOT_TIMED, mixed_errors
from tlt.sim.steptimes.fit_live import fit_points
from tlt.traces.results.calibration_points import MeasuredPoints
from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError

_spec = importlib.util.spec_from_file_location(
    "fake_calibration", Path(__file__).with_name("fake_calibration.py")
)
assert _spec is not None
assert _spec.loader is not None
fake = sys.modules.setdefault("fake_calibration", importlib.util.module_from_spec(_spec))
_spec.loader.exec_module(fake)
MAKE = "fake_calibration:make_engine"


@pytest.fixture(autouse=True)
def fresh_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("starts", []),
        ("kv_tokens", 1_000_000),
        ("fail_after_engine_steps", None),
        ("compile_at_engine_step", None),
    ):
        monkeypatch.setattr(fake.FakeEngine, name, value)


def config(**calibration: object) -> RealConfig:
    settings = {"batches": (1, 2, 4, 8, 16, 32), "contexts_tokens": (64, 512)} | calibration
    return RealConfig(
        name="fake",
        engine=EngineConfig(max_running=32, max_context_tokens=2048),
        drafter=DrafterConfig(ks=(0, 1, 2, 4)),
        calibration=msgspec.convert(settings, CalibrationConfig),
    )


def quiet(done: float, work: float, text: str) -> None:
    assert 0 <= done <= work * (1 + 1e-9)
    assert text


def run(tmp_path: Path, settings: RealConfig | None = None) -> MeasuredPoints:
    return calibrate(settings or config(), tmp_path / "points.json", quiet, MAKE)


def test_measures_every_point_of_the_plan_with_its_repeats(tmp_path: Path) -> None:
    measured = run(tmp_path)
    plan = make_plan(config())
    assert len(measured.points) == len(plan.cells) * (1 + len(plan.ks))
    assert {point.repeats for point in measured.points} == {5}
    assert all(point.spread_s > 0 for point in measured.points)
    assert {point.when_off for point in measured.points if point.draft_config == OFF} == {
        "not_configured",
        "k0",
    }
    assert 0.15 < sum(point.held_out for point in measured.points) / len(measured.points) < 0.35
    assert measured.graph_tokens == 512
    assert measured.chunk_tokens == 4096
    assert fake.FakeEngine.starts == [False, True]
    assert msgspec.json.decode((tmp_path / "points.json").read_bytes(), type=MeasuredPoints) == measured
    assert [path.name for path in tmp_path.iterdir()] == ["points.json"]


def test_neighbours_decode_meanwhile_and_end_with_the_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)  # the neighbour's process imports the fake by name
    settings = config(neighbours=1, repeats=1, visits=1)
    measured = run(tmp_path, settings)
    assert multiprocessing.active_children() == []
    assert any(note.startswith("1 other engines decoded") for note in measured.notes)
    assert (tmp_path / "logs" / "neighbour-1.log").read_text(encoding="utf-8") == ""


def test_points_follow_the_law_of_the_engine_within_its_noise(tmp_path: Path) -> None:
    engine = fake.FakeEngine(config(), True)
    plain = fake.FakeEngine(config(), False)
    fake_noise, fake.NOISE = fake.NOISE, 0.0
    try:
        for point in run(tmp_path).points:
            one = plain if point.when_off == "not_configured" else engine
            context = round(point.context_tokens * point.batch)
            expected = one._engine_step_s(point.batch, context, point.draft_config.depth)
            assert point.engine_step_s == pytest.approx(expected, rel=0.004)
    finally:
        fake.NOISE = fake_noise


def test_a_prompt_that_joins_a_batch_costs_what_it_takes_beyond_decode(tmp_path: Path) -> None:
    noise, fake.NOISE = fake.NOISE, 0.0
    try:
        measured = run(tmp_path)
    finally:
        fake.NOISE = noise
    plan = make_plan(config())
    assert {point.batch for point in measured.mixed_points} == {1, 4, 16}, "32 would leave it no room"
    assert {point.prompt_tokens for point in measured.mixed_points} == {16, 64, 256}
    assert len(measured.mixed_points) == 9 * (1 + len(plan.mixed_ks))
    assert plan.mixed_ks == (0, 2, 4)
    assert 0.2 < sum(point.held_out for point in measured.mixed_points) / len(measured.mixed_points) < 0.5
    for point in measured.mixed_points:
        assert point.repeats == 3
        one = fake.FakeEngine(config(), point.when_off == "k0")
        context = round(point.context_tokens * point.batch)
        decode_s = one._engine_step_s(point.batch, context, point.draft_config.depth)
        expected = decode_s + fake.PREFILL_S * point.prompt_tokens
        assert point.engine_step_s == pytest.approx(expected, rel=0.02)
    assert (measured.graph_tokens, measured.plain_graph_tokens) == (512, 128)
    fitted = fit_points(measured)
    assert (fitted.coefficients.graph_tokens, fitted.coefficients.plain_graph_tokens) == (512, 128)
    assert any(note.startswith("prefill beside decode, mean error") for note in fitted.notes)
    assert not MIXED_NOT_TIMED.keys() & fitted.not_fitted.keys()
    assert abs(mixed_errors(fitted.coefficients, measured.mixed_points)).mean() < 0.06


def test_engines_are_measured_in_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)  # those processes import the fake by name
    settings = config(batches=(1, 4), contexts_tokens=(64,), repeats=2)
    engine = msgspec.structs.replace(settings.engine, prefix_caching=True)
    grid = msgspec.structs.replace(settings.calibration, apart=True)
    model = msgspec.structs.replace(settings.model, quantization="fp8_per_tensor")
    apart = msgspec.structs.replace(settings, engine=engine, calibration=grid, model=model)
    with_stock = msgspec.structs.replace(settings, engine=msgspec.structs.replace(engine, graphs="stock"))
    assert in_processes_apart(apart)
    assert in_processes_apart(with_stock)
    assert not in_processes_apart(settings)
    measured = run(tmp_path, apart)
    assert multiprocessing.active_children() == []
    assert fake.FakeEngine.starts == [], "none of them in this process"
    same = run(tmp_path / "same", settings)
    assert [point.engine_step_s for point in measured.points] == [
        point.engine_step_s for point in same.points
    ]
    assert len(measured.mixed_points) == len(same.mixed_points)
    assert measured.settings == "no graphs, prefix caching on, weights fp8_per_tensor"
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"plain.log", "speculating.log"}
    with pytest.raises(WorkerError, match="the process of the plain engine ended"):
        calibrate(apart, tmp_path / "points.json", quiet, "fake_calibration:missing")


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_the_points_say_over_how_many_gpus_the_engine_was_spread(tmp_path: Path, tp: int) -> None:
    settings = config(batches=(1, 2, 4), repeats=1, visits=1)
    measured = run(tmp_path, msgspec.structs.replace(settings, workers=WorkersConfig(tp=tp)))
    assert measured.tp == tp
    assert fit_points(msgspec.structs.replace(measured, model="Qwen2.5-7B")).tp == tp
    assert ("TP" in measured.device) == (tp > 1)


def test_a_change_of_k_is_measured_apart_from_the_steady_engine_steps(tmp_path: Path) -> None:
    switches = run(tmp_path).switch_points
    assert {(switch.from_k, switch.to_k) for switch in switches} >= {(0, 4), (4, 0), (1, 2)}
    assert all(switch.extra_s == pytest.approx(fake.SWITCH_S, abs=5e-4) for switch in switches)


def test_goes_on_after_an_interrupt_and_measures_nothing_twice(tmp_path: Path) -> None:
    fake.FakeEngine.fail_after_engine_steps = 700
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert not (tmp_path / "points.json").exists()
    partial = tmp_path / "points.json.partial.jsonl"
    partial.write_bytes(partial.read_bytes() + b'{"type":"block","engi')  # a line that was cut off
    kept = partial.read_bytes().count(b"\n")
    assert kept > 20
    fake.FakeEngine.fail_after_engine_steps = 300
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    fake.FakeEngine.fail_after_engine_steps = None
    measured = run(tmp_path)
    assert {point.repeats for point in measured.points} == {5}
    assert not partial.exists()


def test_an_engine_of_which_nothing_is_missing_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartialFile, "remove", lambda _: None)
    first = run(tmp_path)
    assert fake.FakeEngine.starts == [False, True]
    assert run(tmp_path) == first
    assert fake.FakeEngine.starts == [False, True]


def test_a_partial_file_of_other_settings_is_refused(tmp_path: Path) -> None:
    fake.FakeEngine.fail_after_engine_steps = 700
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    with pytest.raises(InputError, match="delete it to measure anew"):
        run(tmp_path, config(repeats=6))


def test_engine_steps_in_which_something_was_compiled_are_dropped_and_counted(tmp_path: Path) -> None:
    fake.FakeEngine.compile_at_engine_step = 400
    measured = run(tmp_path)
    assert measured.compiled_engine_steps >= 1
    assert all(point.engine_step_s < 1.0 for point in measured.points)


def test_a_batch_that_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    fake.FakeEngine.kv_tokens = 8000
    measured = run(tmp_path, config(most_tokens=20_000))
    assert max(point.batch * point.context_tokens for point in measured.points) < 16_000
    assert any("32 requests of 512 tokens do not run in one batch" in note for note in measured.notes)


def test_the_time_limit_ends_the_sweep_and_is_named(tmp_path: Path) -> None:
    measured = run(tmp_path, config(time_limit_s=1e-9))
    assert measured.points == ()
    assert any("time limit" in note for note in measured.notes)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"batches": (64,)}, "calibration.batches"),
        ({"most_tokens": 10}, "calibration.most_tokens"),
        ({"engine_steps_per_repeat": 4000}, "engine.max_context_tokens"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(settings: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as error:
        make_plan(config(**settings))
    assert error.value.field == field


def test_longer_contexts_take_every_second_batch_from_the_largest_that_fits() -> None:
    plan = make_plan(config(most_tokens=8192))
    assert [cell.batch for cell in plan.cells if cell.prompt_tokens == 64] == [1, 2, 4, 8, 16, 32]
    assert [cell.batch for cell in plan.cells if cell.prompt_tokens == 512] == [1, 4, 16]


def test_the_default_plan_of_a_gpu_is_short_enough() -> None:
    settings = RealConfig(
        engine=EngineConfig(device="cuda", max_running=128, max_context_tokens=8704),
        drafter=DrafterConfig(ks=(0, 1, 2, 4, 8)),
    )
    plan = make_plan(settings)
    prefill = 2 * plan.visits * sum(cell.tokens() for cell in plan.cells)
    engine_steps = (
        plan.repeats * len(plan.ks) * len(plan.cells) * (plan.engine_steps + plan.settle_engine_steps)
    )
    # About 14 ms an engine step, and 35,000 prompt tokens a second, of a 7B shape on one H100.
    assert engine_steps * 0.014 + prefill / 35_000 < plan.time_limit_s


def _block(k: int, repeat: int, context: float, seconds: float, before_k: int = 0) -> Block:
    return Block(
        engine="speculating", cell=Cell(4, 64), k=k, repeat=repeat, before_k=before_k, settle_s=(0.3, 0.2),
        seconds=seconds, context_tokens=context, engine_steps=4, compiled=0,
    )  # fmt: skip


def test_growth_of_the_context_is_not_taken_for_spread() -> None:
    plan = make_plan(config())
    blocks = [_block(0, n, 64 + 20 * n, 0.1 + 0.01 * n) for n in range(5)]
    (point,) = to_points(blocks, plan)
    assert point.context_tokens == pytest.approx(104)
    assert point.engine_step_s == pytest.approx(0.12)
    assert point.spread_s == pytest.approx(0.0, abs=1e-12)


def test_a_switch_costs_its_first_engine_steps_over_steady_ones() -> None:
    (switch,) = to_switch_points([_block(2, 0, 64, 0.1), _block(0, 0, 64, 0.1)])
    assert (switch.from_k, switch.to_k) == (0, 2)
    assert switch.extra_s == pytest.approx(0.3)


def test_draft_configs_are_chains(tmp_path: Path) -> None:
    assert {point.draft_config for point in run(tmp_path).points} == {OFF, chain(1), chain(2), chain(4)}


def test_a_fit_through_the_points_predicts_those_that_it_did_not_see(tmp_path: Path) -> None:
    calibration = fit_points(run(tmp_path))
    assert calibration.residuals.held_out_mean < 0.005
    assert calibration.coefficients.prefill_s_per_token == pytest.approx(fake.PREFILL_S, rel=0.05)
