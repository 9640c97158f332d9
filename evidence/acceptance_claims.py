"""Claims about acceptance by request: recorded runs predicted, both modes, policies on a live engine."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from evidence.model_claims import HERE_ALONE
from evidence.recording import HERE, OTHERS, RUNS, write, write_raw
from tlt.sim.acceptance.laws import PerPosition
from tlt.sim.config import resolve
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.calibration import Calibration, load
from tlt.sim.validate.measured_acceptance import Detail, acceptance_on, differences
from tlt.sim.validate.replay_measured import simulate_into
from tlt.sim.validate.training.fit import FittedPhases, drafter_config, engine_factor, fit_training
from tlt.sim.validate.training.predict import first_half
from tlt.sim.validate.training.run import TrainingRun
from tlt.sim.workload import load_workload
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.decision_intervals import read_decision_intervals
from tlt.traces.runs.runfolder import RunFolder
from tlt.traces.sources import open_runs

RECORDED = RUNS / "h200-smollm2-train"
DETAILS: tuple[Detail, ...] = ("one mean", "spread", "spread and slope", "kind of prompt")
SEEDS = 8
BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64)
FEWEST_ENGINE_STEPS = 200  # of a bucket, to compare it
MODE_SEEDS = 10
MODE_POLICIES = {
    "chain": ("static:4", "goodput", "goodput_mean", "tlt_chains", "sglang_ema", "sglang_throughput"),
    "tree": ("static:8_8_32", "tlt", "goodput_trees"),
}
HOW = (
    "modelled against measured, mean of 8 draws of the requests; step times are the calibration's times "
    "what the first half took over them (1.22 to 1.29). Decisions are not the error: goodput drafts 6 in "
    "all but 64 engine steps, as it did, and the others follow the batch; engine steps as recorded are "
    "within 5.4 %. The error is acceptance. Prompts are of five kinds (the families of the run's "
    "settings, which take turns), up to 1.5 apart in the log exponent (standard error 0.15), and the "
    "longest responses are sums in the first half, and Collatz sequences, which accept more, in the "
    "second: a law blind to kinds is 18 to 51 % slow. With kinds the fitted half is 15 to 21 % slow as "
    "well: the exponent of the law goes on growing with the length where that of sums stays level (held "
    "beyond the longest sixth: fitted 8 to 21 % slow, predicted -17 to +18 %), and what differs between "
    "requests of a kind (sd 0.3) lengthens rollouts, which wait for the slowest of a few. One mean for "
    "all is within 10 % by errors that cancel: it is 7 to 15 % too fast on the fitted half"
)


def acceptance_predicted() -> None:
    """Rollouts of the second half of a recorded training run, as the first half has requests differ."""
    calibration = load(str(RECORDED / "calibration.json"))
    rows = [
        row
        for folder in open_runs(RECORDED / "natural").folders
        for row in _predicted(TrainingRun(folder), calibration)
    ]
    table = pd.DataFrame(rows)
    mean = table.groupby(["policy", "detail"])[["judged", "engine"]].mean()
    last = mean.xs(DETAILS[-1], level="detail")
    value = {
        f"{detail}, {policy}": round(float(mean.loc[(policy, detail), "judged"]), 3)
        for policy, detail in mean.index
    }
    best = table[table["detail"] == DETAILS[-1]].groupby("policy")["judged"]
    value |= {f"{policy}, sd over draws": round(float(each), 3) for policy, each in best.std().items()}
    value |= {
        f"{policy}, drafts as recorded": round(float(each), 3) for policy, each in last["engine"].items()
    }
    gaps = np.concatenate([_gaps(rows, policy) for policy in last.index])
    value["accepted drafts an engine step, mean gap over batches"] = round(float(np.abs(gaps).mean()), 2)
    value["accepted drafts an engine step, largest gap"] = round(float(np.abs(gaps).max()), 2)
    write(
        "acceptance_predicted",
        claim="rollout seconds of steps 10 to 19 of a recorded training run, fitted on steps 0 to 9, by "
        "policy: with one mean for all requests, with spread, with spread and slope, and with a level for "
        "each kind of prompt; and the engine steps of those rollouts as they were recorded, which takes no "
        "model of acceptance and no decision",
        value=value,
        unit={
            OTHERS: "share",
            "accepted drafts an engine step, mean gap over batches": "drafts",
            "accepted drafts an engine step, largest gap": "drafts",
        },
        target="within 10 % in every policy; accepted drafts within 0.15 in every batch",
        met=bool((last["judged"].abs() <= 0.1).all() and np.abs(gaps).max() <= 0.15),
        how=HOW,
        measured_on="4 x NVIDIA H200, one worker each, vLLM 0.32.0, torch 2.13.0+cu130",
        raw=write_raw("acceptance_predicted.points.jsonl", rows),
    )


def _gaps(rows: list[dict[str, Any]], policy: str) -> Floats:
    """Return simulated less measured accepted drafts an engine step, of the mean over draws, by batch."""
    of = [row for row in rows if row["policy"] == policy and row["detail"] == DETAILS[-1]]
    return np.array(
        [
            np.mean([row["simulated"][bucket] for row in of if bucket in row["simulated"]]) - measured
            for bucket, measured in of[0]["measured"].items()
            if any(bucket in row["simulated"] for row in of)
        ]
    )


def _predicted(run: TrainingRun, calibration: Calibration) -> list[dict[str, Any]]:
    """Return a row for each detail and draw: errors of judged and fitted rollouts, and drafts by batch."""
    if not run.policy.drafts:
        return []
    steps, rest = first_half(run), np.arange(len(first_half(run)), len(run.steps))
    factor = engine_factor(run, steps, calibration)
    measured_s = rollouts_s(run.steps)
    measured = _accepted_by_batch(run.policy.path, rest)
    rows = []
    for detail in DETAILS:
        unlike = differences([run.policy.path], steps, detail)
        fit = fit_training(run, steps, unlike)
        law = PerPosition(fit.survival_by_position, "measured: the first half")
        acceptance = acceptance_on(law, unlike, detail, run.policy.path, steps)
        for seed in range(SEEDS):
            run.policy.setup = msgspec.structs.replace(run.policy.setup, seed=seed)
            with TemporaryDirectory() as name:
                folder = Path(name) / "run"
                simulate_into(
                    folder, run.policy, calibration.times(factor), acceptance, drafter_config(run, fit),
                    FittedPhases(fit), unlike,
                )  # fmt: skip
                simulated_s = rollouts_s(RunFolder(folder).steps())
                simulated = _accepted_by_batch(folder, rest)
            rows.append(
                {
                    "policy": run.policy.summary.policy, "detail": detail, "seed": seed,
                    "judged": float(simulated_s[rest].sum() / measured_s[rest].sum() - 1),
                    "fitted": float(simulated_s[steps].sum() / measured_s[steps].sum() - 1),
                    "engine": factor / engine_factor(run, rest, calibration) - 1,
                    "measured": measured, "simulated": simulated,
                }
            )  # fmt: skip
    return rows


def rollouts_s(steps: pd.DataFrame) -> Floats:
    """Return the seconds of the rollouts of a run's steps, [steps], in their order."""
    steps = steps.sort_values("step")
    return (steps["rollout_end_s"] - steps["start_s"]).to_numpy(np.float64)


def _accepted_by_batch(folder: Path, steps: Ints) -> dict[str, float]:
    """Return accepted drafts a request and engine step by bucket of the batch, over some steps of a run."""
    rows = read_decision_intervals(folder / "records.jsonl").stretches
    rows = rows[(rows["depth"] > 0) & rows["step"].isin(steps)]
    bucket = pd.cut(rows["request_steps"] / rows["engine_steps"], BUCKETS).astype(str)
    sums = rows.groupby(bucket)[["engine_steps", "request_steps", "accepted_tokens"]].sum()
    sums = sums[sums["engine_steps"] >= FEWEST_ENGINE_STEPS]
    return {
        str(name): round(float(each), 3)
        for name, each in (sums["accepted_tokens"] / sums["request_steps"]).items()
    }


def acceptance_modes() -> None:
    """Makespan of jump mode against exact mode where requests differ, by policy."""
    rows: list[dict[str, Any]] = [
        {"policy": policy, "unlike": name, **_both_modes(policy, kind == "tree", unlike)}
        for name, unlike in {
            "spread": {"request_spread": 0.75},
            "spread and slope": {
                "request_spread": 0.75, "position_slope": -0.1, "position_spread": 0.3, "start_excess": 0.3,
            },
        }.items()
        for kind, policies in MODE_POLICIES.items()
        for policy in policies
    ]  # fmt: skip
    found = np.array([row["difference"] for row in rows])
    worst = rows[int(np.abs(found).argmax())]
    write(
        "acceptance_modes",
        claim="makespan of jump mode against exact mode where requests differ, nine policies",
        value={
            "mean absolute difference": round(float(np.abs(found).mean()), 4),
            "largest": round(float(np.abs(found).max()), 4),
            "chance, sd of a difference": round(float(np.mean([row["error"] for row in rows])), 4),
        },
        unit={OTHERS: "share of the makespan"},
        target="mean at most 1 %, none above 3 %",
        met=bool(np.abs(found).mean() <= 0.01 and np.abs(found).max() <= 0.03),
        how=f"measured, {MODE_SEEDS} seeds a mode and policy, 4 steps; the largest is {worst['policy']} with "
        f"{worst['unlike']}. Jump mode shows a policy drafts with the chance of so many engine steps, draws "
        "intervals of up to 16 engine steps one by one, and gives each request the acceptance of its bin",
        measured_on=HERE_ALONE,
        raw=write_raw("acceptance_modes.points.jsonl", rows),
    )


def _both_modes(policy: str, tree: bool, unlike: dict[str, float]) -> dict[str, float]:
    """Return the mean difference of the makespans and its standard error, paired by seed."""
    settings: dict[str, Any] = {
        "hardware": {"gpus": 4, "tp": 1, "model": "Qwen2.5-7B"},
        "workload": {
            "lengths": "r1-client35", "steps": 4, "prompts_per_step": 16, "samples_per_prompt": 8,
            "max_response_tokens": 3000,
        },
        "cluster": {"phases": []},
        "acceptance": dict(unlike) if tree else {"kind": "geometric", "rate": 0.7} | unlike,
    }  # fmt: skip
    if not tree:
        settings["cost"] = {"source": "vllm-0.32-h100-qwen2.5-7b"}
    ends: dict[str, list[float]] = {"jump": [], "exact": []}
    for seed in range(MODE_SEEDS):
        for mode, found in ends.items():
            config = resolve(settings | {"run": {"mode": mode, "seed": seed}}, policy)
            found.append(float(Simulation(config, load_workload(config.workload, 0)).run().env.now))
    jump, exact = np.array(ends["jump"]), np.array(ends["exact"])
    ratio = jump / exact - 1.0
    return {
        "difference": float(jump.mean() / exact.mean() - 1.0),
        "error": float(ratio.std(ddof=1) / np.sqrt(MODE_SEEDS)),
    }


def goodput_live() -> None:
    """Rollout seconds of policies on a live engine, from the rows that one run left."""
    path = HERE / "goodput_live.points.jsonl"
    rows = [msgspec.json.decode(line, type=dict[str, Any]) for line in path.read_bytes().splitlines()]
    total_s = {row["run"]: float(sum(row["rollout_s"])) for row in rows}
    policies = {row["run"]: str(row["policy"]) for row in rows}

    def mean_s(policy: str) -> float:
        return float(np.mean([each for run, each in total_s.items() if policies[run] == policy]))

    static_s = min(mean_s(policy) for policy in policies.values() if policy.startswith("static"))
    none_s, new_s, old_s = (mean_s(policy) for policy in ("none", "goodput", "goodput_mean"))
    write(
        "goodput_live",
        claim="512 natural responses of at most 2,048 tokens, 64 running: goodput by request against the old "
        "rule, the best of static:4, 6 and 8, and no speculation",
        value={
            "goodput over the best static": round(new_s / static_s, 3),
            "old rule over the best static": round(old_s / static_s, 3),
            "goodput over no speculation": round(new_s / none_s, 3),
            "largest difference between repeats": round(_apart(total_s, policies), 3),
        },
        unit={OTHERS: "x of the rollout seconds", "largest difference between repeats": "share"},
        target="goodput at most 1 % behind the best static, and ahead of the old rule",
        met=new_s <= 1.01 * static_s and new_s < old_s,
        how="measured; one run a policy, goodput and the old rule twice, four at a time on a host. The head "
        "was trained for 100 s: its acceptance length is 1.31 (bonus counted), at which every draft loses; "
        "nor did responses end: 95 % went on behind their end to the limit (see the run's README). "
        "Both rules mostly drafted 2, since engine steps of 64 requests took 4.5 ms where the calibration, "
        "made with the host to itself, said 3.1 ms; K = 0 costs 16 % more than no speculation configured",
        measured_on="4 x NVIDIA H200, one policy a GPU, vLLM 0.32.0, torch 2.13.0+cu130",
        raw=path.name,
    )


def _apart(total_s: dict[str, float], policies: dict[str, str]) -> float:
    """Return by how much two runs of one policy differ at most."""
    pairs = [(a, b) for a in total_s for b in total_s if policies[a] == policies[b]]
    return max(abs(total_s[a] / total_s[b] - 1.0) for a, b in pairs)


ACCEPTANCE = (acceptance_predicted, acceptance_modes, goodput_live)
