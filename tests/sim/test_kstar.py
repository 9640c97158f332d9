from math import isnan
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.small_world import PLAIN
from tlt.sim.acceptance.laws import Geometric
from tlt.sim.advise.best_draft import draw_ranking, engine_step_s, gains_of, parts_s, rank
from tlt.sim.advise.kstar import breakeven_rate, drafting_configs, kstar_map
from tlt.sim.config import resolve
from tlt.sim.steptimes.calibration import load
from tlt.sim.steptimes.errors import CostError
from tlt.traces.common.manifest import seal_also
from tlt.traces.results.kstar import CONFIGURED, KStarMap, read_kstar, write_kstar
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError
from tltsched.policies.base import WhenOff

ERROR = CostError(share=0.05, sds=(0.05, 0.05, 0.05), source="a test")

MEASURED = {
    "cost": {"source": "vllm-0.32-h100-qwen2.5-7b"},
    "hardware": {"model": "Qwen2.5-7B", "tp": 1},
    "acceptance": {"kind": "per_position"},
}
BATCHES, CONTEXTS, RATES = (1, 16, 128, 256), (512.0, 4096.0, 16384.0), (0.1, 0.5, 0.9)


@pytest.fixture(scope="module")
def measured() -> KStarMap:
    config = resolve(MEASURED, "none")
    return kstar_map(config, drafting_configs(config, []), BATCHES, CONTEXTS, RATES)


def row(frame: pd.DataFrame, **where: Any) -> pd.Series:
    for column, value in where.items():
        frame = frame[frame[column] == value]
    assert len(frame) == 1
    return frame.iloc[0]


def test_every_cell_of_the_grid_is_there_once(measured: KStarMap) -> None:
    keys = measured.best[["rate", "batch", "context_tokens"]]
    assert len(keys) == len(keys.drop_duplicates()) == len(BATCHES) * len(CONTEXTS) * (1 + len(RATES))
    assert set(measured.best["rate"]) == {CONFIGURED, *RATES}
    assert len(measured.breakeven) == len(BATCHES) * len(CONTEXTS) * 8
    assert measured.about.draft_configs == ("off", *map(str, range(1, 9)))


def test_a_map_says_what_it_rests_on(measured: KStarMap) -> None:
    calibration = load("vllm-0.32-h100-qwen2.5-7b")
    about = measured.about
    assert about.date == calibration.date
    assert about.engine_version == "0.32.0"
    assert about.provenance == "measured"
    assert calibration.device in about.describe()
    assert about.acceptance.startswith("assumed: given acceptance")


def test_gains_are_those_of_the_law_of_step_times(measured: KStarMap) -> None:
    coefficients = load("vllm-0.32-h100-qwen2.5-7b").coefficients
    found = row(measured.best, rate=0.5, batch=16, context_tokens=4096.0)
    plain_s = engine_step_s(coefficients, OFF, "not_configured", 16, 4096.0)
    by_draft_config = {
        str(chain(k)): (1 + float(Geometric(0.5).survival(chain(k)).sum()))
        * plain_s
        / engine_step_s(coefficients, chain(k), "k0", 16, 4096.0)
        for k in range(1, 9)
    }
    best = max(by_draft_config, key=lambda draft_config: by_draft_config[draft_config])
    assert found["draft_config"] == best
    assert found["gain"] == pytest.approx(by_draft_config[best])
    assert found["runner_up_gain"] == pytest.approx(sorted(by_draft_config.values())[-2])
    assert found["gain_low"] < found["gain"] < found["gain_high"]


def test_the_best_gain_rises_with_acceptance_and_never_falls_below_off(measured: KStarMap) -> None:
    for _, cell in measured.best[measured.best["rate"] != CONFIGURED].groupby(["batch", "context_tokens"]):
        gains = cell.sort_values("rate")["gain"].to_numpy()
        assert (gains >= 1).all()
        assert (np.diff(gains) >= 0).all()


def test_what_lies_outside_the_calibration_is_marked(measured: KStarMap) -> None:
    inside = measured.best["batch"].le(128) & measured.best["context_tokens"].le(8386)
    assert (measured.best["extrapolated"] == ~inside).all()


def test_break_even_separates_off_from_drafting(measured: KStarMap) -> None:
    config = resolve(MEASURED, "none")
    first = measured.breakeven[measured.breakeven["pays_first"]]
    assert len(first) == len(BATCHES) * len(CONTEXTS)
    for _, even in first.iterrows():
        for rate, drafts in ((even["rate"] - 1e-3, False), (even["rate"] + 1e-3, True)):
            at = kstar_map(
                config, drafting_configs(config, []), [even["batch"]], [even["context_tokens"]], [rate]
            )
            assert (row(at.best, rate=rate)["draft_config"] != "off") == drafts


def test_break_even_length_is_the_engine_step_over_a_plain_one(measured: KStarMap) -> None:
    coefficients = load("vllm-0.32-h100-qwen2.5-7b").coefficients
    even = row(measured.breakeven, batch=128, context_tokens=512.0, draft_config="4")
    engine_step = engine_step_s(coefficients, chain(4), "k0", 128, 512.0)
    assert even["length_with_bonus"] == pytest.approx(
        engine_step / engine_step_s(coefficients, OFF, "not_configured", 128, 512.0)
    )
    assert even["most_with_bonus"] == 5
    emitted = 1 + float(Geometric(even["rate"]).survival(chain(4)).sum())
    assert emitted == pytest.approx(even["length_with_bonus"])


@given(depth=st.integers(1, 12), rate=st.floats(0.0, 0.99))
def test_the_break_even_rate_inverts_the_length(depth: int, rate: float) -> None:
    length = 1 + float(Geometric(rate).survival(chain(depth)).sum())
    assert breakeven_rate(chain(depth), length) == pytest.approx(rate, abs=1e-6)


def test_an_draft_config_that_cannot_pay_has_no_rate() -> None:
    assert isnan(breakeven_rate(chain(2), 3.0))
    assert isnan(breakeven_rate(DraftConfig(8, 4, 48), 2.0))
    assert breakeven_rate(chain(1), 0.9) == 0


def test_three_drafts_lose_at_short_context_and_win_at_long_context() -> None:
    """As vLLM reports for K = 3 (its pull requests 48944 and 49986): a loss at 400 tokens, a gain at 4,000.

    There the model, the batch (256) and the acceptance are others, so the direction is what is compared.
    """
    config = resolve(MEASURED, "none")
    found = kstar_map(config, [chain(3)], [1, 128], [400.0, 4000.0], [0.4])
    best = found.best[found.best["rate"] == 0.4]
    assert row(best, batch=128, context_tokens=400.0)["draft_config"] == "off"
    assert row(best, batch=128, context_tokens=4000.0)["draft_config"] == "3"
    assert row(best, batch=1, context_tokens=400.0)["draft_config"] == "3"
    assert not best["extrapolated"].any()
    even = found.breakeven
    short = row(even, batch=128, context_tokens=400.0)["length_with_bonus"]
    long = row(even, batch=128, context_tokens=4000.0)["length_with_bonus"]
    assert short == pytest.approx(2.0, abs=0.05)
    assert long == pytest.approx(1.53, abs=0.05)


def test_trees_have_the_configured_law_alone() -> None:
    config = resolve({"acceptance": {"kind": "published_tree"}}, "none")
    found = kstar_map(config, drafting_configs(config, ["8_8_16", "off", "8_8_32"]), [4, 64], [2048.0])
    assert found.about.rates == ()
    assert set(found.best["rate"]) == {CONFIGURED}
    assert found.breakeven["rate"].isna().all()
    assert not found.breakeven["pays_first"].any()
    assert (found.breakeven["length_with_bonus"] > 1).all()


def test_a_roofline_is_outside_every_calibration() -> None:
    config = resolve(MEASURED | {"cost": {"source": "roofline"}}, "none")
    found = kstar_map(config, [chain(2)], [8], [1024.0], [0.5])
    assert found.best["extrapolated"].all()
    assert found.about.batch_range is None
    assert "assumed" in found.about.describe()


@pytest.mark.parametrize(
    ("grid", "field"),
    [
        (((0,), (512.0,), (0.5,)), "--batches"),
        (((1, 1), (512.0,), (0.5,)), "--batches"),
        (((1,), (0.0,), (0.5,)), "--contexts"),
        (((1,), (512.0,), (1.0,)), "--acceptance"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(grid: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        kstar_map(resolve(MEASURED, "none"), [chain(1)], *grid)
    assert caught.value.field == field


@pytest.mark.parametrize("names", [["off"], ["2", "2"], ["x"]])
def test_draft_configs_that_make_no_sense_are_refused(names: list[str]) -> None:
    with pytest.raises(InputError):
        drafting_configs(resolve(MEASURED, "none"), names)


def test_a_map_is_read_back_as_it_was_written(measured: KStarMap, tmp_path: Any) -> None:
    write_kstar(tmp_path, measured)
    again = read_kstar(tmp_path)
    assert again.about == measured.about
    pd.testing.assert_frame_equal(again.best, measured.best[again.best.columns], check_dtype=False)
    best = again.best.iloc[1:]
    best.to_parquet(tmp_path / "kstar.parquet")
    seal_also(tmp_path, "kstar.parquet")
    with pytest.raises(InputError, match="make the map again"):
        read_kstar(tmp_path)


def test_parts_of_a_engine_step_add_up_to_it() -> None:
    cases: list[tuple[DraftConfig, WhenOff]] = [
        (OFF, "not_configured"), (OFF, "k0"), (chain(3), "k0"), (DraftConfig(4, 2, 8), "k0"),
    ]  # fmt: skip
    for draft_config, state in cases:
        whole = (
            float(PLAIN.fixed_s(draft_config, state, 6))
            + PLAIN.context_s_per_token(draft_config, state) * 6 * 100
        )
        assert parts_s(PLAIN, draft_config, state, 6, 100.0).sum() == pytest.approx(whole)
    # K = 0 kept in step costs a pass of the drafter: it is drawn with the drafter, not with the target.
    assert parts_s(PLAIN, OFF, "k0", 6, 100.0)[2] == pytest.approx(0.001 + 6 * 0.0001)


def test_off_costs_something_where_the_drafter_is_kept_in_step() -> None:
    draws = draw_ranking(ERROR, 1, 50, np.random.default_rng(1))
    useless = np.array([1.0])
    plain = rank(PLAIN, [chain(2)], useless, 6, 100.0, draws)
    in_step = rank(PLAIN, [chain(2)], useless, 6, 100.0, draws, "k0")
    assert (plain.draft_config, plain.gain) == (OFF, 1.0)
    assert (plain.gain_low, plain.gain_high) == (1.0, 1.0)
    assert in_step.draft_config == OFF
    assert in_step.gain < 1
    assert in_step.gain_low < in_step.gain < in_step.gain_high
    assert gains_of(PLAIN, [chain(2)], useless, 6, 100.0, draws).shape == (50, 2)
