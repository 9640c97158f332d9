"""Claims about prompts that are prefilled while a batch decodes, and about queues."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from evidence.live_claims import CROSSCHECK_UNITS, RANKING
from evidence.recording import OTHERS, RUNS, Figure, tlt, write, write_raw
from tlt.sim.config import resolve
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.calibration import Calibration, load, mixed_errors
from tlt.sim.workload import load_workload
from tlt.traces.common.settings import settings_of
from tlt.traces.runs.engine_steps import read_engine_steps
from tltsched.draft_config import chain

H200 = "vllm-0.32-h200-qwen2.5-7b"
REPLAY = RUNS / "h200-qwen2.5-7b" / "replay"
ALONE = (3, 5)  # engine steps before and after an arrival in which nobody else arrives
AROUND = (-1, 4)  # engine steps over which its time shows: the engine plans ahead
ONE_H200 = "one H200, vLLM 0.32.0"


def arrivals(run: str, calibration: Calibration, tokens: int, least_batch: int) -> dict[str, float]:
    """Return what a prompt that joins takes beyond decode, measured, by the law and as if decode stopped.

    Over the arrivals of `tokens` at a batch of `least_batch` or more with no other near; seconds.
    """
    steps = read_engine_steps(REPLAY / run)
    assert steps is not None
    law, when_off = calibration.coefficients, "not_configured" if run == "none" else "k0"
    batch, k = steps["batch"].to_numpy(np.int64), steps["k"].to_numpy(np.int64)
    context, prompt = steps["context_tokens"].to_numpy(), steps["prompt_tokens"].to_numpy()
    decode_s = np.zeros(len(steps))
    for depth in np.unique(k).tolist():
        same = k == depth
        decode_s[same] = law.fixed_s(chain(depth), when_off, batch[same])  # type: ignore[arg-type]
        decode_s[same] += law.context_s_per_token(chain(depth), when_off) * context[same]  # type: ignore[arg-type]
    beyond = steps["seconds"].to_numpy() - decode_s
    places = [
        place for place in np.flatnonzero((prompt == tokens) & (batch >= least_batch)).tolist()
        if place >= 30 and not prompt[place - ALONE[0] : place].any()
        and not prompt[place + 1 : place + ALONE[1]].any()
    ]  # fmt: skip
    measured = np.array([beyond[place + AROUND[0] : place + AROUND[1]].sum() for place in places])
    by_law = np.array([
        law.mixed_engine_step_s(
            chain(int(k[place])), when_off, batch[place], decode_s[place], tokens, float(tokens) ** 2  # type: ignore[arg-type]
        ) - decode_s[place] for place in places
    ])  # fmt: skip
    return {
        "count": len(places), "k": float(np.median(k[places])), "measured_s": float(measured.mean()),
        "measured_error_s": float(measured.std() / np.sqrt(len(places))), "law_s": float(by_law.mean()),
        "stopped_s": law.chunk_s(tokens, float(tokens) ** 2),
    }  # fmt: skip


def prefill_beside_decode() -> None:
    """What a prompt of 512 tokens costs that joins 128 requests, measured and by the law."""
    calibration = load(H200)
    untold = {
        "mixed_s": 0.0, "mixed_s_per_request": 0.0, "mixed_host_s": None, "mixed_eager_host_s": None,
        "mixed_token_share": 1.0, "draft_prefill_s_per_token": 0.0,
    }  # fmt: skip
    bare = msgspec.structs.replace(calibration.coefficients, **untold)
    derived_alone = msgspec.structs.replace(calibration, coefficients=bare)
    values: dict[str, Figure] = {}
    rows: list[dict[str, float]] = []
    for run in ("none", "static-2", "static-4"):
        found = arrivals(run, calibration, 512, 100)
        rows.append(found)
        name = f"K = {found['k']:.0f}"
        values[f"{name}: measured"] = (
            round(found["measured_s"] * 1e3, 2),
            round((found["measured_s"] - 1.96 * found["measured_error_s"]) * 1e3, 2),
            round((found["measured_s"] + 1.96 * found["measured_error_s"]) * 1e3, 2),
        )
        values[f"{name}: by the law"] = round(found["law_s"] * 1e3, 2)
        values[f"{name}: derived, without such engine steps"] = round(
            arrivals(run, derived_alone, 512, 100)["law_s"] * 1e3, 2
        )
        values[f"{name}: if decode stopped"] = round(found["stopped_s"] * 1e3, 2)
    small = load(str(RUNS / "h200-smollm2-sessions" / "calibration.json"))
    unseen = [point for point in small.mixed_points if point.held_out]
    derived = msgspec.structs.replace(small.coefficients, **untold)
    for words, law in (("fitted", small.coefficients), ("derived", derived)):
        errors = mixed_errors(law, unseen)
        values[f"135M, {len(unseen)} unseen engine steps, {words}: mean error"] = round(
            float(np.abs(errors).mean()), 4
        )
    worst = max(abs(row["law_s"] / row["measured_s"] - 1) for row in rows)
    write(
        "prefill_beside_decode",
        claim="what a prompt of 512 tokens takes beyond decode that joins 128 requests",
        value=values,
        unit={OTHERS: "ms"} | {name: "share of the engine step" for name in values if "error" in name},
        target="the law within 15 %; its terms for such engine steps are of another session",
        met=worst <= 0.15,
        how="measured: engine steps around single arrivals of a recorded replay over decode by the "
        "calibration made before it; modelled: the law of step times",
        measured_on=f"{ONE_H200}; 135M: another H200, one calibration that times such engine steps",
        raw=write_raw("prefill_beside_decode.points.jsonl", rows),
    )


def crosscheck_h200() -> None:
    """The simulator against the committed H200 run, with a queue, from a calibration made before it."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "replay"
        shutil.copytree(REPLAY, run)
        tlt("report", "crosscheck", str(run), "--calibration", H200)
        report = msgspec.json.decode((run / "crosscheck.json").read_bytes())
    values, rows = {}, []
    for policy in report["policies"]:
        error, gain = policy["makespan_error"]["value"], policy["speedup_error"]["value"]
        rows.append({"policy": policy["policy"], "makespan_error": error, "speedup_error": gain})
        values[f"{policy['policy']}: makespan"] = round(error, 4)
    worst = max(abs(row["makespan_error"]) for row in rows)
    worst_gain = max(abs(row["speedup_error"]) for row in rows)
    values |= {"largest speedup error": round(worst_gain, 4), "regret": report["regret"]["value"]}
    write(
        "crosscheck_h200",
        claim="simulated against measured: five policies on one H200 with a queue of half the batch, "
        "vLLM 0.32, Qwen2.5-7B shape",
        value={**values, RANKING: report["order"]["value"]},
        unit=CROSSCHECK_UNITS,
        target="makespan within 3 %, speedup within 2 %, ranking right",
        met=worst <= 0.03 and worst_gain <= 0.02 and report["order"]["value"] == 1,
        how="modelled against measured (2026-11-28); with prefill that stops decode the errors were -1.4 to "
        "+1.1 %, since prefill too dear hid decode steps that are 1 to 2 % slower than calibrated",
        measured_on=ONE_H200,
        raw=write_raw("crosscheck_h200.points.jsonl", rows),
    )  # fmt: skip


def queue_settings(rng: np.random.Generator, seed: int) -> tuple[dict[str, Any], str]:
    """Return a random configuration whose requests queue, and a policy."""
    policy = str(rng.choice(["none", "static:2", "static:4", "tlt_chains", "goodput"]))
    pairs = (
        "hardware.tp=1", "hardware.gpus=2", "hardware.model=Qwen2.5-7B",
        "cost.source=vllm-0.32-h100-qwen2.5-7b", "acceptance.kind=geometric",
        f"acceptance.rate={rng.uniform(0.4, 0.8):.3f}", "workload.steps=6", "workload.samples_per_prompt=4",
        f"workload.max_response_tokens={int(rng.integers(800, 3000))}",
        f"workload.prompts_per_step={int(rng.integers(16, 48))}",
        f"workload.prompt_tokens={int(rng.choice([128, 512, 2048]))}",
        f"engine.max_running={int(rng.choice([8, 16, 32]))}",
        f"engine.prefix_caching={str(bool(rng.integers(2))).lower()}", f"run.seed={seed}",
    )  # fmt: skip
    return settings_of(None, pairs), policy


def jump_vs_exact_queues() -> None:
    """Jump mode against every engine step drawn where prompts join batches that decode."""
    rng = np.random.default_rng(31)
    rows: list[dict[str, Any]] = []
    for seed in range(10):
        settings, policy = queue_settings(rng, seed)
        makespans, took = {}, {}
        for mode in ("jump", "exact"):
            config = resolve(settings | {"run": settings["run"] | {"mode": mode}}, policy)
            start_s = time.process_time()
            simulation = Simulation(config, load_workload(config.workload, seed))
            makespans[mode] = float(simulation.run().env.now)
            took[mode] = time.process_time() - start_s
        rows.append({"policy": policy, "settings": settings, "makespan_s": makespans, "took_s": took})
    differences = np.array([row["makespan_s"]["jump"] / row["makespan_s"]["exact"] - 1 for row in rows])
    write(
        "jump_vs_exact_queues",
        claim="makespan of the jumping mode against every engine step drawn, 10 random queues on vLLM's step "
        "times, prompts of 128 to 2,048 tokens that join batches",
        value={
            "mean absolute difference": round(float(np.abs(differences).mean()), 5),
            "mean difference": round(float(differences.mean()), 5),
            "largest": round(float(np.abs(differences).max()), 5),
        },
        unit={OTHERS: "share of the makespan"},
        target="mean absolute difference at most 0.5 %",
        met=bool(np.abs(differences).mean() <= 0.005),
        how="measured, both modes drawn from the same seed (their draws differ)",
        measured_on="no GPU: the simulator itself",
        raw=write_raw("jump_vs_exact_queues.points.jsonl", rows),
    )


PREFILL = (prefill_beside_decode, crosscheck_h200, jump_vs_exact_queues)
