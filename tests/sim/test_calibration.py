from pathlib import Path

import msgspec
import numpy as np
import pytest

from evidence.calibration_sources import build_all, encode
from tests.sim.small_world import PLAIN
from tlt.sim.acceptance.laws import PublishedTree
from tlt.sim.steptimes.calibration import (
    SHIPPED,
    Calibration,
    describe_calibration,
    error_of,
    load,
    predict_s,
    shipped_names,
)
from tlt.sim.steptimes.fit import LawSettings, fit
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.tables import StepCosts
from tlt.traces.catalogue.models import model_shape
from tlt.traces.results.calibration_points import Point, PrefillPoint
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError
from tltsched.policies.base import WhenOff

PAPER = "paper-qwen32b-tp4"


@pytest.fixture(scope="module")
def rebuilt() -> tuple[Calibration, ...]:
    return build_all()


def leaves(value: object, path: str = "") -> dict[str, object]:
    """Return every value of nested tables and lists by its path."""
    if isinstance(value, dict):
        return {k: v for name, inner in value.items() for k, v in leaves(inner, f"{path}.{name}").items()}
    if isinstance(value, (list, tuple)):
        return {k: v for n, inner in enumerate(value) for k, v in leaves(inner, f"{path}[{n}]").items()}
    return {path: value}


def test_shipped_files_are_what_the_raw_tables_give(rebuilt: tuple[Calibration, ...]) -> None:
    # Not by their bytes: the last digits of a least-squares fit differ from one processor to the next.
    assert tuple(sorted(calibration.name for calibration in rebuilt)) == shipped_names()
    for calibration in rebuilt:
        shipped = leaves(msgspec.to_builtins(load(calibration.name)))
        again = leaves(msgspec.to_builtins(calibration))
        assert list(again) == list(shipped)
        for path, value in shipped.items():
            same = pytest.approx(value, rel=1e-7, abs=1e-15) if isinstance(value, float) else value
            assert again[path] == same, path


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_files_are_in_the_form_that_a_rebuild_writes(name: str) -> None:
    assert (SHIPPED / f"{name}.json").read_bytes() == encode(load(name))


@pytest.mark.parametrize("name", shipped_names())
def test_coefficients_are_not_negative_and_residuals_are_those_of_the_points(name: str) -> None:
    calibration = load(name)
    fitted = calibration.coefficients
    numbers = [value for value in msgspec.structs.astuple(fitted) if isinstance(value, float)]
    assert min(numbers) >= 0.0
    assert min(fitted.slopes_s_per_token) >= 0.0
    assert list(fitted.knots_tokens) == sorted(fitted.knots_tokens)
    used = [point for point in calibration.points if not (point.excluded or point.held_out)]
    errors = [error_of(fitted, point) for point in used]
    assert calibration.residuals.fitted_points == len(used)
    assert calibration.residuals.fitted_mean == pytest.approx(np.mean(errors))
    assert calibration.residuals.fitted_max == pytest.approx(max(errors))
    text = describe_calibration(calibration)
    assert calibration.device in text
    assert f"mean {calibration.residuals.held_out_mean:.1%}" in text


def _speedup_errors(held_out: bool, batches_above_one: bool) -> list[float]:
    """Return relative errors of the predicted speedup, acceptance length / (step time / plain step time)."""
    calibration, law = load(PAPER), PublishedTree()
    plain = {point.batch: point.engine_step_s for point in calibration.points if point.draft_config == OFF}
    errors = []
    for point in calibration.points:
        counts = (
            point.draft_config.depth and point.held_out is held_out and (point.batch > 1) is batches_above_one
        )
        if not counts:
            continue
        length = law.mean_length_with_bonus(point.draft_config)
        predicted_plain = predict_s(
            calibration.coefficients, msgspec.structs.replace(point, draft_config=OFF)
        )
        predicted = length / (predict_s(calibration.coefficients, point) / predicted_plain)
        published = length * plain[point.batch] / point.engine_step_s
        errors.append(abs(predicted / published - 1.0))
    return errors


def test_held_out_half_of_figure_13_is_met_within_3_percent() -> None:
    fitted, unseen = _speedup_errors(False, False), _speedup_errors(True, False)
    assert len(fitted) == len(unseen) == 18
    assert np.mean(unseen) <= 0.03


def test_table_4_is_met_within_10_percent() -> None:
    fitted, unseen = _speedup_errors(False, True), _speedup_errors(True, True)
    assert len(fitted) + len(unseen) == 20  # its other four cells are in figure 13
    assert np.mean(unseen) <= 0.10
    assert np.mean(fitted + unseen) <= 0.10


def test_unknown_name_tells_the_nearest() -> None:
    with pytest.raises(InputError, match=r"got 'paper-qwen32-tp4' .* did you mean 'paper-qwen32b-tp4'\?"):
        load("paper-qwen32-tp4")
    with pytest.raises(InputError, match=r"allowed: paper-qwen32b-tp4, vllm.* calibration\.json"):
        load("zzz")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"name": "x"}', b"\xff\xfe", b'{"nam": NaN}'])
def test_broken_file_is_an_input_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"got .*calibration\.json.* for calibration"):
        load(str(path))


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    own = msgspec.structs.replace(load(PAPER), name="mine")
    path.write_bytes(encode(own))
    assert load(str(path)) == own


def _settings(kv_s_per_token: float | None) -> LawSettings:
    return LawSettings(
        knots_tokens=(1.0, 32.0, 128.0, 512.0),
        least_slope_s_per_token=0.0,
        open_slope_s_per_token=2e-4,
        graph_tokens=512.0,
        chunk_tokens=1000.0,
        kv_s_per_token=kv_s_per_token,
        prefill_s_per_pair=1e-9,
    )


TRUE = msgspec.structs.replace(
    PLAIN,
    knots_tokens=(1.0, 32.0, 128.0, 512.0),
    slopes_s_per_token=(1e-5, 5e-5, 1e-4, 2e-4),
    drafter_kv_share=1 / model_shape("Qwen2.5-7B").layers,
    graph_tokens=512.0,
    eager_s=0.003,
)


def _points() -> list[Point]:
    cases: list[tuple[WhenOff, DraftConfig]] = [("not_configured", OFF), ("k0", OFF)]
    cases += [
        ("k0", draft_config)
        for draft_config in (chain(1), chain(2), chain(4), DraftConfig(4, 4, 16), DraftConfig(8, 8, 48))
    ]
    blank = [
        Point(provenance="assumed", when_off=when_off, draft_config=draft_config, batch=batch,
              context_tokens=context, engine_step_s=1.0)
        for when_off, draft_config in cases for batch in (1, 2, 4, 8, 16, 32, 64, 96, 110)
        for context in (500.0, 8000.0)
        if batch * draft_config.verify_tokens <= 600  # few beyond the last knot: the open piece is given
    ]  # fmt: skip
    return [msgspec.structs.replace(point, engine_step_s=predict_s(TRUE, point)) for point in blank]


@pytest.mark.parametrize("kv_s_per_token", [None, TRUE.kv_s_per_token])
def test_known_coefficients_are_recovered(kv_s_per_token: float | None) -> None:
    prefill = [
        PrefillPoint(batch=b, prompt_tokens=n, prefill_s=TRUE.prefill_s(b * n, b * n * n, 1000.0))
        for b in (1, 4, 16)
        for n in (100, 700, 5000)
    ]
    found = fit(_points(), prefill, _settings(kv_s_per_token), model_shape("Qwen2.5-7B"))
    assert found.experts is None
    for name in set(Coefficients.__struct_fields__) - {"experts"}:
        found_value, value = getattr(found, name), getattr(TRUE, name)
        assert found_value == (value if value is None else pytest.approx(value, rel=1e-6, abs=1e-12)), name


def test_points_held_out_or_excluded_do_not_move_the_fit() -> None:
    points, prefill = _points(), [PrefillPoint(batch=1, prompt_tokens=100, prefill_s=0.1)]
    wild = msgspec.structs.replace(points[0], engine_step_s=100.0)
    extra = [msgspec.structs.replace(wild, held_out=True), msgspec.structs.replace(wild, excluded="wild")]
    shape, settings = model_shape("Qwen2.5-7B"), _settings(None)
    assert fit([*points, *extra], prefill, settings, shape) == fit(points, prefill, settings, shape)


def test_past_the_captured_graphs_a_step_takes_the_eager_seconds_more() -> None:
    """The graphs of TRUE end at 512 tokens: 102 requests with 4 drafts read 510, 103 read 515."""
    graphs = msgspec.structs.replace(TRUE, graph_tokens=None)
    for draft_config, inside in ((chain(4), 102), (OFF, 512)):
        more_s = [
            float(TRUE.fixed_s(draft_config, "k0", batch) - graphs.fixed_s(draft_config, "k0", batch))
            for batch in (inside, inside + 1)
        ]
        assert more_s == pytest.approx([0.0, 0.003])
    assert TRUE.eager_part_s([512.0, 513.0]).tolist() == [0.0, 0.003]


def test_released_tlt_decodes_without_graphs_above_its_threshold() -> None:
    """Its bulk phase takes the assumed seconds of each layer more; steps of drafts take none up to there."""
    plain, bulk = (StepCosts(PLAIN, "drafter_dropped", 64, 8192.0, most, 0.002) for most in (0, 32))
    more_s = bulk.of(OFF).fixed_s - plain.of(OFF).fixed_s
    assert more_s[:33] == pytest.approx(np.zeros(33))
    assert more_s[33:] == pytest.approx(np.full(32, 0.002))
    drafted_s = bulk.of(chain(2)).fixed_s - plain.of(chain(2)).fixed_s
    assert (drafted_s[:33] == 0.0).all()
    assert drafted_s[33:] == pytest.approx(np.full(32, 0.002))  # which this policy never does
