"""Mixtures of experts in the law: how many are woken, what that does to drafting, terms recovered."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from tlt.sim.steptimes.calibration import predict_s
from tlt.sim.steptimes.experts import ExpertTerm, chances
from tlt.sim.steptimes.fit import LawSettings, fit
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.parallel import Parallel
from tlt.sim.steptimes.roofline import Assumptions, roofline
from tlt.traces.catalogue.gpus import gpu_spec
from tlt.traces.catalogue.models import model_shape
from tlt.traces.results.calibration_points import Point, PrefillPoint
from tltsched.draft_config import OFF, DraftConfig
from tltsched.errors import InputError

MOE = model_shape("Qwen3-30B-A3B")


def chain(k: int) -> DraftConfig:
    return DraftConfig(depth=k, topk=1, verify_tokens=k + 1) if k else OFF


def law(model: str = "Qwen3-30B-A3B", parallel: Parallel | None = None) -> Coefficients:
    return roofline(model_shape(model), gpu_spec("H200"), parallel or Parallel(), Assumptions())


def step_s(coefficients: Coefficients, k: int, batch: int) -> float:
    return float(coefficients.fixed_s(chain(k), "not_configured", np.float64(batch)))


@pytest.mark.parametrize(("tokens", "share"), [(0, 0.0), (1, 1 / 4), (2, 1 - 9 / 16), (1000, 1.0)])
def test_woken_experts_by_hand(tokens: int, share: float) -> None:
    # two of eight: an expert stays idle for a token with chance 3/4
    term = ExpertTerm(count=8, per_token=2, read_s=4.0)
    assert term.woken_share(tokens) == pytest.approx(share)
    assert term.seconds(tokens) == pytest.approx(4.0 * share)


def test_woken_experts_are_those_of_draws() -> None:
    rng = np.random.default_rng(0)
    term = ExpertTerm(count=16, per_token=3, read_s=1.0)
    drawn = [len(np.unique([rng.permutation(16)[:3] for _ in range(5)])) / 16 for _ in range(4000)]
    assert float(term.woken_share(5)) == pytest.approx(np.mean(drawn), abs=0.01)


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 2.0, 3.0])
def test_chances_sum_to_the_experts_of_a_token_and_skew_wakes_fewer(skew: float) -> None:
    found = chances(64, 8, skew)
    assert found.sum() == pytest.approx(8)
    assert found.max() <= 1.0 + 1e-12
    even, skewed = (ExpertTerm(count=64, per_token=8, read_s=1.0, skew=each) for each in (0.0, skew))
    assert float(skewed.woken_share(16)) <= float(even.woken_share(16)) + 1e-12


def test_the_busiest_of_several_gpus_waits_for_nothing_once_all_are_woken() -> None:
    spread = ExpertTerm(count=64, per_token=8, read_s=1.0, ranks=8)
    even = ExpertTerm(count=64, per_token=8, read_s=1.0)
    # One token puts 8 experts on 8 GPUs of 8: the busiest of 8 balls in 8 bins has 2.6 to 3.1 of its 8.
    assert 2.6 / 8 < float(spread.seconds(1)) < 3.1 / 8
    assert float(spread.seconds(10_000)) == pytest.approx(1.0)
    tokens = np.arange(1, 300)
    assert (spread.seconds(tokens) >= even.seconds(tokens) - 1e-12).all()


def test_the_gain_of_drafting_falls_with_the_batch_and_comes_back() -> None:
    # Dense: never more than at batch 1. A mixture: least where each drafted token wakes most new experts.
    moe, dense = law(), law("Qwen2.5-7B")
    batches = (1, 4, 16, 64)
    gain = {
        name: [step_s(each, 0, batch) / step_s(each, 2, batch) for batch in batches]
        for name, each in (("moe", moe), ("dense", dense))
    }
    assert gain["moe"][1] < gain["moe"][0] * 0.95
    assert gain["moe"][3] > gain["moe"][1] * 1.3
    assert max(gain["dense"]) == gain["dense"][0]


def test_a_token_more_costs_a_mixture_most_where_few_are_awake() -> None:
    moe = law()
    steps = [step_s(moe, 0, batch) for batch in (1, 2, 3, 64, 65)]
    assert steps[1] - steps[0] > steps[2] - steps[1] > 10 * (steps[4] - steps[3]) > 0


def test_scaling_takes_the_experts_along() -> None:
    moe = law()
    for batch in (1, 7, 300):
        assert step_s(moe.times(1.5), 2, batch) == pytest.approx(1.5 * step_s(moe, 2, batch))
    doubled = moe.scaled(2.0, 1.0, 1.0)
    assert doubled.experts is not None
    assert moe.experts is not None
    assert doubled.experts.read_s == 2 * moe.experts.read_s


def test_prompts_beside_decode_wake_experts_too() -> None:
    moe = law()
    assert moe.experts is not None
    decode_s = step_s(moe, 0, 1)
    mixed_s = moe.mixed_engine_step_s(OFF, "not_configured", 1, decode_s, 400.0, 400.0**2)
    assert mixed_s > decode_s + 0.9 * moe.experts.read_s


def points_of(truth: Coefficients) -> list[Point]:
    """Return exact points of a law, over batches and chains."""
    blank = [
        Point(provenance="measured", when_off="k0" if k else "not_configured", draft_config=chain(k),
              batch=batch, context_tokens=context, engine_step_s=1.0)
        for batch in (1, 2, 4, 8, 16, 32, 64, 128) for k in range(5) for context in (512.0, 4096.0)
    ]  # fmt: skip
    return [
        Point(provenance="measured", when_off=point.when_off, draft_config=point.draft_config,
              batch=point.batch, context_tokens=point.context_tokens, engine_step_s=predict_s(truth, point))
        for point in blank
    ]  # fmt: skip


@pytest.mark.parametrize("skew", [0.0, 0.7])
def test_the_term_of_experts_is_recovered_from_points(skew: float) -> None:
    truth = roofline(MOE, gpu_spec("H200"), Parallel(), Assumptions(expert_skew=skew))
    settings = LawSettings(
        knots_tokens=(1.0, 128.0, 640.0), least_slope_s_per_token=0.0, open_slope_s_per_token=0.0,
        graph_tokens=None, chunk_tokens=8192.0, verified_terms=True,
    )  # fmt: skip
    found = fit(points_of(truth), [PrefillPoint(batch=1, prompt_tokens=512, prefill_s=0.05)], settings, MOE)
    assert found.experts is not None
    assert truth.experts is not None
    assert found.experts.skew == skew
    assert found.experts.read_s == pytest.approx(truth.experts.read_s, rel=1e-3)
    for point in points_of(truth):
        assert predict_s(found, point) == pytest.approx(point.engine_step_s, rel=1e-3)


def test_a_chain_beyond_the_points_is_met_by_the_fitted_law() -> None:
    # Fitted to K = 0, 1, 2; asked at K = 4: without the term straight pieces would go on.
    truth = law()
    few = [point for point in points_of(truth) if point.draft_config.depth <= 2]
    settings = LawSettings(
        knots_tokens=(1.0, 384.0), least_slope_s_per_token=0.0, open_slope_s_per_token=0.0,
        graph_tokens=None, chunk_tokens=8192.0, verified_terms=True,
    )  # fmt: skip
    found = fit(few, [PrefillPoint(batch=1, prompt_tokens=512, prefill_s=0.05)], settings, MOE)
    for point in points_of(truth):
        if point.draft_config.depth == 4 and point.batch <= 64:
            assert predict_s(found, point) == pytest.approx(point.engine_step_s, rel=0.01)


def test_binomial_check_of_the_closed_form() -> None:
    # Chance that one expert of 8 is idle in two draws of 2 without replacement each: (C(7,2) / C(8,2)) ** 2
    idle = (comb(7, 2) / comb(8, 2)) ** 2
    assert float(ExpertTerm(count=8, per_token=2, read_s=1.0).woken_share(2)) == pytest.approx(1 - idle)


@pytest.mark.parametrize(
    "changed",
    [
        {"count": 0},
        {"per_token": 9},
        {"read_s": float("nan")},
        {"read_s": -1.0},
        {"skew": -0.1},
        {"ranks": 0},
    ],
)
def test_a_term_out_of_bounds_is_refused(changed: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"experts\."):
        ExpertTerm(**{"count": 8, "per_token": 2, "read_s": 1.0} | changed)  # type: ignore[arg-type]
