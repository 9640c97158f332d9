"""A training run in memory: a run, and what training adds to its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from tlt.analysis.load import Run, load_runs
from tlt.traces.common.arrays import Floats
from tlt.traces.runs.decision_intervals import positions
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.records import RECORDS
from tlt.traces.runs.runfolder import read_table
from tlt.traces.runs.training import HEAD_COLUMNS, PROBE_COLUMNS, REWARD_COLUMNS, UPDATE_COLUMNS
from tltsched.errors import InputError


@dataclass(frozen=True, slots=True)
class TrainRun:
    """One policy. All tables are in order of step; `run.steps` and `updates` have the same steps."""

    run: Run
    rewards: pd.DataFrame  # REWARD_COLUMNS and `group`
    updates: pd.DataFrame
    heads: pd.DataFrame
    probes: pd.DataFrame
    positions: pd.DataFrame  # tlt.traces.runs.acceptance_counts.POSITION_COLUMNS; empty without records.jsonl
    compiled_engine_steps: (
        int | None
    )  # timed engine steps that contain a compilation; None: no record of single engine steps

    @property
    def policy(self) -> str:
        """The policy as the user wrote it."""
        return self.run.policy

    def step_s(self) -> Floats:
        """Return the length of each RL step in seconds."""
        return self.run.step_seconds()

    def rollout_s(self) -> Floats:
        """Return the seconds of each RL step from its start to its last response."""
        return self.run.rollout_seconds()

    def tokens(self) -> Floats:
        """Return the response tokens of each RL step."""
        return self._by_step(self.run.responses.groupby("step")["response_tokens"].sum())

    def responses_by_step(self) -> Floats:
        """Return the number of responses of each RL step."""
        return self._by_step(self.run.responses.groupby("step").size())

    def _by_step(self, values: pd.Series[int]) -> Floats:
        return np.asarray(values.reindex(self.run.steps["step"], fill_value=0), dtype=np.float64)

    def trained(self) -> bool:
        """Return whether a drafter was trained."""
        return int(self.run.steps["trained_tokens"].sum()) > 0

    def drafted(self) -> bool:
        """Return whether anything was drafted."""
        return int(self.run.steps["request_steps"].sum()) > 0


@dataclass(frozen=True, slots=True)
class TrainSet:
    """The policies of a training comparison; the first is the baseline."""

    name: str
    policies: tuple[TrainRun, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """The policies as plain runs."""
        return tuple(policy.run for policy in self.policies)


def load_training(path: Path) -> TrainSet:
    """Read a comparison folder of training runs, or one training run as a set of one.

    Raises InputError if a file is missing or malformed, a run has no steps, or policies have different steps.
    """
    loaded = load_runs(path)
    policies = tuple(_load(run) for run in loaded.runs)
    first = policies[0].run.steps["step"].tolist()
    for policy in policies:
        steps = policy.run.steps["step"].tolist()
        if not steps or steps != first:
            raise InputError(
                f"steps of {policy.policy}", _span(steps),
                f"those of {policies[0].policy} ({_span(first)}), at least one",
                "let every policy train to its end: the same command goes on from the last checkpoint",
            )  # fmt: skip
    return TrainSet(loaded.name, policies)


def _span(steps: list[int]) -> str:
    return f"{len(steps)} steps" + (f", {steps[0]} to {steps[-1]}" if steps else "")


def _load(run: Run) -> TrainRun:
    updates = read_table(run.path / "updates.parquet", UPDATE_COLUMNS).sort_values("step", ignore_index=True)
    if updates["step"].tolist() != run.steps["step"].tolist():
        raise InputError(
            "updates.parquet", _span(updates["step"].tolist()), _span(run.steps["step"].tolist()),
            f"a row a step of steps.parquet; check {run.path}",
        )  # fmt: skip
    return TrainRun(
        run=run,
        rewards=_rewards(run),
        updates=updates,
        heads=read_table(run.path / "heads.parquet", HEAD_COLUMNS),
        probes=read_table(run.path / "probes.parquet", PROBE_COLUMNS),
        positions=positions(run.path / RECORDS),
        compiled_engine_steps=_compiled(run.path),
    )


def _rewards(run: Run) -> pd.DataFrame:
    """Return the rewards with the prompt group of each response."""
    keys = ["step", "request"]
    rewards = read_table(run.path / "rewards.parquet", REWARD_COLUMNS)
    joined = rewards.merge(run.responses[[*keys, "group"]], on=keys, how="inner")
    if len(joined) != len(run.responses) or len(joined) != len(rewards):
        raise InputError(
            "rewards.parquet", f"{len(rewards):,} rewards for {len(run.responses):,} responses",
            "one reward a response", f"check {run.path}",
        )  # fmt: skip
    return joined.sort_values(keys, ignore_index=True)


def _compiled(path: Path) -> int | None:
    engine_steps = read_engine_steps(path, "compiled")
    return None if engine_steps is None else int(engine_steps["compiled"].sum())
