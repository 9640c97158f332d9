"""Live workers take requests when a step begins; schedules that need more are refused."""

from __future__ import annotations

import pytest

from tlt.realrun.driver.start import check_schedule
from tltsched.cluster_config import ClusterConfig
from tltsched.errors import InputError
from tltsched.schedules import PRESETS


def test_synchronous_rollouts_run_live() -> None:
    check_schedule(ClusterConfig())


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"synchronous"}))
def test_other_schedules_are_to_be_simulated(name: str) -> None:
    with pytest.raises(InputError, match=rf"got '{name}' for cluster\.schedule; allowed: synchronous"):
        check_schedule(ClusterConfig(schedule=name))
