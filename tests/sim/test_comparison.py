from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.sim.small_world import trace_of
from tlt.sim.advise.advice import BATCHES, advise, contexts_by_batch, write_advice
from tlt.sim.advise.best_draft import candidate_draft_configs
from tlt.sim.advise.sensitivity import write_cost_draws
from tlt.sim.comparison import FINGERPRINT, compare
from tlt.sim.config import resolve
from tlt.sim.policy_set import CHAIN_POLICIES, TREE_POLICIES, policy_set, resolve_policies
from tlt.sim.simulation import Simulation
from tlt.traces.lengths.files import read_trace
from tlt.traces.runs.runfolder import COST_DRAW_COLUMNS, Advice, Comparison, RunFolder, read_struct, run_name
from tltsched.errors import InputError

POLICIES = ["none", "static:8_8_32", "tlt"]
STEPS = 2


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw step times less often than a recommendation does, to save time."""
    monkeypatch.setattr("tlt.sim.advise.advice.TABLE_DRAWS", 60)


def small(**acceptance: Any) -> dict[str, Any]:
    return {
        "hardware": {"gpus": 8},
        "workload": {
            "steps": STEPS,
            "prompts_per_step": 8,
            "samples_per_prompt": 2,
            "max_response_tokens": 600,
        },
        "acceptance": acceptance or {"kind": "published_tree"},
    }


def count(folder: Path, settings: dict[str, Any], policies: list[str] = POLICIES) -> Counter[str]:
    """Run a comparison and return how many steps of each policy it had to simulate."""
    calls: Counter[str] = Counter()
    compare(policy_set(settings, policies), folder, lambda policy, _: calls.update([policy]))
    return calls


def test_every_policy_has_a_folder_and_the_same_lengths(tmp_path: Path) -> None:
    compared = policy_set(small(), POLICIES)
    compare(compared, tmp_path, lambda *_: None)
    listed = read_struct(tmp_path / "comparison.json", Comparison).runs
    assert listed == ("none", "static-8_8_32", "tlt")
    lengths = compared.trace.rows["response_tokens"].tolist()
    assert read_trace(tmp_path / "lengths.parquet").rows["response_tokens"].tolist() == lengths
    for name, policy in zip(listed, POLICIES, strict=True):
        folder = RunFolder(tmp_path / name)
        assert folder.responses()["response_tokens"].tolist() == lengths
        assert folder.summary().policy == policy


def test_a_second_call_does_nothing_and_a_removed_stamp_redoes_one_policy(tmp_path: Path) -> None:
    assert count(tmp_path, small()) == dict.fromkeys(POLICIES, STEPS)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    assert count(tmp_path, small()) == {}
    (tmp_path / "tlt" / FINGERPRINT).unlink()
    assert count(tmp_path, small()) == {"tlt": STEPS}
    assert {path: path.read_bytes() for path in before} == before
    assert count(tmp_path, small() | {"run": {"seed": 1}}) == dict.fromkeys(POLICIES, STEPS)


def test_another_policy_is_added_without_redoing_the_others(tmp_path: Path) -> None:
    count(tmp_path, small(), ["none"])
    assert count(tmp_path, small(), ["none", "tlt"]) == {"tlt": STEPS}


def test_an_policy_that_was_stopped_in_the_middle_is_done_again(tmp_path: Path) -> None:
    def stop(policy: str, step: int) -> None:
        if policy == "tlt":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(policy_set(small(), POLICIES), tmp_path, stop)
    assert not (tmp_path / "comparison.json").exists()
    assert count(tmp_path, small()) == {"tlt": STEPS}


@pytest.mark.parametrize(
    ("policy", "name"),
    [("none", "none"), ("static:4", "static-4"), ("goodput:off+1+2", "goodput-off-1-2"), ("../x", "x"),
     ("...", "policy"), (" a/b ", "a-b")],
)  # fmt: skip
def test_run_names_are_plain_folder_names(policy: str, name: str) -> None:
    assert run_name(policy) == name


@pytest.mark.parametrize("policies", [[], ["none", "none"], ["static:4", "static-4"]])
def test_policies_are_named_once(policies: list[str]) -> None:
    with pytest.raises(InputError, match=r"for --policies; allowed: one policy or more, each once"):
        resolve_policies(small(), policies)


def test_a_set_holds_policies_that_fit_the_workload_alone() -> None:
    with pytest.raises(InputError, match="for draft_config"):
        policy_set(small(), ["none", "static:4"])


def test_policies_that_nobody_named_suit_the_acceptance() -> None:
    assert tuple(resolve_policies(small())) == TREE_POLICIES
    assert tuple(resolve_policies(small(kind="geometric"))) == CHAIN_POLICIES
    assert resolve_policies(small())["tlt"] == resolve(small(), "tlt")


def advice_of(settings: dict[str, Any], seed: int = 0) -> Advice:
    simulation = Simulation(resolve(settings, "none"), trace_of([[n * 50 for n in range(1, 65)]] * 2, 100))
    return advise(simulation, np.random.default_rng(seed))


def test_off_is_advised_where_nothing_gains() -> None:
    advice = advice_of(small(kind="geometric", rate=0.0))
    assert {row.draft_config for row in advice.rows} == {"off"}
    assert {(row.gain, row.gain_low, row.gain_high) for row in advice.rows} == {(1.0, 1.0, 1.0)}


@pytest.mark.parametrize("acceptance", [{}, {"kind": "geometric", "rate": 0.7}])
def test_gains_lie_in_their_intervals_and_beat_the_runner_up(acceptance: dict[str, Any]) -> None:
    settings = small(**acceptance)
    advice = advice_of(settings)
    candidates = {str(each) for each in candidate_draft_configs(resolve(settings, "none"))} | {"off"}
    assert advice.cost_error > 0.0
    assert [row.requests for row in advice.rows] == [batch for batch in BATCHES if batch * 2 <= 64]
    for row in advice.rows:
        assert row.gain_low <= row.gain <= row.gain_high
        assert row.gain >= 1.0
        assert {row.draft_config, row.runner_up} <= candidates
        assert row.draft_config != row.runner_up
    # A single request leaves much to gain, though the one that is left accepts less than the average.
    assert advice.rows[0].gain > 1.2
    alike = advice_of(small(**acceptance, request_spread=0.0))
    assert alike.rows[0].gain > max(1.5, advice.rows[0].gain)
    assert advice == advice_of(settings)


def test_a_drafter_that_lags_gains_less() -> None:
    fresh, stale = (advice_of(small() | {"drafter": {"initial_exponent": e}}) for e in (1.0, 3.0))
    for before, after in zip(fresh.rows, stale.rows, strict=True):
        assert after.gain < before.gain


def test_contexts_fall_with_the_batch() -> None:
    contexts = contexts_by_batch(trace_of([[n * 10 for n in range(1, 65)]], 100), 2)
    assert list(contexts) == [batch for batch in BATCHES if batch * 2 <= 64]
    assert all(low < high for high, low in pairwise(contexts.values()))
    assert contexts[1] == 100 + 620  # two workers: the third-longest response ends the batch of one each


def test_cost_draws_start_with_the_fit(tmp_path: Path) -> None:
    settings = small()
    compared = policy_set(settings, POLICIES)
    compare(compared, tmp_path, lambda *_: None)
    done: list[str] = []
    write_cost_draws(compared, tmp_path, 2, done.append)
    assert done == list(POLICIES)
    draws = pd.read_parquet(tmp_path / "cost_draws.parquet")
    assert list(draws.columns) == list(COST_DRAW_COLUMNS)
    assert len(draws) == 3 * len(POLICIES) * STEPS
    for policy in POLICIES:
        steps = RunFolder(tmp_path / run_name(policy)).steps()
        fit = draws[(draws["draw"] == 0) & (draws["run"] == run_name(policy))]
        assert fit["step_s"].tolist() == (steps["end_s"] - steps["start_s"]).tolist()
        others = draws[(draws["draw"] == 1) & (draws["run"] == run_name(policy))]
        assert others["step_s"].tolist() != fit["step_s"].tolist()
    advice = advice_of(settings)
    write_advice(tmp_path, advice)
    assert read_struct(tmp_path / "advice.json", Advice) == advice


@pytest.mark.parametrize("name", ["steps.parquet", "summary.json", "records.jsonl", "fingerprint.txt"])
@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_a_damaged_run_heals_when_it_is_asked_for_again(tmp_path: Path, name: str, damage: str) -> None:
    """Without the look at its files, a run that was finished once was never made again."""
    assert count(tmp_path, small(), ["none"])["none"] == STEPS
    path = tmp_path / "none" / name
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[:-9] if damage == "cut" else bytes([*whole[:-9], whole[-9] ^ 4, *whole[-8:]]))
    assert count(tmp_path, small(), ["none"])["none"] == STEPS
    assert path.read_bytes() == whole
    assert not count(tmp_path, small(), ["none"]), "a whole run is kept"
