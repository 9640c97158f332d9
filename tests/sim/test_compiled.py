"""Compiled code and rollouts computed at once change no bit of a result."""

from __future__ import annotations

import importlib.util
import sys
from array import array
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tlt.sim.config import resolve
from tlt.sim.model.cluster import Cluster
from tlt.sim.model.draft_counts import DraftCounts
from tlt.sim.model.engines import choice
from tlt.sim.model.engines.engine import Stretch
from tlt.sim.model.engines.jump_engine import JumpEngine
from tlt.sim.model.engines.running_batch import RequestPool
from tlt.sim.model.run_ahead import RunAhead
from tlt.sim.simulation import Simulation
from tlt.sim.workload import load_workload
from tltsched.event_log import Recorder
from tltsched.policies.estimators.arithmetic import PLAIN, Arithmetic
from tltsched.policies.estimators.exponents import Exponents
from tltsched.policies.estimators.histories import GONE, NEW

WORLD: dict[str, Any] = {
    "hardware": {"gpus": 16, "tp": 4},
    "workload": {"steps": 2, "prompts_per_step": 8, "samples_per_prompt": 8, "max_response_tokens": 4096},
    "acceptance": {"kind": "published_tree"},
}
POLICIES = ("none", "static:8_8_16", "tlt", "goodput_trees", "tlt_released", "tlt_table")
SCHEDULES = ("tail_batching", "bounded_async", "divided", "repack", "oversample_partial")
needs_numba = pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="needs the extra `fast`")


def simulation(policy: str, queues: bool = False) -> Simulation:
    settings = WORLD | ({"engine": {"max_running": 6}} if queues else {})
    config = resolve(settings, policy)
    return Simulation(config, load_workload(config.workload, config.run.seed))


def assert_alike(one: Cluster, other: Cluster) -> None:
    for here, there in zip(one.tables(), other.tables(), strict=True):
        pd.testing.assert_frame_equal(here, there, check_exact=True)
    assert one.log.schedule_rows == other.log.schedule_rows
    assert one.log.decisions == other.log.decisions


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("queues", [False, True])
def test_a_rollout_computed_at_once_is_the_one_on_the_clock(policy: str, queues: bool) -> None:
    made = simulation(policy, queues)
    on_the_clock = made.run(Recorder(lambda _: None), counts=DraftCounts())
    at_once = made.run(counts=DraftCounts())
    assert_alike(at_once, on_the_clock)
    pd.testing.assert_frame_equal(at_once.draft_table(), on_the_clock.draft_table(), check_exact=True)
    assert next(at_once.env._eid) < next(on_the_clock.env._eid), "fewer events"


@pytest.mark.slow
@needs_numba
def test_compiled_code_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    arms = [
        *POLICIES,
        *(f"{policy}@{schedule}" for policy in ("tlt", "goodput_trees") for schedule in SCHEDULES),
    ]
    for policy in arms:
        for queues in (False, True):
            found = []
            for switch in ("0", "1"):
                monkeypatch.setenv(choice.SWITCH, switch)
                lines: list[bytes] = []
                counts = DraftCounts()
                cluster = simulation(policy, queues).run(Recorder(lines.append), counts=counts)
                found.append((b"".join(lines), cluster, cluster.draft_table()))
            assert found[0][0] == found[1][0], policy
            assert_alike(found[0][1], found[1][1])
            pd.testing.assert_frame_equal(found[0][2], found[1][2], check_exact=True)


@needs_numba
@pytest.mark.parametrize(
    "fields",
    [
        {"draft_configs": ["off", "4_4_16", "8_4_24", "8_4_48"]},
        {"draft_configs": ["off", "8_4_24"], "decision_engine_steps": 20, "switch_cost_s": 0.05},
        {}, {"switch_cost_s": 0.05}, {"hysteresis": 0.0}, {"probe_every_engine_steps": 200},
        {"by_request": False}, {"decision_engine_steps": 15}, {"decision_engine_steps": 16},
        {"draft_configs": ["1", "3", "8"], "acceptance_prior": [0.5, 0.3], "hysteresis": 0.0},
        {"draft_configs": ["8_4_24", "off", "4_4_16"], "tree_prior": {"8_4_24": 4.0}},
    ],
)  # fmt: skip
@pytest.mark.parametrize(("spread", "running"), [(0.0, 256), (0.5, 256), (0.5, 5)])
def test_a_policy_that_goes_on_in_compiled_code_decides_as_it_does_by_events(
    fields: dict[str, Any], spread: float, running: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = any("_" in text for text in fields.get("draft_configs", ()))
    settings = WORLD | {
        "policy": {"kind": "goodput"} | fields,
        "workload": WORLD["workload"] | {"steps": 3, "prompts_per_step": 4, "max_response_tokens": 16384},
        "acceptance": {"kind": "published_tree" if trees else "geometric", "request_spread": spread},
        "engine": {"max_running": running},
    }
    config = resolve(settings)
    made, found = Simulation(config, load_workload(config.workload, config.run.seed)), []
    told = intervals_passed(monkeypatch)
    ways = (("0", Recorder(lambda _: None), DraftCounts()), ("1", None, DraftCounts()), ("1", None, None))
    for switch, recorder, counts in ways:
        monkeypatch.setenv(choice.SWITCH, switch)
        found.append(made.run(recorder, counts=counts))
    assert_alike(found[0], found[1])
    assert_alike(found[0], found[2])
    eligible = fields.get("by_request", True) and not fields.get("probe_every_engine_steps")
    eligible = eligible and fields.get("decision_engine_steps", 64) >= 16
    most = 1.9 if running > 5 else 0.5  # of two runs; those in which requests wait do not count
    assert (sum(told) > most * found[0].log.decisions) if eligible else not sum(told)
    pd.testing.assert_frame_equal(found[0].draft_table(), found[1].draft_table(), check_exact=True)


BANDITS: list[dict[str, Any]] = [
    {"window": 5, "epsilon": 0.5, "decision_engine_steps": 7},
    {"window": 1, "epsilon": 0.0, "decision_engine_steps": 64},
    {"thresholds": [1], "strategies": ["8_8_16", "6_8_16", "4_8_16"], "epsilon": 1.0},
    {"thresholds": [1, 2], "strategies": ["8_8_32", "8_8_16", "4_8_16"], "decision_engine_steps": 1},
]


@needs_numba
@pytest.mark.parametrize("fields", BANDITS)
@pytest.mark.parametrize(
    "around",
    [None, {}, {"latch": True, "threshold_requests": 9}, {"warmup_engine_steps": 0}, {"when_off": "k0"}],
)
def test_a_bandit_in_compiled_code_decides_as_the_pure_one(
    fields: dict[str, Any], around: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"strategies": ["10_8_64", "8_8_64", "8_8_32", "8_8_16", "4_8_16"], "thresholds": [1, 3, 8]}
    policy = {"kind": "beg_mab"} | usual | fields
    if around is not None:
        policy = {"kind": "threshold", "inner": policy} | around
    settings = WORLD | {
        "policy": policy,
        "workload": WORLD["workload"] | {"steps": 2, "max_response_tokens": 16384},
        "acceptance": {"kind": "published_tree", "request_spread": 0.5},
        "engine": {"max_running": 6 if around else 256},  # the rest of a rollout, or all of it
    }
    config = resolve(settings)
    made, found = Simulation(config, load_workload(config.workload, config.run.seed)), []
    told = intervals_passed(monkeypatch)
    for switch, counts in (("0", None), ("1", None), ("1", DraftCounts())):
        monkeypatch.setenv(choice.SWITCH, switch)
        found.append(made.run(counts=counts))
    assert_alike(found[0], found[1])
    assert_alike(found[0], found[2])
    assert sum(told) > 0.6 * found[0].log.decisions, "intervals of two runs"


@needs_numba
@pytest.mark.parametrize("kv", ["recompute", "stale"])
def test_compiled_code_takes_a_drafter_that_changes_in_mid_rollout(
    kv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = {"kind": "bounded_async", "kv": kv}
    settings = WORLD | {
        "cluster": {"phases": ["policy_update", "weight_sync"], "schedule": schedule},
        "engine": {"max_running": 6}, "drafter": {"drift_per_update": 0.3},
        "workload": WORLD["workload"] | {"steps": 4},
    }  # fmt: skip
    config, found = resolve(settings, "static:8_8_16"), []
    for switch in ("0", "1"):
        monkeypatch.setenv(choice.SWITCH, switch)
        made = Simulation(config, load_workload(config.workload, config.run.seed))
        found.append(made.run(counts=DraftCounts()))
    assert_alike(*found)


@pytest.mark.slow
@needs_numba
def test_sums_and_draws_are_those_of_numpy() -> None:
    from tlt.sim.model.engines.compiled import numbers

    rng = np.random.default_rng(1)
    for n in (0, 1, 7, 8, 9, 100, 128, 129, 136, 137, 300, 1000, 5001, 20_000):
        values = rng.standard_normal(n) * 10.0 ** rng.integers(-8, 8, n)
        assert numbers.pairwise(values, n) == values.sum(), n
    here, there = np.random.default_rng(2), np.random.default_rng(2)
    state = numbers.address_of(there)
    chance = np.array([0.5, 0.25, 0.125, 0.125])
    for n in (1, 3, 50, 2000):
        assert numbers.normals(state, n).tolist() == here.standard_normal(n).tolist()
        assert numbers.uniforms(state, n).tolist() == here.random(n).tolist()
        assert numbers.multinomial(state, n, chance).tolist() == here.multinomial(n, chance).tolist()
    keys = rng.integers(0, 5, 70)
    for n in (1, 20, 70):
        assert numbers.rank(keys[:n]).tolist() == keys[:n].argsort(kind="stable").tolist()


def intervals_passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the intervals of each stretch that no scheduler is told of."""
    passed, plain = list[int](), RunAhead._pass

    def spied(ahead: RunAhead, stretch: Stretch, pool: RequestPool) -> None:
        passed.append(stretch.intervals)
        plain(ahead, stretch, pool)

    monkeypatch.setattr(RunAhead, "_pass", spied)
    return passed


def tokens_of(does: Arithmetic, hazard: float, depth: int, nodes: tuple[float, ...]) -> list[float]:
    """Return the tokens of two trees and of chains of up to three."""
    trees, chains = array("d", (0.0, 0.0)), array("d", (0.0, 0.0, 0.0))
    does.tokens_of_trees(array("d", (hazard, 2 * hazard)), array("q", (depth, 1)), nodes, trees)
    does.tokens_of_chains(array("d", (hazard, 2 * hazard, 3 * hazard)), nodes, chains)
    return [*trees, *chains]


def learned(does: Arithmetic, estimate: float, accepted: int, hazards: list[float]) -> list[float]:
    """Return what is known of four requests: one that is done, one that had no drafts, one known, one new."""
    known, after = array("d", (0.5, 0.2, 3.0, 1.5, estimate, 0.1, 5.0, 5.0 * estimate)), array("d", bytes(96))
    rows, steps = array("q", (GONE, 0, 1, NEW)), array("q", (7, 0, 64, 100))
    told = array("q", (7, 0, accepted, accepted))
    sums = does.learn(rows, steps, told, known, after, array("d", hazards), 100.0, 0.25)
    weighed = does.weigh(rows, steps, known)
    return [*sums, *after, *weighed, *does.weigh(array("q", (0, 1)), array("q", (3, 4)), known)]


@pytest.mark.slow
@needs_numba
def test_estimates_are_those_of_the_plain_functions() -> None:
    from tlt.sim.model.engines.compiled.policies import ARITHMETIC

    rng = np.random.default_rng(3)
    for _ in range(2000):
        nodes = Exponents(rng.normal(0, 0.5), rng.uniform(0, 1)).nodes()
        share, hazard, depth = rng.uniform(0, 1), float(rng.exponential()), int(rng.integers(1, 17))
        for does in (PLAIN, ARITHMETIC):
            found = [
                does.hazard_of(share, nodes, hazard),
                does.mean_survival(hazard, nodes),
                does.hazard_of_accepted(share * depth, depth, nodes, hazard),
                does.mean_accepted(hazard, depth, nodes),
                *tokens_of(does, hazard, depth, nodes),
                *learned(does, share, int(100 * share), [hazard, 2 * hazard]),
            ]
            if does is PLAIN:
                expected = found
        assert found == expected


def test_without_numba_everything_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tlt.sim.model.engines.compiled")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setenv(choice.SWITCH, "1")
    assert choice.jump_engine(10**9) is JumpEngine


def test_short_runs_do_not_load_what_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(choice.SWITCH, raising=False)
    monkeypatch.setattr(choice, "_met", 0)
    assert choice.jump_engine(choice.PAYS_FROM - 1) is JumpEngine
