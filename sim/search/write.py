"""What a search leaves behind: the plan, the table of all designs, and the finalists as a comparison."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tlt.sim.advise.advice import advise, write_advice
from tlt.sim.advise.ceilings import write_bounds
from tlt.sim.advise.sensitivity import FACTORS
from tlt.sim.comparison import run_policy
from tlt.sim.search.choose import DRAWS, Decision, Finalist
from tlt.sim.search.search import PROBE_STEPS, Planner
from tlt.sim.search.space import Design
from tlt.sim.search.successive_halving import Tried
from tlt.sim.simulation import Simulation
from tlt.sim.workload import describe_lengths
from tlt.traces.common.arrays import Floats
from tlt.traces.common.seeds import COST_FACTORS, generator
from tlt.traces.lengths.files import write_trace
from tlt.traces.results.cost_draws import COST_DRAWS
from tlt.traces.results.plan import PLAN_COLUMNS, Objective, Plan, PlanFiles, write_plan
from tlt.traces.runs.runfolder import COST_DRAW_COLUMNS, Comparison, RunFolder, file_of, run_name, write_json

FOLDER_DRAWS = 99
NOTHING = float("nan")


def write_files(planner: Planner, decision: Decision, out: Path) -> None:
    """Write everything into `out`, which is made if it does not exist."""
    out.mkdir(parents=True, exist_ok=True)
    while (earlier := file_of(out / COST_DRAWS)).is_file():  # of another comparison
        earlier.unlink()
    _write_comparison(planner, decision, out)
    write_plan(out, PlanFiles(_plan(planner, decision), _table(planner, decision)))


def _write_comparison(planner: Planner, decision: Decision, out: Path) -> None:
    """Write the finalists' runs, their times under drawn step times, and advice for the best."""
    write_trace(planner.trace, out / "lengths.parquet", force=True)
    rng = generator(planner.seed, COST_FACTORS)
    values = {each.name: each.draw(FOLDER_DRAWS, rng) for each in planner.inputs if each.parts == FACTORS}
    frames, names = [], []
    for each, finalist in zip(planner.finalists, planner.judged, strict=True):
        name = run_name(finalist.design)
        run_policy(each.candidate.config, planner.trace, finalist.design, out / name, lambda *_: None)
        planner.progress("writing finalists")
        names.append(name)
        frames.append(_drawn(name, RunFolder(out / name).steps(), finalist, values))
    reference, best = planner.finalists[0].candidate, planner.finalists[decision.best].candidate
    title = f"finalists: {best.config.hardware.model} on at most {planner.space.gpus_budget} GPUs"
    write_json(out / "comparison.json", Comparison(name=title, runs=tuple(names)))
    advice = advise(Simulation(best.config, planner.trace), rng)
    write_advice(out, advice, pd.concat(frames, ignore_index=True).astype(COST_DRAW_COLUMNS))
    write_bounds(reference.config, planner.trace, out)


def _drawn(name: str, steps: pd.DataFrame, finalist: Finalist, values: dict[str, Floats]) -> pd.DataFrame:
    """Return COST_DRAW_COLUMNS of one run by its linear response; draw 0 is the fit."""
    fit_s = (steps["end_s"] - steps["start_s"]).to_numpy()
    factor = np.ones(FOLDER_DRAWS)
    for source, drawn in values.items():
        factor = factor + drawn @ np.array([finalist.response.get((source, part), 0.0) for part in FACTORS])
    times_s = np.vstack([fit_s, np.maximum(factor, 1e-3)[:, None] * fit_s])
    return pd.DataFrame(
        {
            "draw": np.repeat(np.arange(FOLDER_DRAWS + 1), len(fit_s)),
            "run": name,
            "step": np.tile(steps["step"].to_numpy(), FOLDER_DRAWS + 1),
            "step_s": times_s.ravel(),
        }
    )


def _plan(planner: Planner, decision: Decision) -> Plan:
    finalists, space = planner.finalists, planner.space
    best = finalists[decision.best].candidate
    ranked = sorted(zip(decision.objective, finalists, strict=True), key=lambda pair: pair[0])
    own = [str(each.candidate.design) for _, each in ranked if each.candidate.on_policy == "yes"]
    simulation = Simulation(best.config, planner.trace)
    value, low, high = decision.ratio or (None, None, None)
    objective: Objective = "USD a step" if planner.prices else "seconds a step"
    return Plan(
        name=best.config.run.name,
        model=best.config.hardware.model,
        gpus_budget=space.gpus_budget,
        objective=objective,
        usd_per_gpu_hour=planner.prices,
        only_on_policy=space.only_on_policy,
        rungs=tuple(planner.rungs),
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
        inputs=decision.inputs,
        probe_steps=min(PROBE_STEPS, len(finalists[0].timing.step_s)),
        draws=DRAWS,
        seed=planner.seed,
        lengths_source=describe_lengths(planner.trace),
        acceptance_source=simulation.law.source,
        tool_version=version("tlt-sim"),
    )


def _table(planner: Planner, decision: Decision) -> pd.DataFrame:
    """Return PLAN_COLUMNS: finalists by objective, then those that were dropped, then those left out."""
    judged = {each.candidate.design: index for index, each in enumerate(planner.finalists)}
    rows = []
    for each in sorted(planner.tried, key=lambda each: (-each.steps, each.objective)):
        index = judged.get(each.candidate.design)
        rows.append(_figures(planner, each) | _stage(each, index, decision))
    rows.sort(key=lambda row: row["stage"] != "finalist")
    rows += [
        _shape(design) | {"stage": "left out", "reason": why} for design, why in planner.left_out.items()
    ]
    nothing = {"on_policy": "", "provenance": "", "cost_source": "", "steps": 0, "raw_step_s": NOTHING,
               "step_s": NOTHING, "usd_per_step": NOTHING, "low": NOTHING, "high": NOTHING, "reason": "",
               "run": ""}  # fmt: skip
    return pd.DataFrame([nothing | row for row in rows])[list(PLAN_COLUMNS)]


def _shape(design: Design) -> dict[str, Any]:
    return {
        "design": str(design), "gpu": design.gpu, "tp": design.tp, "engines": design.engines,
        "gpus": design.gpus, "schedule": design.schedule, "policy": design.policy,
    }  # fmt: skip


def _figures(planner: Planner, tried: Tried) -> dict[str, Any]:
    candidate, design = tried.candidate, tried.candidate.design
    step_s = tried.timing.s_per_token() * planner.step_tokens
    price = planner.prices.get(design.gpu, NOTHING) if planner.prices else NOTHING
    return _shape(design) | {
        "on_policy": candidate.on_policy,
        "provenance": candidate.provenance,
        "cost_source": "roofline" if candidate.calibration is None else candidate.calibration.describe(),
        "steps": tried.steps,
        "raw_step_s": float(tried.timing.step_s.mean()),
        "step_s": step_s,
        "usd_per_step": step_s * design.gpus * price / 3600.0,
    }


def _stage(tried: Tried, index: int | None, decision: Decision) -> dict[str, Any]:
    if index is None:
        return {"stage": "dropped", "reason": f"not among the best after {tried.steps} steps"}
    return {
        "stage": "finalist",
        "low": decision.low[index],
        "high": decision.high[index],
        "run": run_name(str(tried.candidate.design)),
    }
