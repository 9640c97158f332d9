"""A measured training policy, as far as the simulator learns from it: what each RL step did and took."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from tlt.sim.validate.replay_measured import MeasuredPolicy
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.acceptance_counts import NOTHING, PositionCounts, position_counts
from tlt.traces.runs.runfolder import RunFolder, read_table
from tlt.traces.runs.training import HEAD_COLUMNS, PROBE_COLUMNS
from tltsched.commands import BeginPhase, StartTraining, StopTraining
from tltsched.errors import InputError
from tltsched.event_log import Record
from tltsched.events import PhaseEnded, StepBegan, TrainingStopped

MIN_STEPS = 4  # two to fit a trend on, and two to judge by


class StepTimes(msgspec.Struct):
    """What the cluster's records say of one step."""

    phases_s: dict[str, float]  # from the order to its end; a drafter's publication counts to its phase
    start_s: dict[int, float]  # when each worker was first told to train
    stop_s: float | None = None  # the slowest trainer, from the order to stop to its end


class TrainingRun:
    """One training policy. Tables have a row a step and are sorted by step."""

    def __init__(self, path: Path) -> None:
        """Read the run folder; raises InputError if it holds no training run, or a too short one."""
        for name in ("rewards.parquet", "updates.parquet", "heads.parquet", "probes.parquet"):
            if not (path / name).is_file():
                raise InputError(
                    "training run", str(path), f"a folder with {name}", "give what `tlt real train` wrote"
                )
        self.policy = MeasuredPolicy(path)
        folder = RunFolder(path)
        self.steps = folder.steps().sort_values("step", ignore_index=True)
        self.intervals = folder.intervals()
        columns = {"step": "int32", "publish_s": "float64", "entropy": "float64"}
        self.updates = read_table(path / "updates.parquet", columns)
        self.heads = read_table(path / "heads.parquet", HEAD_COLUMNS)
        self.probes = read_table(path / "probes.parquet", PROBE_COLUMNS)
        if len(self.steps) < MIN_STEPS:
            raise InputError(
                "steps of the training run", len(self.steps), f"{MIN_STEPS} or more",
                "train longer: the first half is fitted, the second predicted",
            )  # fmt: skip
        records = list(self.policy.records())
        counts = position_counts(records)
        self.counts: list[PositionCounts] = [counts.get(step, NOTHING) for step in self.steps["step"]]
        times = step_times(records)
        self.times = [times.get(step, StepTimes({}, {})) for step in self.steps["step"]]

    def tokens(self) -> Floats:
        """Return the tokens of each step, prompts included, [steps]."""
        rows = self.policy.responses
        return np.asarray(
            (rows["prompt_tokens"] + rows["response_tokens"]).groupby(rows["step"]).sum(), np.float64
        )

    def responses(self) -> Floats:
        """Return the responses of each step, [steps]."""
        return np.asarray(self.policy.responses.groupby("step").size(), np.float64)

    def trained_tokens(self) -> Floats:
        """Return the tokens that the drafter was trained on in each step, [steps]."""
        return self.steps["trained_tokens"].to_numpy(np.float64)

    def entropy(self) -> Floats:
        """Return the policy's entropy on each step's responses before its update, nats a token, [steps]."""
        entropy = self.updates.groupby("step")["entropy"].first()
        return entropy.reindex(self.steps["step"]).to_numpy(np.float64)

    def versions(self) -> Ints:
        """Return the drafter's version that served each step, [steps]; -1: none."""
        return self.steps["drafter_version"].to_numpy(np.int64)

    def probe(self, head: str) -> tuple[Ints, Floats]:
        """Return the steps in which a head was probed [n], and P(accepted drafts >= j) in each [n, depth]."""
        kind = "sampled" if self.policy.settings.engine.temperature else "greedy"
        rows = self.probes[self.probes["head"] == head]
        table = rows.pivot_table(index="step", columns="position", values=kind).dropna().sort_index()
        return table.index.to_numpy(np.int64), table.to_numpy(np.float64)


def step_times(records: Iterable[Record]) -> dict[int, StepTimes]:
    """Return what the records of a cluster say, by RL step."""
    times: dict[int, StepTimes] = {}
    step, begun_s, told_s = -1, 0.0, 0.0
    for record in records:
        match record.body:
            case StepBegan() as event:
                step = event.step
                times[step] = StepTimes({}, {})
            case BeginPhase():
                begun_s = record.t_s
            case PhaseEnded() as event:
                times[step].phases_s[event.phase] = event.t_s - begun_s
            case StartTraining() as command:
                for worker in command.workers:
                    times[step].start_s.setdefault(worker, record.t_s)
            case StopTraining():
                told_s = record.t_s
            case TrainingStopped() as event:
                times[step].stop_s = max(times[step].stop_s or 0.0, event.t_s - told_s)
    return times
