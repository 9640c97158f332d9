"""Schedules that live workers cannot follow are refused before anything runs, and say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.realrun.fakes import config_of
from tlt.realrun.driver.plan import plan_policies
from tlt.realrun.training.plan import plan_training
from tlt.realrun.training_config import TrainConfig
from tltsched.errors import InputError
from tltsched.schedules import PRESETS


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"divided"}))
def test_schedules_run_live(tmp_path: Path, name: str) -> None:
    (plan,) = plan_policies(config_of(tmp_path), [f"static:2@{name}"], None)
    assert plan.spec == PRESETS[name]
    assert plan.setup.workers == (1 if plan.spec.overlaps else 2), "a worker that trains generates nothing"


@pytest.mark.parametrize("name", ["divided", "repack(transfer=true)"])
def test_caches_do_not_move_between_live_engines(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"for schedule; allowed: schedules that prefill what they move"):
        plan_policies(config_of(tmp_path), [f"none@{name}"], None)


@pytest.mark.parametrize("name", ["tail_batching", "longest_first"])
def test_natural_lengths_come_in_their_own_order(tmp_path: Path, name: str) -> None:
    config = config_of(tmp_path, tasks={"random_prompt_tokens": 6}, workload={"max_response_tokens": 40})
    with pytest.raises(InputError, match="at natural lengths"):
        plan_policies(config, [f"none@{name}"], None)


def test_weights_that_nobody_has_are_not_loaded_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"phases\.weight_sync"):
        config_of(tmp_path, phases={"weight_sync": True})  # its weights are random


def test_training_runs_the_synchronous_schedule(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="policies without @SCHEDULE"):
        plan_training(TrainConfig(), ["none@tail_batching"], None)
