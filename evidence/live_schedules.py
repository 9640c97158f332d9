"""Schedules on live engines against their simulation: `python -m evidence.live_schedules OUT [--limit-s N]`

Two CPU workers of one thread, SmolLM2-135M, recorded lengths; ten minutes on a quiet machine of two cores.
First step times are calibrated beside a decoding neighbour, then two replays run, one of schedules that stop
between steps on two workers, one of schedules whose rollouts never stop on two workers and one that trains (a
wait). What follows a rollout is a wait for the update and a real load of the weights into every engine.
`--limit-s` bounds the calibration, `--rollouts` the steps, `--model FOLDER` takes a model that was prepared.
A call that was stopped goes on. `python -m evidence.live_schedules_claims OUT` makes the record.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from evidence.regimes import sets_of, tlt

STOPPING = ("none", "none@oversample_abort", "none@oversample_partial", "none@tail_batching")
GOING_ON = (
    "none",
    "none@one_step_off(trainer_share=0.34)",
    "none@bounded_async(staleness=2,max_lag=2,trainer_share=0.34)",
)
SETTINGS: dict[str, Any] = {
    "name": "schedules", "model.name": "SmolLM2-135M", "drafter.ks": [0, 2],
    "drafter.synthetic_survival": [0.6, 0.36], "engine.device": "cpu", "engine.max_running": 8,
    "engine.eager": True,
    "engine.max_context_tokens": 256, "workload.requests": 24, "workload.samples_per_prompt": 4,
    "workload.longest_tokens": 96, "workload.prompt_tokens": 32, "phases.policy_update_s": 2.0,
    "phases.weight_sync": True, "calibration.neighbours": 1, "calibration.batches": [1, 2, 4, 8],
    "calibration.contexts_tokens": [32, 96, 160], "calibration.repeats": 3, "calibration.visits": 3,
}  # fmt: skip


def replays(rollouts: int) -> dict[str, tuple[tuple[str, ...], dict[str, Any]]]:
    """Return the policies and the settings of each replay, by name."""
    return {
        "stopping": (STOPPING, {"workers.count": 2, "workload.rollouts": rollouts}),
        "going_on": (GOING_ON, {"workers.count": 3, "workload.rollouts": rollouts}),
    }


def main() -> None:
    """Calibrate, then replay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--rollouts", type=int, default=6)
    parser.add_argument("--model", type=Path)
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    model = (asked.model or out / "model").resolve()
    if not (model / "model").is_dir() and not tlt(
        out, 600, "real", "model", "SmolLM2-135M", "--out", str(model)
    ):
        sys.exit((out / "log.txt").read_text(encoding="utf-8")[-3000:])
    folders = {"model.folder": str(model / "model"), "drafter.folder": str(model / "eagle3")}
    limit = {"calibration.time_limit_s": asked.limit_s}
    calibration = ("real", "calibrate", *sets_of(SETTINGS | folders | limit))
    tlt(out, 2 * asked.limit_s + 300, *calibration, "--out", str(out / "calibration.json"))
    for name, (policies, own) in replays(asked.rollouts).items():
        sets = sets_of(SETTINGS | folders | own)
        options = ("--policies", ",".join(policies), "--no-report", "--out", str(out / name))
        if not tlt(out, 1800, "real", "replay", *sets, *options):
            sys.exit((out / "log.txt").read_text(encoding="utf-8")[-3000:])


if __name__ == "__main__":
    main()
