"""What version 1 of the formats wrote is read as if version 2 had written it."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tltsched
from tlt import analysis, realrun, sim, traces
from tlt.realrun.driver.engine_record import EngineRecord
from tlt.realrun.driver.step import LiveStep
from tlt.realrun.training.checkpoints import Stamp
from tlt.realrun.training_config import TasksConfig, TrainConfig
from tlt.sim.drift import DriftCurve
from tlt.traces.common import migrate
from tlt.traces.common.migrate import decode, upgraded, upgraded_settings
from tlt.traces.common.settings import settings_of
from tlt.traces.results.bounds import Bounds, read_bounds
from tlt.traces.results.calibration_points import MeasuredPoints, Point
from tlt.traces.results.cost_draws import COST_DRAWS, CostDraws
from tlt.traces.results.kstar import KSTAR_COLUMNS
from tlt.traces.results.predicted_training import PredictedTraining
from tlt.traces.results.simulated_replay import SimulatedReplay
from tlt.traces.runs.runfolder import (
    FORMAT_VERSION,
    RESPONSE_COLUMNS,
    Advice,
    Comparison,
    file_of,
    read_struct,
)
from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.event_log import SchedulerSetup
from tltsched.policies.goodput import GoodputConfig
from tltsched.policies.static import StaticConfig
from tltsched.policies.table import TableConfig
from tltsched.policies.threshold import ThresholdConfig

OLD = sorted(migrate.NAMES)
NEW = {name for names in migrate.NAMES.values() for name in names}
REPAIRS = "tlt.realrun.engine.vllm_scheduler"  # holds no struct: its import brings vLLM in and repairs it
OTHER = ("kind", "policy_version", "steps", "threshold_requests", "environment")


def structs() -> list[type[msgspec.Struct]]:
    """Return every struct of the packages that can be imported here."""
    found = []
    for package in (tltsched, traces, sim, analysis, realrun):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name == REPAIRS:
                continue
            try:
                names = vars(importlib.import_module(module.name)).values()
            except ImportError:  # of an extra that is not installed
                continue
            found += [name for name in names if isinstance(name, type) and issubclass(name, msgspec.Struct)]
    return found


def test_no_struct_has_an_old_name_and_every_new_name_is_one_of_a_struct_or_column() -> None:
    fields = {
        field for struct in structs() if struct.__name__ != "_Line" for field in struct.__struct_fields__
    }
    assert fields & set(OLD) == set()
    assert set(KSTAR_COLUMNS) | set(RESPONSE_COLUMNS) | fields >= NEW
    assert NEW.isdisjoint(OLD)
    assert set(migrate.VALUES) < NEW


def test_old_values_and_files_are_not_new_ones_as_well() -> None:
    for values in migrate.VALUES.values():
        assert set(values).isdisjoint(values.values())
    assert set(migrate.TAGS).isdisjoint(migrate.TAGS.values())
    assert set(migrate.FILES).isdisjoint(migrate.FILES.values())


leaves = st.none() | st.integers() | st.sampled_from(["plain", "in_step", "k0", "drafter_fill", "none", "4"])
trees = st.recursive(
    leaves,
    lambda inner: st.dictionaries(st.sampled_from((*OLD, *OTHER)), inner, max_size=5),
    max_leaves=12,
)
tables = st.dictionaries(st.sampled_from((*OLD, *OTHER)), trees, max_size=6)


def keys_of(value: object) -> set[str]:
    if not isinstance(value, dict):
        return set()
    return set(value).union(*map(keys_of, value.values()))


@given(tables)
def test_translating_settings_twice_is_translating_them_once(table: dict[str, Any]) -> None:
    once = upgraded_settings(table)
    assert keys_of(once).isdisjoint(OLD)
    assert upgraded_settings(once) == once
    assert len(once) == len(table)


@given(st.dictionaries(st.sampled_from((*sorted(NEW), *OTHER)), leaves, max_size=8))
def test_what_has_no_old_name_is_left_as_it_is(table: dict[str, Any]) -> None:
    assert upgraded_settings(table) == table
    for struct in (SchedulerSetup, Point, Bounds, LiveStep):
        assert upgraded(table, struct) == table


@given(st.sampled_from(OLD), st.data())
def test_an_old_name_beside_its_new_one_is_an_error_that_names_both(old: str, data: st.DataObject) -> None:
    new = migrate.NAMES[old][0]
    keys = data.draw(st.permutations([old, new, "steps"]))
    with pytest.raises(InputError) as told:
        upgraded_settings({"workload": dict.fromkeys(keys, 1)})
    assert f"workload.{old} and workload.{new}" in str(told.value)
    assert f"keep {new} alone" in str(told.value)


def test_old_keys_of_a_configuration_are_accepted_and_the_last_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text(
        '[workload]\ncap_tokens = 100\nsteps = 2\n[policy]\nkind = "threshold"\nwarmup_cycles = 2\n'
        'threshold_requests = 3\noff_state = "in_step"\n[policy.inner]\nkind = "static"\narm = "4"\n'
        '[calibration]\ncycles_per_repeat = 3\n[workers]\ncount = 2\nexecutor = "local"\n',
        encoding="utf-8",
    )
    expected = {
        "workload": {"max_response_tokens": 100, "steps": 2},
        "policy": {
            "kind": "threshold", "warmup_engine_steps": 2, "threshold_requests": 3, "when_off": "k0",
            "inner": {"kind": "static", "draft_config": "4"},
        },
        "calibration": {"engine_steps_per_repeat": 3},
        "workers": {"count": 2},
    }  # fmt: skip
    assert settings_of(path, ()) == expected
    for name in ("cap_tokens", "max_response_tokens"):
        assert settings_of(path, (f"workload.{name}=7",))["workload"]["max_response_tokens"] == 7


def test_a_configuration_with_both_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "both.toml"
    path.write_text("[workload]\ncap_tokens = 100\nmax_response_tokens = 100\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"workload\.cap_tokens and workload\.max_response_tokens"):
        settings_of(path, ())


STATIC = {"kind": "static", "arm": "4", "off_state": "in_step"}
GOODPUT = {
    "kind": "goodput", "arms": ["off", "2"], "off_state": "dropped", "entry": "drafter_fill",
    "epoch_cycles": 32, "memory_cycles": 500.0, "probe_every_cycles": 9,
}  # fmt: skip
CHAIN = {"depth": 2, "topk": 1, "verify_tokens": 3}


def test_policies_inside_policies_are_translated() -> None:
    threshold = {
        "kind": "threshold", "inner": {"kind": "table", "arms_by_batch": [[1, "4"]], "entry": "none"},
        "threshold_requests": 8, "warmup_cycles": 3, "off_state": "plain", "entry": "reprefill",
    }  # fmt: skip
    old = {"workers": 2, "policy": threshold, "seed": 3}
    policy = decode(json.dumps(old).encode(), SchedulerSetup).policy
    assert isinstance(policy, ThresholdConfig)
    assert policy.warmup_engine_steps == 3
    assert (policy.when_off, policy.resume_cost) == ("not_configured", "reprefill")
    assert policy.inner == TableConfig(draft_configs_by_batch=((1, "4"),))


def test_a_setup_is_translated_once_and_for_all() -> None:
    times = {"arms": [{"arm": CHAIN, "fixed_s": [0.1], "kv_s_per_token": 0.0}]}
    old = {"workers": 2, "policy": GOODPUT, "step_times": times}
    setup = decode(json.dumps(old).encode(), SchedulerSetup)
    assert setup.policy == GoodputConfig(
        draft_configs=("off", "2"), when_off="drafter_dropped", resume_cost="draft_prefill",
        decision_engine_steps=32, memory_request_steps=500.0, probe_every_engine_steps=9,
    )  # fmt: skip
    assert setup.step_times is not None
    assert setup.step_times.draft_configs[0].draft_config == DraftConfig(2, 1, 3)
    again = msgspec.json.encode(setup)
    assert decode(again, SchedulerSetup) == setup
    assert upgraded(msgspec.json.decode(again), SchedulerSetup) == msgspec.json.decode(again)


def test_a_recorded_goodput_has_the_rule_that_it_ran_with() -> None:
    new = msgspec.json.decode(msgspec.json.encode(SchedulerSetup(workers=1, policy=GoodputConfig())))
    assert decode(json.dumps(new).encode(), SchedulerSetup).policy == GoodputConfig()
    old = dict(new["policy"])
    for name in ("by_request", "request_spread", "request_memory_steps"):
        del old[name]
    recorded = decode(json.dumps(new | {"policy": old}).encode(), SchedulerSetup).policy
    assert recorded == GoodputConfig(by_request=False)
    written = {"kind": "goodput", "draft_configs": ["off", "2"]}  # a user's own: today's rule
    assert decode(json.dumps(new | {"policy": written}).encode(), SchedulerSetup).policy == GoodputConfig(
        draft_configs=("off", "2")
    )


def test_an_arm_is_a_draft_configuration_or_a_policy_as_the_file_has_it() -> None:
    stamp = {
        "config": {"rollout": {"cap_tokens": 77}},
        "arm": {
            "name": "static:4", "folder": "static-4", "speculating": True,
            "setup": {"workers": 1, "policy": STATIC},
        },
    }  # fmt: skip
    read = decode(json.dumps(stamp).encode(), Stamp)
    assert read.config.rollout.max_response_tokens == 77
    assert read.policy.setup.policy == StaticConfig(draft_config="4", when_off="k0")
    bounds = decode(b'{"format_version": 1, "workers": 2, "arms": ["4"], "rows": []}', Bounds)
    assert bounds == Bounds(workers=2, draft_configs=("4",), rows=())
    assert bounds.format_version == FORMAT_VERSION
    row = {
        "requests": 1, "context_tokens": 5.0, "arm": "3", "gain": 1.1, "gain_low": 1.0, "gain_high": 1.2,
        "runner_up": "2", "may_flip": False, "extrapolated": False,
    }  # fmt: skip
    advice = json.dumps({"cost_error": 0.1, "cost_error_source": "x", "rows": [row]})
    assert decode(advice.encode(), Advice).rows[0].draft_config == "3"


def test_the_results_of_simulating_a_run_again_speak_of_policies() -> None:
    ranges = {"batch": [1, 8], "draft_batch": [1, 8], "context_tokens": [1.0, 9.0], "held_tokens": 72.0}
    replay = {
        "calibration": "c", "engine": "vLLM", "engine_version": "1", "device": "d", "date": "2026-01-01",
        "step_time_error": 0.01, "calibrated": ranges, "acceptance_source": "not used",
        "acceptance_steps": [], "arms": [{"run": "none", "same_placement": True, "break_even_length": None}],
    }  # fmt: skip
    assert decode(json.dumps(replay).encode(), SimulatedReplay).policies[0].run == "none"
    fit = {
        "steps": [0], "survival_by_position": [], "drift": None, "no_drift_because": "no drafts",
        "medians": [],
    }  # fmt: skip
    arm = {"run": "none", "arm": "none", "fit": fit, "steps": [], "errors": [], "same_placement": True}
    told = {"calibration": "c", "step_time_error": 0.01, "arms": [arm], "warnings": []}
    assert decode(json.dumps(told).encode(), PredictedTraining).policies[0].policy == "none"


def test_a_drift_curve_and_raw_points_are_translated() -> None:
    drift = msgspec.json.decode((Path(sim.__path__[0]) / "drifts/smollm2-135m-h200.json").read_bytes())
    old = {("arm" if name == "policy" else name): value for name, value in drift.items()}
    assert old != drift
    assert decode(json.dumps(old).encode(), DriftCurve) == msgspec.convert(drift, DriftCurve)
    point = {
        "provenance": "measured", "off_state": "plain", "arm": CHAIN, "batch": 4, "context_tokens": 9.0,
        "cycle_s": 0.1,
    }  # fmt: skip
    measured = {
        "name": "n", "engine": "vLLM", "engine_version": "1", "device": "d", "date": "2026-01-01",
        "model": "m", "tp": 1, "licence": "l", "notes": [], "graph_tokens": None, "graph_batches": [],
        "chunk_tokens": 8192,
        "points": [point], "prefill_points": [], "compiled_cycles": 2,
    }  # fmt: skip
    read = decode(json.dumps(measured).encode(), MeasuredPoints)
    assert read.compiled_engine_steps == 2
    assert read.points[0] == Point(
        provenance="measured", when_off="not_configured", draft_config=DraftConfig(2, 1, 3), batch=4,
        context_tokens=9.0, engine_step_s=0.1,
    )  # fmt: skip


def test_names_that_a_user_chose_stay(tmp_path: Path) -> None:
    record = {
        "engine": "vLLM", "engine_version": "1", "device": "d", "torch": "2", "date": "2026-01-01",
        "environment": {"arm": "plain", "cycles": "in_step"}, "warm_up_s": 1.0,
        "config": {
            "workload": {"cap_tokens": 9}, "calibration": {"cycles_per_repeat": 4},
            "workers": {"count": 3, "executor": "local"},
        },
    }  # fmt: skip
    read = decode(json.dumps(record).encode(), EngineRecord)
    assert read.config.workers.count == 3
    assert read.environment == record["environment"]
    assert read.config.workload.max_response_tokens == 9
    assert read.config.calibration.engine_steps_per_repeat == 4
    path = tmp_path / "config.json"  # of a model: no file of ours
    path.write_text('{"arm": 1, "cycles": {"entry": 2}}', encoding="utf-8")
    assert read_struct(path, dict[str, Any]) == {"arm": 1, "cycles": {"entry": 2}}


RUNS = Path(__file__).resolve().parents[2] / "evidence" / "runs"


def test_the_problem_families_of_a_training_run_are_those_of_a_module_now() -> None:
    settings = RUNS / "h200-smollm2-train" / "natural" / "none" / "resolved_config.json"
    text = settings.read_bytes()
    assert {"tasks", "warm_up"} <= set(json.loads(text))
    config = decode(text, TrainConfig)
    assert config.tasks.module == "examples/rl_smollm2/problems.py"
    families = ["chain_sum", "basic_arithmetic", "simple_equations", "products", "collatz"]
    assert config.tasks.settings == {
        "names": families, "difficulty_smallest": 3, "difficulty_largest": 200, "difficulty_tail": 0.4,
    }  # fmt: skip
    assert decode(msgspec.json.encode(config), TrainConfig) == config


@pytest.mark.parametrize("other", [{"prompts": "own.jsonl"}, {"random_prompt_tokens": 8}])
def test_families_that_were_not_asked_are_forgotten(other: dict[str, Any]) -> None:
    unused = {"names": ["collatz"], "difficulty_tail": 0.4, "prompts": "", "random_prompt_tokens": 0}
    assert decode(msgspec.json.encode(unused | other), TasksConfig) == TasksConfig(**other)


@pytest.mark.parametrize(("version", "is_read"), [(1, True), (2, True), (3, False), (99, False)])
def test_a_newer_version_is_refused(tmp_path: Path, version: int, is_read: bool) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(f'{{"format_version": {version}, "name": "x", "runs": ["a"]}}', encoding="utf-8")
    if is_read:
        assert read_struct(path, Comparison) == Comparison(name="x", runs=("a",))
        return
    with pytest.raises(InputError) as told:
        read_struct(path, Comparison)
    assert f"got {version} for format_version of {path}; allowed: 1 to 2; a newer tool wrote it" in str(
        told.value
    )


def test_a_json_file_that_is_missing_or_of_another_form_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a folder with comparison\.json"):
        read_struct(tmp_path / "comparison.json", Comparison)
    for text in (
        '{"name": "x"}',
        "[1]",
        '{"name": "x", "runs": 3}',
        "{",
        '{"runs": [], "name": "x", "arm": 1}',
    ):
        (tmp_path / "comparison.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=r"for comparison\.json; allowed: Comparison"):
            read_struct(tmp_path / "comparison.json", Comparison)


def test_a_file_under_its_old_name_is_found_and_one_under_the_new_name_goes_first(tmp_path: Path) -> None:
    path = tmp_path / COST_DRAWS
    assert file_of(path) == path
    old = tmp_path / "posterior.json"
    old.write_text('{"format_version": 1, "cost_error": 0.5, "cost_error_source": "x", "probe_steps": 2}')
    assert file_of(path) == old
    assert read_struct(path, CostDraws).cost_error == 0.5
    path.write_text('{"format_version": 2, "cost_error": 0.1, "cost_error_source": "x", "probe_steps": 2}')
    assert read_struct(path, CostDraws).cost_error == 0.1
    assert read_bounds(tmp_path) is None
