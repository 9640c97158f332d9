"""Drafters that are no head of one layer: what they cost, and where their drafts come from."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.sim.test_exports import CHAINS
from tlt.sim.config import Config, resolve
from tlt.sim.model.drafter import DrafterConfig
from tlt.sim.simulation import Simulation, calibration_of, coefficients_of
from tlt.sim.steptimes.errors import ROOFLINE_SDS
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.workload import load_workload
from tlt.sim.write_run import _calibration_warnings
from tlt.traces.common.settings import merge
from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError

BANDWIDTH = 3350e9 * 0.8  # H100, as the roofline assumes it
HOST_S = 0.035e-3  # of a pass: measured, vLLM 0.32
HEAD_S = 152_064 * 3584 * 2 / BANDWIDTH  # the target's output head: 0.41 ms


def config(**drafter: Any) -> Config:
    return resolve(merge(CHAINS, {"drafter": drafter}), "static:4")


def law(**drafter: Any) -> Coefficients:
    resolved = config(**drafter)
    return coefficients_of(resolved, calibration_of(resolved))


def drafting_s(some: Coefficients, k: int, batch: int = 1) -> float:
    """Return what drafting adds to the target's verification and its sampling."""
    whole = float(some.fixed_s(chain(k), "not_configured", np.float64(batch)))
    x = batch * (k + 1)
    return whole - float(some.target_s(np.float64(x))) - some.draft_s_per_token * x


def test_a_pass_of_an_mtp_module_is_a_layer_of_the_target_and_its_output_head() -> None:
    some, plain = law(kind="mtp"), law()
    layer_s = float(plain.target_s(np.float64(1))) / 28
    one = 2 * 3584**2 * 2 / BANDWIDTH + HEAD_S + HOST_S + layer_s
    assert drafting_s(some, 1) == pytest.approx(one, rel=1e-6)
    assert drafting_s(some, 4) == pytest.approx(4 * one, rel=1e-6)
    off = float(some.fixed_s(OFF, "k0", np.float64(1)) - some.fixed_s(OFF, "not_configured", np.float64(1)))
    assert off == pytest.approx(one, rel=1e-6), "K = 0 still runs the module once"
    slow = some.scaled(1.0, 1.0, 2.0)
    assert drafting_s(slow, 3) == pytest.approx(
        2 * drafting_s(some, 3) + some.draft_s_per_token * 4, rel=1e-6
    )


def test_a_block_is_drafted_in_one_pass() -> None:
    some = law(kind="block", block_layers=2)
    assert drafting_s(some, 8) == pytest.approx(drafting_s(some, 1), rel=1e-9)
    per_token = some.context_s_per_token(chain(8), "not_configured")
    assert some.kv_s_per_verified_token * 8 + some.kv_s_per_token * (1 + 2 / 28) == pytest.approx(per_token)
    assert some.passes(chain(8)) == 1
    assert law().passes(chain(8)) == 8
    more = some.draft_s_per_token - law().draft_s_per_token
    assert more > 0, "but each of its tokens is multiplied with all layers"


def test_a_draft_model_takes_a_plain_step_of_its_own_each_pass() -> None:
    some = law(kind="draft_model", model="Qwen2.5-0.5B")
    read = 24 * (896 * 64 * (2 * 14 + 2 * 2) + 3 * 896 * 4864) + 151_936 * 896
    one = read * 2 / BANDWIDTH + 24 * 25e-6 + HOST_S
    assert drafting_s(some, 4) == pytest.approx(4 * one, rel=1e-6)
    assert some.drafter_kv_share == pytest.approx(24 * 2 * 64 / (28 * 4 * 128))
    with pytest.raises(InputError, match=r"a model with drafter\.kind"):
        DrafterConfig(kind="draft_model")
    with pytest.raises(InputError, match="leave it out"):
        DrafterConfig(model="Qwen2.5-0.5B")
    with pytest.raises(InputError, match=r"drafter\.model"):
        law(kind="draft_model", model="none-such")


@pytest.mark.parametrize("kind", ["mtp", "block"])
def test_another_drafter_is_told_as_assumed_and_widens_the_error(kind: str) -> None:
    resolved = config(kind=kind)
    world = Simulation(resolved, load_workload(resolved.workload, 0))
    assert any(
        text.startswith("assumed: ") and "(drafter.kind)" in text for text in _calibration_warnings(world)
    )
    assert world.cost_error().sds[2] >= ROOFLINE_SDS[2]
    assert world.cost_error().source.endswith("the drafter's cost is assumed")
    head = config()
    plain = Simulation(head, load_workload(head.workload, 0))
    assert world.cost_error().sds[:2] == plain.cost_error().sds[:2]


def test_ngrams_are_found_in_the_requests_own_text_from_the_first_step_on() -> None:
    given = {
        "hit_rate": 0.3,
        "survival_by_position": (0.8, 0.5),
        "first_epoch_steps": 3,
        "group_hit_rate": 0.1,
    }
    history = config(kind="history", history=given).drafter
    own = config(kind="ngram", history=given).drafter
    assert history.model_free is not None
    assert own.model_free is not None
    assert (history.model_free.first_epoch_steps, own.model_free.first_epoch_steps) == (3, 0)
    resolved = config(kind="ngram", history=given)
    world = Simulation(resolved, load_workload(resolved.workload, 0))
    assert world.law.source == "assumed: drafts out of the request's own text, a match in 30% of engine steps"
    assert world.law.survival(chain(2)).tolist() == pytest.approx([0.24, 0.15])
    assert world.costs.switch_s("reprefill", 1e5, 1e9) == 0.0, "no drafter has a cache to rebuild"
    rows = msgspec.structs.replace(resolved, drafter=own)
    assert rows.drafter.model_free == own.model_free
