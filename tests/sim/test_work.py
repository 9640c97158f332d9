"""What a simulation takes, in counted work: decisions, events on the clock, calls of functions.

Counts are the same on any machine, however busy. A bound is what was counted and a tenth; what goes above it
has to say why. `python -m benchmarks.revisions OLD NEW` has the seconds.
"""

from __future__ import annotations

import importlib.util
import sys
from types import FrameType
from typing import Any, NamedTuple

import pytest

from tlt.sim.config import resolve
from tlt.sim.model.engines import choice
from tlt.sim.simulation import Simulation
from tlt.sim.workload import load_workload


class Work(NamedTuple):
    """Counted work of one run."""

    decisions: int
    events: int  # on the clock
    calls: int  # of functions, those of libraries included


WORLD: dict[str, Any] = {
    "hardware": {"gpus": 32, "tp": 4},
    "workload": {"steps": 2, "prompts_per_step": 32, "samples_per_prompt": 8},
    "acceptance": {"kind": "published_tree"},
}
BOUNDS = {
    "none": Work(16, 81, 12_416),
    "tlt": Work(452, 153, 110_628),
    "goodput_trees": Work(428, 81, 232_567),
    "tlt@tail_batching": Work(221, 1_493, 181_336),
    "tlt@bounded_async": Work(363, 2_277, 233_928),
    "tlt@divided": Work(803, 3_160, 498_679),
}
COMPILED = {
    "none": Work(16, 81, 11_921),
    "tlt": Work(452, 153, 17_452),
    "goodput_trees": Work(428, 81, 17_491),
    "tlt@tail_batching": Work(221, 1_493, 163_220),
    "tlt@bounded_async": Work(363, 2_277, 206_743),
}
"""The same where the extra `fast` is there; what is compiled counts nothing."""


def work_of(simulation: Simulation) -> Work:
    """Simulate, and count."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        del frame, argument
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        cluster = simulation.run()
    finally:
        sys.setprofile(None)
    return Work(cluster.log.decisions, next(cluster.env._eid), calls)


@pytest.mark.parametrize("policy", BOUNDS)
def test_a_simulation_takes_no_more_work_than_before(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.SWITCH, "0")
    takes_no_more_than(BOUNDS[policy], policy)


@pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="needs the extra `fast`")
@pytest.mark.parametrize("policy", COMPILED)
def test_a_simulation_in_compiled_code_takes_no_more_work_than_before(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(choice.SWITCH, "1")
    takes_no_more_than(COMPILED[policy], policy)


def takes_no_more_than(bound: Work, policy: str) -> None:
    config = resolve(WORLD, policy)
    simulation = Simulation(config, load_workload(config.workload, config.run.seed))
    simulation.run()  # what is worked out once
    found = work_of(simulation)
    above = [name for name, has, most in zip(Work._fields, found, bound, strict=True) if has > 1.1 * most]
    assert not above, f"{found} against {bound}"
