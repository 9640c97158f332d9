"""Which policies a live engine takes: all that draft chains and keep the drafter in step."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.realrun.fakes import config_of, flat_times
from tlt.realrun.driver.plan import plan_policies
from tltsched.errors import InputError
from tltsched.policies import PRESETS
from tltsched.policies.base import Policy
from tltsched.step_times import AnyTimes

EVERY_K = {"ks": list(range(9))}


def built(name: str) -> Policy:
    return PRESETS[name].build(Random(0), AnyTimes())  # noqa: S311


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_is_served_if_it_drafts_chains_and_never_drops_the_drafter(
    name: str, tmp_path: Path
) -> None:
    config, policy = config_of(tmp_path, drafter=EVERY_K), built(name)
    if not all(draft.is_chain for draft in policy.draft_configs) or policy.when_off == "drafter_dropped":
        with pytest.raises(InputError, match="--policies"):
            plan_policies(config, (name,), flat_times)
        return
    (plan,) = plan_policies(config, (name,), flat_times)
    assert plan.setup.policy == PRESETS[name]
    assert (plan.setup.step_times is not None) == PRESETS[name].needs_times
    if PRESETS[name].needs_times:
        with pytest.raises(InputError, match="--calibration"):
            plan_policies(config, (name,), None)


def test_a_k_that_is_not_warmed_up_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\[5, 7\], which sglang_ema may choose"):
        plan_policies(config_of(tmp_path), ("sglang_ema",), None)


def test_the_table_of_vllm_is_a_chain_policy(tmp_path: Path) -> None:
    (plan,) = plan_policies(config_of(tmp_path), ("vllm_table:1-4=4+5-20=2+21-64=0",), None)
    assert plan.folder == "vllm_table-1-4-4-5-20-2-21-64-0"
