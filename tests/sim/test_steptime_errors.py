"""What step times may be off by, what pins them, and how two calibrations are told apart."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from evidence.roofline_claims import (
    H100,
    PAPER,
    WITHIN,
    assumed_for,
    drafting_points,
    fitted_constants,
    gain_errors,
)
from tests.sim.small_world import PLAIN, config_of, trace_of
from tlt.sim.simulation import Simulation, coefficients_of, mixes_prefill
from tlt.sim.steptimes.calibration import load
from tlt.sim.steptimes.compare import compare
from tlt.sim.steptimes.drafting import DRAFTING
from tlt.sim.steptimes.errors import ROOFLINE_BIASES, CostError, cost_error, session_sds
from tlt.sim.steptimes.known import KnownSteps, pinned
from tlt.sim.write_run import cost_source
from tltsched.draft_config import OFF, DraftConfig, chain
from tltsched.errors import InputError

ROOFLINE = {"cost.source": "roofline", "hardware.gpus": 4, "hardware.tp": 4}
TREES = {"acceptance.kind": "published_tree"}
CHAINS = {"acceptance.kind": "geometric", "acceptance.rate": 0.7}


def test_drafting_constants_are_those_of_the_points_they_name() -> None:
    for name, calibration, held_out in (("vllm_chains", H100, None), ("sglang_trees", PAPER, False)):
        points = drafting_points(load(calibration), held_out)
        fixed_s, pass_s = fitted_constants(load(calibration), points)
        assert DRAFTING[name].fixed_s == pytest.approx(fixed_s, rel=0.01, abs=1e-6)
        assert DRAFTING[name].pass_s == pytest.approx(pass_s, rel=0.01)


def test_a_roofline_meets_the_published_trees_that_the_constants_did_not_see() -> None:
    paper = load(PAPER)
    errors = gain_errors(paper, assumed_for(paper), drafting_points(paper, held_out=True))
    assert len(errors) == 28
    assert np.abs(errors).mean() < WITHIN / 2
    assert abs(errors.mean()) < 0.03, "no bias is left"


def test_what_drafts_follows_the_acceptance_unless_it_is_named() -> None:
    def law(settings: dict[str, object]) -> float:
        return coefficients_of(config_of(ROOFLINE | settings), None).draft_s

    trees, chains = DRAFTING["sglang_trees"].fixed_s, DRAFTING["vllm_chains"].fixed_s
    assert (law(TREES), law(CHAINS)) == (trees, chains)
    assert law(CHAINS | {"cost.roofline.drafting": "sglang_trees"}) == trees
    assert law({"cost.roofline.draft_fixed_s": 0.002}) == 0.002
    assert not mixes_prefill(config_of(ROOFLINE | TREES), None), "SGLang stops decode while it prefills"
    assert mixes_prefill(config_of(ROOFLINE | CHAINS), None)


def test_the_overhead_of_a_pass_hardly_falls_with_tensor_parallelism() -> None:
    passes = [
        coefficients_of(config_of(ROOFLINE | TREES | {"hardware.gpus": tp, "hardware.tp": tp}), None)
        for tp in (2, 4, 8)
    ]
    assert [law.draft_s for law in passes] == [passes[0].draft_s] * 3
    assert passes[2].draft_pass_s > 0.75 * passes[0].draft_pass_s


def test_a_draft_model_pays_its_own_layers_and_cache() -> None:
    settings = ROOFLINE | CHAINS
    head = coefficients_of(config_of(settings), None)
    model = coefficients_of(config_of(settings | {"cost.roofline.draft_model": "Qwen2.5-7B"}), None)
    assert model.draft_pass_s > 4 * head.draft_pass_s
    assert model.drafter_kv_share == pytest.approx(28 * 4 * 128 / (64 * 8 * 128))  # layers x KV heads x width
    with pytest.raises(InputError, match=r"cost\.roofline\.draft_model"):
        coefficients_of(config_of(settings | {"cost.roofline.draft_model": "none such"}), None)


@pytest.mark.parametrize("draft_config", [chain(4), DraftConfig(8, 8, 32)])
@pytest.mark.parametrize("batch", [1, 16])
def test_two_known_steps_pin_the_law(draft_config: DraftConfig, batch: int) -> None:
    known = KnownSteps(
        plain_s=0.02, draft_s=0.5, draft_config=draft_config, batch=batch, context_tokens=500.0
    )
    law, held = pinned(PLAIN, known), 500.0 * batch

    def step_s(what: DraftConfig) -> float:
        fixed_s = float(law.fixed_s(what, "not_configured", np.float64(batch)))
        return fixed_s + law.context_s_per_token(what, "not_configured") * held

    assert step_s(OFF) == pytest.approx(0.02)
    assert step_s(draft_config) == pytest.approx(0.5)
    assert law.prefill_chunk_s == PLAIN.prefill_chunk_s
    plain_alone = pinned(PLAIN, msgspec.structs.replace(known, draft_s=None))
    assert plain_alone.draft_s == PLAIN.draft_s
    with pytest.raises(InputError, match=r"cost\.known\.draft_step_s"):
        pinned(PLAIN, msgspec.structs.replace(known, draft_s=0.0001))


def test_known_steps_are_settings_and_are_told() -> None:
    known = {"cost.known.plain_step_s": 0.02, "cost.known.draft_step_s": 0.03, "cost.known.draft": "2"}
    config = config_of(ROOFLINE | CHAINS | known, "static:2")
    simulation = Simulation(config, trace_of([[20, 30]]))
    assert "pinned to steps that you timed: 20 ms plain and 30 ms at 2" in cost_source(simulation)
    assert "pinned" in simulation.cost_error().source
    loose = Simulation(config_of(ROOFLINE | CHAINS, "static:2"), trace_of([[20, 30]]))
    assert max(simulation.cost_error().sds) < max(loose.cost_error().sds)
    for wrong, field in (
        ({"cost.known.draft_step_s": 0.03}, "plain_step_s"),
        (known | {"cost.known.draft": "off"}, "draft"),
    ):
        with pytest.raises(InputError, match=rf"cost\.known\.{field}"):
            config_of(ROOFLINE | wrong)


def test_a_bias_is_drawn_as_one_and_a_session_widens_every_factor() -> None:
    error = CostError(share=0.1, biases=(0.0, -0.5, 0.2), sds=(0.1, 0.2, 0.3), source="a test")
    logs = np.log(error.draw(20_000, np.random.default_rng(1)))
    assert logs.mean(axis=0) == pytest.approx([0.0, -0.5, 0.2], abs=0.01)
    assert logs.std(axis=0) == pytest.approx([0.1, 0.2, 0.3], rel=0.03)
    assert error.draw_with_fit(3, np.random.default_rng(1))[0].tolist() == [1.0, 1.0, 1.0]
    measured = cost_error(load(H100))
    assert all(sd > session for sd, session in zip(measured.sds, session_sds(load(H100)), strict=True))
    # A pass of vLLM's chains is a fifth of their step, one of SGLang's trees half of theirs.
    assert session_sds(load(H100))[2] > 1.5 * session_sds(load(PAPER))[2]
    assert measured.biases == (0.0, 0.0, 0.0)
    assert "another machine, day or engine setting (measured)" in measured.source
    assert cost_error(None).biases == ROOFLINE_BIASES


def test_a_comparison_says_what_moved() -> None:
    old = load(H100)
    same = compare(old, old)
    assert same.about == {}
    assert set(same.factors.values()) == {0.0}
    faster = msgspec.structs.replace(
        old,
        device="another", settings="stock graphs, prefix caching on",
        coefficients=old.coefficients.scaled(1.0, 0.5, 3.0),
    )  # fmt: skip
    moved = compare(old, faster)
    assert set(moved.about) == {"device", "settings"}
    assert moved.factors["target"] == pytest.approx(0.0, abs=1e-9)
    assert moved.factors["kv"] == pytest.approx(np.log(0.5))
    assert moved.factors["drafter"] == pytest.approx(np.log(3.0))
    text = moved.text()
    assert "factor kv: -50.0%, more than sessions differ" in text
    assert "device: one NVIDIA H100 80GB HBM3 -> another" in text
    sampled = compare(old, msgspec.structs.replace(old, notes=("the drafter's own acceptance",)))
    assert sampled.about == {"drafts_accepted": ("at given rates", "by the engine's sampler")}
    with pytest.raises(InputError, match="--compare"):
        compare(old, load(PAPER))
