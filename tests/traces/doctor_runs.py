"""A small training run with nothing wrong, whose tables a test spoils before they are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.traces.runs.engine_steps import ENGINE_STEP_COLUMNS
from tlt.traces.runs.runfolder import Comparison, RunFolder, ScheduleFacts, Summary, write_json
from tlt.traces.runs.training import REWARD_COLUMNS, UPDATE_COLUMNS
from tltsched.dispatch import longest_first
from tltsched.draft_config import OFF, chain
from tltsched.event_log import Record, encode
from tltsched.events import BatchFormed, DecisionEnded, Request, RolloutBegan, WorkerEvent

STEPS, WORKERS, GROUPS, SAMPLES = 6, 2, 8, 4
TOKEN_S = 0.01
K, BATCH = 4, 8
TAIL_BATCH, TAIL_FROM = 2, 180  # of the engine steps of a rollout: then few requests are left
PLAIN_S, DRAFT_S = 0.010, 0.015
SURVIVAL = (0.8, 0.6, 0.4, 0.2)  # of each position: 2 accepted drafts an engine step


def summary(policy: str) -> Summary:
    """Return the summary of a measured run."""
    return Summary(
        kind="measured", name="made", policy=policy, model="m", gpu="g", workers=WORKERS, gpus_per_worker=1,
        steps=STEPS, wall_s=1.0, response_tokens=1, cost_source="measured: made", lengths_source="made",
        acceptance_source="made", seed=0, tool_version="0",
    )  # fmt: skip


@dataclass
class Tables:
    """What a run folder holds; every table may be changed before `write`."""

    summary: Summary
    responses: pd.DataFrame
    intervals: pd.DataFrame
    steps: pd.DataFrame
    engine_steps: pd.DataFrame
    updates: pd.DataFrame
    rewards: pd.DataFrame
    events: list[WorkerEvent]
    schedule: tuple[ScheduleFacts, pd.DataFrame] | None = None
    left_out: set[str] = field(default_factory=set)

    def write(self, path: Path) -> Path:
        """Write the folder; names in `left_out` are not written."""
        path.mkdir(parents=True, exist_ok=True)
        wall_s, tokens = float(self.steps["end_s"].max()), int(self.responses["response_tokens"].sum())
        told = msgspec.structs.replace(self.summary, wall_s=wall_s, response_tokens=tokens)
        RunFolder(path).write(told, self.responses, self.intervals, self.steps)
        for name in ("engine_steps", "updates", "rewards"):
            if name not in self.left_out:
                getattr(self, name).to_parquet(path / f"{name}.parquet", index=False)
        if "records" not in self.left_out:
            lines = [encode(Record(event.t_s, n, "worker/0", event)) for n, event in enumerate(self.events)]
            (path / "records.jsonl").write_bytes(b"".join(lines))
        if self.schedule is not None:
            RunFolder(path).write_schedule(*self.schedule)
        return path


def healthy(policy: str = "static:4", drafts: bool = True) -> Tables:
    """Return the tables of a run in which no check finds anything."""
    responses = _responses()
    steps, intervals = _times(responses)
    engine_steps = _engine_steps(drafts)
    drafting = engine_steps[engine_steps["k"] > 0].groupby("step")[["batch", "accepted_tokens"]].sum()
    drafting = drafting.reindex(steps["step"], fill_value=0)
    steps["request_steps"] = drafting["batch"].to_numpy()
    steps["accepted_tokens"] = drafting["accepted_tokens"].to_numpy()
    if not drafts:
        steps = steps.assign(drafter_version=-1, trained_tokens=0)
    index = responses[["step", "request"]]
    rewards = index.assign(reward=(responses["request"] % 2).astype(float), policy_version=responses["step"])
    updates = pd.DataFrame(dict.fromkeys(UPDATE_COLUMNS, 0.0), index=range(STEPS))
    updates = updates.assign(step=range(STEPS), handover_s=0.01, stop_s=0.001).astype(UPDATE_COLUMNS)
    return Tables(
        summary(policy), responses, intervals, steps, engine_steps, updates, rewards.astype(REWARD_COLUMNS),
        _events(drafts),
    )  # fmt: skip


def write_comparison(path: Path, *tables: Tables) -> Path:
    """Write runs beside one another, named by their policies."""
    for one in tables:
        one.write(path / one.summary.policy)
    names = tuple(one.summary.policy for one in tables)
    write_json(path / "comparison.json", Comparison(name="made", runs=names))
    return path


def _responses() -> pd.DataFrame:
    """Return responses placed longest first; times are filled in by _times."""
    rng = np.random.default_rng(5)
    rows = []
    for step in range(STEPS):
        lengths = np.minimum(rng.lognormal(6.0, 0.6, GROUPS * SAMPLES).astype(int) + 20, 2000)
        requests = [Request(n, n // SAMPLES, 64, int(length)) for n, length in enumerate(lengths)]
        for worker, placed in enumerate(longest_first(requests, WORKERS)):
            rows += [(step, one.id, one.group, worker, 64, one.length_hint_tokens, False) for one in placed]
    names = ["step", "request", "group", "worker", "prompt_tokens", "response_tokens", "truncated"]
    return pd.DataFrame(rows, columns=names).assign(start_s=0.0, finish_s=0.0)


def _times(responses: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fill in the times of responses; return the steps and intervals. A rollout is 4/5 of its step."""
    steps, intervals, at_s = [], [], 0.0
    for step in range(STEPS):
        mine = responses["step"] == step
        finish_s = at_s + responses.loc[mine, "response_tokens"] * TOKEN_S
        responses.loc[mine, "start_s"], responses.loc[mine, "finish_s"] = at_s, finish_s
        rollout_end_s = float(finish_s.max())
        end_s = rollout_end_s + (rollout_end_s - at_s) / 4
        reward_s = rollout_end_s + (end_s - rollout_end_s) / 5
        for worker in range(WORKERS):
            done_s = float(finish_s[responses.loc[mine, "worker"] == worker].max())
            spans = [("speculate", at_s, done_s), ("drafter_training", done_s, rollout_end_s),
                     ("reward", rollout_end_s, reward_s), ("policy_update", reward_s, end_s)]  # fmt: skip
            intervals += [(worker, cause, step, start, end) for cause, start, end in spans if end > start]
        steps.append((step, at_s, rollout_end_s, end_s, 0, 0, step, 1, 1000))
        at_s = end_s
    names = ["step", "start_s", "rollout_end_s", "end_s", "request_steps", "accepted_tokens",
             "drafter_version", "drafter_age_steps", "trained_tokens"]  # fmt: skip
    columns = ["worker", "cause", "step", "start_s", "end_s"]
    return pd.DataFrame(steps, columns=names), pd.DataFrame(intervals, columns=columns)


def _engine_steps(drafts: bool) -> pd.DataFrame:
    """Return blocks of 30 engine steps with and without drafts at two batches, the context growing."""
    rows = []
    for step in range(STEPS):
        for worker in range(WORKERS):
            prompts = GROUPS * SAMPLES * 64 // WORKERS
            rows.append((step, worker, 0.0, 0.05, BATCH, 0, prompts, 0, 0, 0, False))
            for number in range(240):
                k = K if drafts and number // 30 % 2 else 0
                batch = TAIL_BATCH if number >= TAIL_FROM else BATCH
                context = batch * (200 + 10 * number)
                accepted = 2 * batch if k else 0
                seconds = DRAFT_S if k else PLAIN_S
                rows.append((step, worker, 0.0, seconds, batch, context, 0, k, k * batch, accepted, False))
    return pd.DataFrame(rows, columns=list(ENGINE_STEP_COLUMNS)).astype(ENGINE_STEP_COLUMNS)


def _events(drafts: bool) -> list[WorkerEvent]:
    """Return the record of worker 0: a decision interval a step."""
    events: list[WorkerEvent] = []
    for step in range(STEPS):
        events += [RolloutBegan(float(step), 0, step, 0), BatchFormed(float(step), 0, BATCH, BATCH * 64)]
        events.append(decision_interval(step + 0.5, SURVIVAL if drafts else ()))
    return events


def decision_interval(t_s: float, survival: tuple[float, ...], step_s: float = DRAFT_S) -> DecisionEnded:
    """Return an interval of 200 engine steps of which drafts survive as said; no survival: plain decode."""
    draft_config, steps = chain(len(survival)) if survival else OFF, 200
    accepted = tuple(int(share * steps * BATCH) for share in survival)
    return DecisionEnded(
        t_s=t_s, worker=0, draft_config=draft_config, engine_steps=steps, request_steps=steps * BATCH,
        decode_s=steps * step_s,
        accepted_by_position=accepted, finished=(), requests=BATCH, context_tokens=BATCH * 600,
    )  # fmt: skip
