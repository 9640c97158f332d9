"""A whole search, small: what it finds, what it leaves behind, and that it repeats itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tlt.commands.sim.plan import prices_of, refuse_alone
from tlt.sim.advise.sensitivity import PROBE, PROBED
from tlt.sim.config import resolve
from tlt.sim.parallel.executors import SERIAL, executor
from tlt.sim.parallel.timing import simulate_all
from tlt.sim.search.search import Planner, SearchResult, Task
from tlt.sim.search.space import Space, candidates
from tlt.sim.search.successive_halving import halve
from tlt.sim.search.unknowns import MOVED, inputs_of, probes
from tlt.sim.search.write import write_files
from tlt.sim.workload import load_workload
from tlt.traces.results.plan import PLAN_COLUMNS, PlanFiles, read_plan
from tlt.traces.runs.runfolder import Advice, Comparison, RunFolder, read_struct
from tltsched.errors import InputError

JOB: dict[str, Any] = {
    "hardware": {"gpus": 4, "tp": 1, "model": "Qwen2.5-7B"},
    "cost": {"source": "vllm-0.32-h100-qwen2.5-7b"},
    "workload": {"steps": 2, "prompts_per_step": 8, "samples_per_prompt": 4, "max_response_tokens": 1500},
    "acceptance": {"kind": "geometric", "rate": 0.7},
    "run": {"records": False},
}
SPACE = Space(
    gpus_budget=4, gpus=("H100", "L40"), tp=(1, 2), engines=(), schedules=("synchronous", "bounded_async"),
    policies=("none", "static:2", "static:4"),
)  # fmt: skip


def quiet(*_: object) -> None:
    pass


def searched(space: Space = SPACE, settings: dict[str, Any] = JOB, **prices: float) -> SearchResult:
    base = resolve(settings, "none")
    trace = load_workload(base.workload, base.run.seed)
    task = Task(space=space, prices=prices, trace=trace, seed=base.run.seed)
    return Planner(task, SERIAL, quiet).search(*candidates(settings, space, trace))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchResult, Path]:
    out, result = tmp_path_factory.mktemp("plan"), searched()
    write_files(result, out, quiet)
    return result, out


def test_the_plan_lists_every_design(found: tuple[SearchResult, Path]) -> None:
    _, out = found
    files = read_plan(out)
    assert len(files.designs) == len(SPACE.designs()) == files.designs["design"].nunique()
    assert list(files.designs.columns) == list(PLAN_COLUMNS)
    assert files.plan.rounds[0].designs == len(files.designs) - len(
        files.designs.query("stage == 'left out'")
    )
    assert [each.steps for each in files.plan.rounds] == [1, 2]
    assert (files.designs.query("stage != 'finalist'")["reason"] != "").all()


def test_the_best_is_the_fastest_of_those_that_ran_all_steps(found: tuple[SearchResult, Path]) -> None:
    files = read_plan(found[1])
    whole = files.designs[files.designs["steps"] == 2]
    assert files.plan.best == whole.loc[whole["step_s"].idxmin(), "design"]
    assert files.plan.ratio is not None
    assert files.plan.ratio >= 1.0
    finalists = files.designs.query("stage == 'finalist'")
    assert {files.plan.best, files.plan.runner_up, files.plan.best_on_policy} <= set(finalists["design"])
    assert ((finalists["low"] <= finalists["step_s"]) & (finalists["step_s"] <= finalists["high"])).all()
    assert {"H100", "L40"} >= set(finalists["gpu"])


def test_finalists_are_a_comparison_with_advice(found: tuple[SearchResult, Path]) -> None:
    search, out = found
    runs = read_struct(out / "comparison.json", Comparison).runs
    files = read_plan(out)
    finalists = files.designs.query("stage == 'finalist'").set_index("run")
    assert set(runs) == set(finalists.index)
    first, raw_s = finalists.loc[runs[0]], finalists["raw_step_s"].to_dict()
    assert (first["policy"], first["schedule"]) == ("none", "synchronous"), "the reference"
    for name in runs:
        steps = RunFolder(out / name).steps()
        assert (steps["end_s"] - steps["start_s"]).mean() == pytest.approx(raw_s[name])
    assert read_struct(out / "advice.json", Advice).rows
    drawn = pd.read_parquet(out / "cost_draws.parquet")
    assert set(drawn["run"]) == set(runs)
    assert (out / "bounds.json").is_file()
    assert search.finalists[0].candidate.design.policy == "none"


def test_a_step_of_the_workload_is_what_synchronous_training_takes(found: tuple[SearchResult, Path]) -> None:
    table = read_plan(found[1]).designs
    whole = table[(table["steps"] == 2) & (table["schedule"] == "synchronous")]
    assert whole["step_s"].tolist() == pytest.approx(whole["raw_step_s"].tolist())


def test_the_same_search_gives_the_same_files(found: tuple[SearchResult, Path], tmp_path: Path) -> None:
    _, out = found
    write_files(searched(), tmp_path, quiet)
    for name in ("plan.json", "plan.parquet", "cost_draws.parquet", "advice.json"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes(), name


def test_prices_turn_seconds_into_dollars() -> None:
    space = Space(gpus_budget=4, gpus=("H100", "H200"), tp=(1,), engines=(2, 4),
                  schedules=("synchronous",), policies=("none", "static:4"))  # fmt: skip
    result = searched(space, H100=2.0, H200=2000.0)
    decision = result.decision
    best = result.finalists[decision.best]
    assert best.candidate.design.gpu == "H100"
    seconds = float(best.timing.step_s.mean())
    gpus = best.candidate.design.gpus
    assert decision.objective[decision.best] == pytest.approx(seconds * gpus * 2.0 / 3600)
    with pytest.raises(InputError, match="add H200"):
        searched(space, H100=2.0)


def test_a_budget_that_holds_nothing_says_why() -> None:
    tight = JOB | {"hardware": {"model": "Llama-3.3-70B"}}
    space = Space(gpus_budget=1, gpus=("H100",), tp=(1,), engines=(), schedules=("synchronous",),
                  policies=("none",))  # fmt: skip
    with pytest.raises(InputError, match="tokens of KV cache"):
        searched(space, tight)


def test_only_on_policy_schedules_remain() -> None:
    space = Space(gpus_budget=4, gpus=("H100",), tp=(1,), engines=(), policies=("none", "static:4"),
                  schedules=("synchronous", "bounded_async"), only_on_policy=True)  # fmt: skip
    assert {each.candidate.on_policy for each in searched(space).tried} == {"yes"}


def test_designs_compete_inside_their_schedule_first(found: tuple[SearchResult, Path]) -> None:
    search, _ = found
    whole = {each.candidate.design.schedule for each in search.tried if each.steps == 2}
    assert whole == {"synchronous", "bounded_async"}
    hardware = {each.candidate.design.hardware for each in search.tried if each.steps == 2}
    assert hardware == {each.candidate.design.hardware for each in search.tried}


@pytest.mark.slow
def test_processes_give_the_same_timings(found: tuple[SearchResult, Path]) -> None:
    simulations = [each.candidate.simulation for each in found[0].finalists[:2]]
    with executor("processes", 2) as processes:
        here, there = (simulate_all(simulations, each) for each in (SERIAL, processes))
    for one, other in zip(here, there, strict=True):
        assert one.step_s.tolist() == other.step_s.tolist()
        assert one.tokens.tolist() == other.tokens.tolist()


def test_every_probe_moves_what_it_says(found: tuple[SearchResult, Path]) -> None:
    search, _ = found
    drafting = next(each.candidate for each in search.finalists if each.candidate.design.policy != "none")
    inputs = inputs_of([drafting])
    asked = probes(drafting, inputs, search.task.trace)
    assert {part for _, part in asked} == set(MOVED)
    base = drafting.config
    changed = {part: simulation for (_, part), simulation in asked.items()}
    assert changed["reward"].config.phases.reward_s == pytest.approx(base.phases.reward_s * (1 + PROBE))
    assert changed["acceptance"].config.acceptance.rate == pytest.approx(0.7 ** (1 + PROBE))
    assert changed["drift"].config.drafter.drift_per_update == pytest.approx(0.01)
    assert changed["phases"].config.phases.training_efficiency < base.phases.training_efficiency
    fitted = drafting.simulation.coefficients
    assert changed["target"].coefficients == fitted.scaled(PROBED, 1.0, 1.0)
    assert changed["kv"].coefficients == fitted.scaled(1.0, PROBED, 1.0)
    assert changed["drafter"].coefficients == fitted.scaled(1.0, 1.0, PROBED)
    assert changed["reward"].coefficients == fitted
    responses = search.judged[0].response
    assert all(np.isfinite(value) for value in responses.values())


def test_halving_runs_few_designs_on_all_steps(found: tuple[SearchResult, Path]) -> None:
    search, _ = found
    calls: list[int] = []

    def simulate(simulations: Any) -> Any:
        calls.append(len(simulations))
        return simulate_all(simulations, SERIAL, quiet)

    designs = [each.candidate for each in search.tried]
    whole, dropped, rounds = halve(designs, search.task.trace, search.task.objective, simulate)
    assert calls == [each.designs for each in rounds]
    assert len(whole) + len(dropped) == len(designs)
    assert [each.objective for each in whole] == sorted(each.objective for each in whole)


@pytest.mark.parametrize("text", ["H100", "H100=", "H100=-1", "H100=inf", "H100=x"])
def test_a_bad_price_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--price"):
        prices_of(text)


def test_prices_are_read() -> None:
    assert prices_of("H100=2.5, H20 = 1") == {"H100": 2.5, "H20": 1.0}
    assert prices_of(None) == {}


def test_options_of_a_search_need_a_budget() -> None:
    refuse_alone({"gpu": None, "on_policy": False})
    with pytest.raises(InputError, match="--on-policy"):
        refuse_alone({"on_policy": True})


def test_a_plan_of_other_designs_is_refused(found: tuple[SearchResult, Path], tmp_path: Path) -> None:
    files = read_plan(found[1])
    assert isinstance(files, PlanFiles)
    text = json.loads((found[1] / "plan.json").read_text(encoding="utf-8"))
    (tmp_path / "plan.json").write_text(json.dumps(text), encoding="utf-8")
    with pytest.raises(InputError, match=r"plan\.parquet"):
        read_plan(tmp_path)
    files.designs.iloc[5:].to_parquet(tmp_path / "plan.parquet", index=False)
    with pytest.raises(InputError, match="no design"):
        read_plan(tmp_path)
