"""Measured training runs with a known truth: the simulator makes them, and what it leaves out is added.

Drift, recovery, phases and acceptance are given; probes follow the law of sim.model.drafter, with noise if
wanted.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.sim.acceptance.laws import PerPosition
from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.drafter import Drafter, DrafterConfig
from tlt.sim.model.phases import Phases
from tlt.sim.steptimes.calibration import load
from tlt.sim.validate.measured_acceptance import Differences
from tlt.sim.validate.replay_measured import MeasuredPolicy, simulate_into
from tlt.traces.common.manifest import sealed
from tlt.traces.runs.runfolder import RunFolder, Summary, write_json
from tlt.traces.runs.training import HEAD_COLUMNS, PROBE_COLUMNS, REWARD_COLUMNS, UPDATE_COLUMNS
from tltsched.cluster_config import ClusterConfig
from tltsched.dispatch import contiguous
from tltsched.event_log import SchedulerSetup
from tltsched.events import Request
from tltsched.policies import parse_policy
from tltsched.spot import SpotConfig

WORKERS, GROUPS, SAMPLES, CAP_TOKENS = 3, 12, 4, 800
SURVIVAL = (0.8, 0.6, 0.45, 0.3)  # of a head that is trained in full
DRIFTING = DrafterConfig(
    initial_exponent=1.5, drift_per_update=0.05, recovery_tokens=4000.0, training_tokens_per_s=5000.0,
    activation_s=0.01, stop_s=0.02, publish_s=0.05,
)  # fmt: skip
STILL = msgspec.structs.replace(DRIFTING, initial_exponent=1.0, drift_per_update=0.0)
REWARD_S_PER_RESPONSE, LOGPROB_S_PER_TOKEN, UPDATE_S_PER_TOKEN, SYNC_S = 0.01, 1e-5, 5e-5, 0.3


class KnownPhases(Phases):
    """The phases of these runs."""

    def seconds(self, phase: str, responses: int, tokens: int, share: float = 1.0) -> float:
        """Return the seconds of `phase`."""
        del share
        return {
            "reward": REWARD_S_PER_RESPONSE * responses,
            "logprob": LOGPROB_S_PER_TOKEN * tokens,
            "policy_update": UPDATE_S_PER_TOKEN * tokens,
            "weight_sync": SYNC_S,
        }[phase]


def write_training_run(
    path: Path,
    calibration: Path,
    *,
    policy: str = "static:4",
    trains: bool = True,
    drafter: DrafterConfig = DRIFTING,
    steps: int = 12,
    noise: float = 0.0,
    device: str = "CPU Some, 1 thread",
) -> Path:
    """Write the run folder of one training policy; `noise` is the spread of log exponents of probes."""
    asked = path.with_name(f"{path.name}.asked")
    _write_requests(asked, policy, trains, steps, device)
    policy = MeasuredPolicy(asked)
    law = PerPosition(SURVIVAL) if policy.drafts else None
    drafter = msgspec.structs.replace(drafter, exists=policy.drafts)
    simulate_into(
        path, policy, load(str(calibration)), Acceptance(law), drafter, KnownPhases(), Differences()
    )
    with sealed(path):
        _make_measured(path, policy, drafter, trains, noise)
    return path


def _make_measured(
    path: Path, policy: MeasuredPolicy, drafter: DrafterConfig, trains: bool, noise: float
) -> None:
    folder = RunFolder(path)
    write_json(path / "scheduler.json", msgspec.structs.replace(policy.setup, seed=3))  # other luck
    tables = folder.responses(), folder.intervals(), folder.steps()
    folder.write(msgspec.structs.replace(folder.summary(), kind="measured"), *tables)
    trained = tables[2]["trained_tokens"].to_numpy()
    rng = np.random.default_rng(5)
    for name, rows, columns in (
        ("heads", _heads(tables[1], drafter), HEAD_COLUMNS),
        ("updates", _updates(trained, drafter), UPDATE_COLUMNS),
        ("probes", _probes(trained, drafter, noise, rng) if trains else [], PROBE_COLUMNS),
        ("rewards", [(0, 0, 1.0, 0)], REWARD_COLUMNS),
    ):
        table = pd.DataFrame(rows, columns=list(columns)).astype(columns)
        table.to_parquet(path / f"{name}.parquet", index=False)


def _heads(intervals: pd.DataFrame, drafter: DrafterConfig) -> list[tuple[int, int, int, float]]:
    rows = intervals[intervals["cause"] == "drafter_training"]
    seconds = (rows["end_s"] - rows["start_s"]).to_numpy()
    tokens = (seconds * drafter.training_tokens_per_s).astype(int).tolist()
    return [
        (step, worker, count, 1.0)
        for step, worker, count in zip(rows["step"], rows["worker"], tokens, strict=True)
    ]


def _updates(trained: np.ndarray, drafter: DrafterConfig) -> list[dict[str, float]]:
    return [
        dict.fromkeys(UPDATE_COLUMNS, 0.0) | {"step": step, "publish_s": drafter.publish_s * (tokens > 0)}
        for step, tokens in enumerate(trained.tolist())
    ]


def _probes(
    trained: np.ndarray, config: DrafterConfig, noise: float, rng: np.random.Generator
) -> list[tuple[int, str, int, float, float]]:
    drafter, rows = Drafter(config), []
    for step, tokens in enumerate(trained.tolist()):
        hard = float(np.exp(noise * rng.standard_normal()))  # the same responses for both heads
        exponents = {
            "serving": drafter.exponent, "initial": config.initial_exponent + step * config.drift_per_update
        }  # fmt: skip
        for head, exponent in exponents.items():
            accepted = np.asarray(SURVIVAL) ** (exponent * hard)
            rows += [(step, head, position, 0.0, share) for position, share in enumerate(accepted.tolist())]
        drafter.begin_step()
        drafter.policy_updated()
        if tokens:
            drafter.publish(step + 1, tokens)
    return rows


def _write_requests(folder: Path, policy: str, trains: bool, steps: int, device: str) -> None:
    """Write what a simulation reads: requests on their workers, settings and scheduler."""
    rng = np.random.default_rng(7)
    count = GROUPS * SAMPLES
    placement = contiguous([Request(n, n // SAMPLES, 16) for n in range(count)], WORKERS)
    worker = {request.id: index for index, part in enumerate(placement) for request in part}
    rows = []
    for step in range(steps):
        lengths = np.minimum(rng.lognormal(4.8, 0.8, count).astype(int) + 2, CAP_TOKENS)
        rows += [
            (step, n, n // SAMPLES, worker[n], 16, int(length), length >= CAP_TOKENS, 0.0, 0.5)
            for n, length in enumerate(lengths)
        ]
    names = "step request group worker prompt_tokens response_tokens truncated start_s finish_s"
    responses = pd.DataFrame(rows, columns=names.split())
    intervals = pd.DataFrame({"worker": [0], "cause": "decode", "step": 0, "start_s": 0.0, "end_s": 1.0})
    table = pd.DataFrame({"step": range(steps), "start_s": 0.0, "rollout_end_s": 1.0, "end_s": 1.0})
    table = table.assign(
        request_steps=0, accepted_tokens=0, drafter_version=0, drafter_age_steps=0, trained_tokens=0
    )
    summary = Summary(
        kind="measured", name="training", policy=f"{policy}/{'online' if trains else 'frozen'}",
        model="Qwen2.5-7B", gpu=device, workers=WORKERS, gpus_per_worker=1, steps=steps, wall_s=1.0,
        response_tokens=int(responses["response_tokens"].sum()), cost_source="measured: a test",
        lengths_source=f"measured: natural lengths of this run, cap {CAP_TOKENS} tokens.",
        acceptance_source="measured: drafter eagle3", seed=3, tool_version="0",
    )  # fmt: skip
    RunFolder(folder).write(summary, responses, intervals, table)
    write_json(
        folder / "resolved_config.json",
        {
            "engine": {"max_running": 16, "temperature": 1.0},
            "drafter": {"synthetic_survival": ()},
            "rollout": {"max_response_tokens": CAP_TOKENS},
            "update": {"learning_rate": 1e-6},
        },
    )
    setup = SchedulerSetup(
        workers=WORKERS, policy=parse_policy(policy), seed=20,
        cluster=ClusterConfig(spot=SpotConfig(enabled=trains)),
    )  # fmt: skip
    write_json(folder / "scheduler.json", setup)
