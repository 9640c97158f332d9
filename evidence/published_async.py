"""Predicts published rows of asynchronous training from the synchronous rows beside them:
`python -m evidence.published_async [record]`. `record` works all but the points out from those there are.

One rule for all rows (evidence.async_rows):
1. A part of the cluster with its part of the batch is simulated: engines do not know of one another.
2. Step times are a roofline. Where the synchronous row prints seconds of generation, they are scaled until
   its simulated generation takes those; else they stand, and what a step takes beyond it is the rest.
3. The asynchronous row has the settings that its source gives. Its update takes the GPU-seconds that it takes
   in the synchronous row, spread over the GPUs that train ("predicted"; "at least": as long as on all), or
   the seconds that the row itself prints ("with its own update"). Log-probabilities come with verl's
   rollouts. Weights go out by "nccl".
4. Lengths: shape of r1-all (assumed), for NeMo-RL scaled to the mean that is printed, cut at the cap.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from scipy.optimize import brentq

from evidence.async_rows import NEMO_ROWS, VERL_ROWS, Row
from evidence.recording import HERE, PROJECT, write, write_raw
from tlt.analysis.drawing.tables import markdown_rows
from tlt.sim.config import resolve
from tlt.sim.model.cluster import Cluster
from tlt.sim.simulation import Simulation
from tlt.sim.workload import load_workload
from tlt.traces.common.settings import merge

POINTS = "published_async.points.jsonl"
STEPS, FILLING = 6, 2  # steps of the source that are simulated, and those of them while a run fills up
ENGINES = 4  # of the part that is simulated of verl's clusters
NEMO_PART = 4
SCALES = 3  # times the step times are scaled: twice is within 0.1 %
CLOSE = 0.15
HEADERS = (
    "Row", "Published (s)", "Predicted (s)", "Error", "At least (s)", "With its own update (s)", "Error",
    "Speedup published", "Speedup predicted",
)  # fmt: skip
Point = dict[str, Any]


def part_of(row: Row) -> int:
    """Return one over the part of the cluster that is simulated."""
    return NEMO_PART if row.synchronous.gen_s is None else max(1, row.synchronous.gpus // row.tp // ENGINES)


def lengths_of(row: Row, folder: Path) -> str:
    """Return a file of response lengths."""
    given = pd.read_csv(PROJECT / "evidence" / "published" / "verl-lengths.csv")["response_tokens"].to_numpy(
        float
    )
    factor = 1.0
    if row.mean_tokens is not None:
        wanted = row.mean_tokens - row.prompt_tokens
        factor = float(brentq(lambda x: (given * x).clip(1, row.max_tokens).mean() - wanted, 1e-4, 1e4))
    path = folder / "lengths.csv"
    drawn = np.rint((given * factor).clip(1, row.max_tokens)).astype(int)
    path.write_text("\n".join(["response_tokens", *map(str, drawn)]) + "\n", encoding="utf-8")
    return str(path)


def simulate(row: Row, lengths: str, changes: dict[str, Any]) -> Cluster:
    """Return the cluster of a row after its steps."""
    settings: dict[str, Any] = {
        "run": {"records": False, "acceptance": False},
        "hardware": {"model": row.model, "gpu": row.gpu},
        "cost": {"source": "roofline"},
        "workload": {"lengths": lengths, "samples_per_prompt": row.samples, "group_correlation": 0.5,
                     "max_response_tokens": row.max_tokens, "prompt_tokens": row.prompt_tokens},
        "phases": {"reward_s": 0.0, "logprob_s": 0.0, "weight_sync_s": 0.0},
    }  # fmt: skip
    config = resolve(merge(settings, changes), "none")
    return Simulation(config, load_workload(config.workload, config.run.seed)).run()


def generation_s(row: Row, lengths: str, scale: float) -> float:
    """Return the seconds of generation of a synchronous step under scaled step times."""
    sync, part = row.synchronous, part_of(row)
    cluster = simulate(row, lengths, {
        "hardware": {"gpus": sync.gpus // part, "tp": sync.tp}, "cost": {"scale": scale},
        "workload": {"prompts_per_step": row.prompts // part, "steps": 3},
        "phases": {"policy_update_s": 0.0},
    })  # fmt: skip
    return float(np.mean([each["rollout_end_s"] - each["start_s"] for each in cluster.log.step_rows]))


def asynchronous(row: Row, lengths: str, scale: float, update_s: float) -> dict[str, float]:
    """Return what a step of the source takes, and how stale it trains."""
    part, gpus = part_of(row), row.rollout_gpus + row.trainer_gpus
    share = row.trainer_gpus / gpus
    cluster = simulate(row, lengths, {
        "hardware": {"gpus": gpus // part, "tp": row.tp}, "cost": {"scale": scale},
        "workload": {"prompts_per_step": row.prompts // part // row.parts, "steps": STEPS * row.parts},
        "cluster": {"schedule": f"bounded_async({row.schedule},trainer_share={share})"},
        "phases": {"policy_update_s": update_s / row.parts, "weight_sync_s": None, "sync_transport": "nccl",
                   "trainer_scaling": 0.0},
    })  # fmt: skip
    first = FILLING * row.parts
    steps, told = cluster.log.step_rows[first:], cluster.log.schedule_rows[first:]
    return {
        "step_s": (steps[-1]["end_s"] - steps[0]["start_s"]) / (STEPS - FILLING),
        "in_flight": float(np.mean([each["in_flight_lag_mean"] for each in told])) / row.parts,
        "in_queue": float(np.mean([each["in_queue_lag_mean"] for each in told])) / row.parts,
    }


def point_of(row: Row) -> Point:
    """Predict one row."""
    sync = row.synchronous
    with tempfile.TemporaryDirectory() as folder:
        lengths = lengths_of(row, Path(folder))
        scale, gen_s = 1.0, generation_s(row, lengths, 1.0)
        for _ in range(SCALES if sync.gen_s else 0):
            scale *= (sync.gen_s or gen_s) / gen_s
            gen_s = generation_s(row, lengths, scale)
        rest_s = sync.update_s if sync.update_s is not None else max(sync.step_s - gen_s, 0.0)
        update_s = rest_s * sync.gpus / row.trainer_gpus + row.reference_s
        told = asynchronous(row, lengths, scale, update_s)
        least = asynchronous(row, lengths, scale, rest_s + row.reference_s)["step_s"]
        own = row.update_s and asynchronous(row, lengths, scale, row.update_s + row.reference_s)["step_s"]
    return {
        "row": row.name, "source": row.source, "published_s": row.step_s, "sync_step_s": sync.step_s,
        "scale": round(scale, 4), "generation_s": round(gen_s, 2), "update_s": round(update_s, 2),
        "predicted_s": round(told["step_s"], 2), "least_s": round(least, 2),
        "own_update_s": round(own, 2) if own else None,
        "in_flight": round(told["in_flight"], 3), "in_queue": round(told["in_queue"], 3),
        "gpus": row.rollout_gpus + row.trainer_gpus, "sync_gpus": sync.gpus, "tools": row.tools,
    }  # fmt: skip


def error(point: Point, key: str) -> float | None:
    """Return the relative error of a prediction; None: there is none."""
    return None if point[key] is None else point[key] / point["published_s"] - 1.0


def table(points: Sequence[Point]) -> str:
    """Return the table of docs/asynchronous.md."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{value:+.0%}"

    rows = [
        (
            f"{'verl' if 'verl' in each['source'] else 'NeMo-RL'}, {each['row']}",
            f"{each['published_s']:.1f}", f"{each['predicted_s']:.1f}", percent(error(each, "predicted_s")),
            f"{each['least_s']:.1f}", "-" if each["own_update_s"] is None else f"{each['own_update_s']:.1f}",
            percent(error(each, "own_update_s")), f"{each['sync_step_s'] / each['published_s']:.2f}x",
            f"{each['sync_step_s'] / each['predicted_s']:.2f}x",
        )
        for each in points
    ]  # fmt: skip
    return markdown_rows(HEADERS, rows)


def record(points: Sequence[Point]) -> None:
    """Write the record and its table."""
    (HERE / "published_async.md").write_text(table(points), encoding="utf-8")
    found = [error(each, "predicted_s") or 0.0 for each in points]
    own = [each for each in (error(point, "own_update_s") for point in points) if each is not None]
    right = [
        (each["sync_step_s"] > each["published_s"]) == (each["sync_step_s"] > each["predicted_s"])
        for each in points
    ]
    close = sum(abs(each) <= CLOSE for each in found)
    least = [
        (each["sync_step_s"] > each["published_s"]) == (each["sync_step_s"] > each["least_s"])
        for each in points
    ]
    near = sum(abs(error(each, "least_s") or 0.0) <= CLOSE for each in points)
    write(
        "published_async",
        claim="Steps of published asynchronous runs (verl, NeMo-RL), predicted from the synchronous rows "
        "beside them by one rule",
        value={
            "direction right": float(sum(right)), "within 15 %": float(close),
            "direction right, update as long as on all GPUs": float(sum(least)),
            "within 15 %, update as long as on all GPUs": float(near),
            "median error": float(np.median(np.abs(found))), "largest error": float(np.max(np.abs(found))),
            "within 15 % with the row's own update": float(sum(abs(each) <= CLOSE for each in own)),
            "median error with the row's own update": float(np.median(np.abs(own))),
        },
        unit={
            "direction right": f"of {len(points)}", "within 15 %": f"of {len(points)}",
            "direction right, update as long as on all GPUs": f"of {len(points)}",
            "within 15 %, update as long as on all GPUs": f"of {len(points)}",
            "median error": "share", "largest error": "share",
            "within 15 % with the row's own update": f"of {len(own)}",
            "median error with the row's own update": "share",
        },
        target="direction right in all, steps within 15 %",
        met=all(right) and close == len(points),
        how="modelled; step times of a roofline (assumed), scaled to the seconds of generation where the "
        "source prints them; lengths by shape (assumed)",
        measured_on="H20 and H100 as published; step times of a roofline (assumed)",
        command="python -m evidence.published_async",
        raw=POINTS,
    )  # fmt: skip


def main() -> None:
    """Simulate every row and write its points, the table and the record."""
    points = []
    for row in (*VERL_ROWS, *NEMO_ROWS):
        points.append(point_of(row))
        print(points[-1], flush=True)
    write_raw(POINTS, points)
    record(points)


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        record([msgspec.json.decode(line) for line in (HERE / POINTS).read_bytes().splitlines()])
    else:
        main()
