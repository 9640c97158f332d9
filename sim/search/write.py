"""What a search leaves behind: the plan, the table of all designs, and the finalists as a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tlt.sim.advise.advice import advise, write_advice
from tlt.sim.advise.bounds import write_bounds
from tlt.sim.advise.sensitivity import draw_table, probe_of, step_seconds
from tlt.sim.comparison import run_policy
from tlt.sim.search.choose import DRAWS, Decision
from tlt.sim.search.search import Progress, SearchResult, Task
from tlt.sim.search.space import Design
from tlt.sim.search.successive_halving import Tried
from tlt.sim.steptimes.errors import FACTORS
from tlt.sim.workload import describe_lengths
from tlt.traces.common.manifest import sealed
from tlt.traces.common.seeds import COST_FACTORS, generator
from tlt.traces.lengths.files import write_trace
from tlt.traces.results.cost_draws import COST_DRAWS
from tlt.traces.results.plan import PLAN_COLUMNS, UNSETTLED, Objective, Plan, PlanFiles, write_plan
from tlt.traces.runs.runfolder import (
    COST_DRAW_COLUMNS,
    Comparison,
    RunFolder,
    file_of,
    run_name,
    write_json,
    write_table,
)
from tlt.version import VERSION

FOLDER_DRAWS = 99
NOTHING = float("nan")


def write_files(result: SearchResult, out: Path, progress: Progress) -> None:
    """Write everything into `out`, which is made if it does not exist."""
    with sealed(out):
        while (earlier := file_of(out / COST_DRAWS)).is_file():  # of another comparison
            earlier.unlink()
        _write_comparison(result, out, progress)
        write_plan(out, PlanFiles(_plan(result), _table(result)))


def _write_comparison(result: SearchResult, out: Path, progress: Progress) -> None:
    """Write the finalists' runs, their times under drawn step times, and advice for the best."""
    task = result.task
    write_trace(task.trace, out / "lengths.parquet", force=True)
    rng = generator(task.seed, COST_FACTORS)
    drawn = [each for each in result.inputs if each.parts == FACTORS]
    values = {each.name: each.draw(FOLDER_DRAWS, rng) for each in drawn}
    frames, names = [], []
    for each, finalist in zip(result.finalists, result.judged, strict=True):
        name = run_name(finalist.design)
        run_policy(each.candidate.simulation, finalist.design, out / name, lambda *_: None)
        progress("writing finalists")
        names.append(name)
        steps = RunFolder(out / name).steps()
        fit_s = step_seconds(steps)  # draw 0
        times_s = np.vstack([fit_s, finalist.growth(drawn, values)[:, None] * fit_s])
        frames.append(draw_table(name, steps, times_s))
    reference = result.finalists[0].candidate.simulation
    best = result.finalists[result.decision.best].candidate.simulation
    title = f"finalists: {best.config.hardware.model} on at most {task.space.gpus_budget} GPUs"
    write_json(out / "comparison.json", Comparison(name=title, runs=tuple(names)))
    draws = pd.concat(frames, ignore_index=True).astype(COST_DRAW_COLUMNS)
    write_table(out / "cost_draws.parquet", draws)
    write_advice(out, advise(best, rng))
    write_bounds(reference, out)


def _plan(result: SearchResult) -> Plan:
    task, decision, finalists = result.task, result.decision, result.finalists
    space = task.space
    best = finalists[decision.best].candidate
    ranked = sorted(zip(decision.objective, finalists, strict=True), key=lambda pair: pair[0])
    own = [str(each.candidate.design) for _, each in ranked if each.candidate.on_policy == "yes"]
    value, low, high = decision.ratio or (None, None, None)
    objective: Objective = "USD a step" if task.prices else "seconds a step"
    return Plan(
        name=best.config.run.name,
        model=best.config.hardware.model,
        gpus_budget=space.gpus_budget,
        objective=objective,
        usd_per_gpu_hour=dict(task.prices),
        only_on_policy=space.only_on_policy,
        rounds=tuple(result.rounds),
        best=str(best.design),
        runner_up=None if decision.runner_up is None else str(finalists[decision.runner_up].candidate.design),
        best_on_policy=own[0] if own else None,
        ratio=value,
        ratio_low=low,
        ratio_high=high,
        runner_up_better=decision.runner_up_better,
        other_better=decision.other_better,
        expected_loss=decision.expected_loss,
        loss_if_wrong=decision.loss_if_wrong,
        loss_high=decision.regrets.highest,
        ties=decision.regrets.group,
        near=decision.regrets.near,
        inputs=decision.inputs,
        step_tokens=task.step_tokens,
        probe_steps=int(probe_of(task.trace).rows["step"].nunique()),
        draws=DRAWS,
        seed=task.seed,
        lengths_source=describe_lengths(task.trace),
        acceptance_source=best.simulation.law.source,
        tool_version=VERSION,
    )


def _table(result: SearchResult) -> pd.DataFrame:
    """Return PLAN_COLUMNS: finalists by objective, then those that were dropped, then those left out."""
    judged = {each.candidate.design: index for index, each in enumerate(result.finalists)}
    rows = []
    for each in sorted(result.tried, key=lambda each: (-each.steps, each.objective)):
        index = judged.get(each.candidate.design)
        rows.append(_figures(result.task, each) | _stage(each, index, result.decision, result.tried[0].steps))
    rows.sort(key=lambda row: row["stage"] != "finalist")
    rows += [_shape(design) | {"stage": "left out", "reason": why} for design, why in result.left_out.items()]
    nothing = {"on_policy": "", "provenance": "", "cost_source": "", "steps": 0, "raw_step_s": NOTHING,
               "step_s": NOTHING, "usd_per_step": NOTHING, "low": NOTHING, "high": NOTHING, "reason": "",
               "run": ""}  # fmt: skip
    return pd.DataFrame([nothing | row for row in rows])[list(PLAN_COLUMNS)]


def _shape(design: Design) -> dict[str, Any]:
    return {
        "design": str(design), "gpu": design.gpu, "tp": design.tp, "engines": design.engines,
        "gpus": design.gpus, "schedule": design.schedule, "policy": design.policy,
    }  # fmt: skip


def _figures(task: Task, tried: Tried) -> dict[str, Any]:
    candidate, design = tried.candidate, tried.candidate.design
    step_s = tried.timing.s_per_token() * task.step_tokens
    price = task.prices.get(design.gpu, NOTHING) if task.prices else NOTHING
    return _shape(design) | {
        "on_policy": candidate.on_policy,
        "provenance": candidate.provenance,
        "cost_source": "roofline" if candidate.calibration is None else candidate.calibration.describe(),
        "steps": tried.steps,
        "raw_step_s": float(tried.timing.step_s.mean()),
        "step_s": step_s,
        "usd_per_step": step_s * design.gpus * price / 3600.0,
    }


def _stage(tried: Tried, index: int | None, decision: Decision, steps: int) -> dict[str, Any]:
    if index is None and tried.timing.unsettled and tried.steps == steps:
        left = f"{tried.timing.left_share:.0%} {UNSETTLED}"
        return {"stage": "dropped", "reason": f"{left}: give more steps (workload.steps)"}
    if index is None:
        return {"stage": "dropped", "reason": f"not among the best after {tried.steps} steps"}
    return {
        "stage": "finalist",
        "low": decision.low[index],
        "high": decision.high[index],
        "run": run_name(str(tried.candidate.design)),
    }
