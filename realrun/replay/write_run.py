"""Makes the run folder of one policy from its finished rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pandas as pd

from tlt.realrun.config import RealConfig
from tlt.realrun.replay.parts import ENGINE, EngineRecord, Loss, Rollout, numbered
from tlt.realrun.replay.plan import PolicyPlan
from tlt.realrun.replay.workload import Workload
from tlt.traces.runs.engine_steps import ENGINE_STEP_COLUMNS
from tlt.traces.runs.runfolder import RunFolder, Summary, write_json
from tlt.traces.runs.timeline import Timeline, intervals
from tlt.version import VERSION
from tltsched.event_log import read
from tltsched.events import DecisionEnded


def write_run(
    folder: Path, config: RealConfig, plan: PolicyPlan, rollouts: Sequence[Rollout], losses: Sequence[Loss],
    workload: Workload, engine: EngineRecord,
) -> None:  # fmt: skip
    """Write all files of a run folder; `losses` are the workers that died in any policy's turn."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "resolved_config.json", config)
    write_json(folder / "scheduler.json", plan.setup)
    write_json(folder / ENGINE, engine)
    with (folder / "records.jsonl").open("wb") as file:
        file.writelines(numbered(rollouts))
    engine_steps = engine_step_table(rollouts)
    engine_steps.to_parquet(folder / "engine_steps.parquet", index=False)
    responses = response_table(rollouts, workload)
    summary = Summary(
        kind="measured",
        name=config.name,
        policy=plan.name,
        model=config.model.name,
        gpu=engine.device,
        workers=config.workers.count,
        gpus_per_worker=1,
        steps=len(rollouts),
        wall_s=rollouts[-1].end_s,
        response_tokens=int(responses["response_tokens"].sum()),
        cost_source=engine.describe(),
        lengths_source=workload.describe(),
        acceptance_source=_acceptance(config) if plan.speculating else "not used",
        seed=config.seed,
        tool_version=VERSION,
        warnings=_warnings(config, plan, losses, engine_steps),
    )
    RunFolder(folder).write(
        summary, responses, interval_table(rollouts, config.workers.count), step_table(rollouts, plan)
    )


def response_table(rollouts: Sequence[Rollout], workload: Workload) -> pd.DataFrame:
    """Return a row a response (tlt.traces.runs.runfolder.RESPONSE_COLUMNS)."""
    frames = []
    for rollout in rollouts:
        asked = workload.trace.rows[workload.trace.rows["step"] == rollout.step].reset_index(drop=True)
        done = sorted(rollout.responses, key=lambda response: response.request)
        frames.append(
            pd.DataFrame(
                {
                    "step": rollout.step,
                    "request": [response.request for response in done],
                    "group": [response.request for response in done],
                    "worker": [response.worker for response in done],
                    "prompt_tokens": asked["prompt_tokens"],
                    "response_tokens": [response.tokens for response in done],
                    "truncated": asked["truncated"],
                    "start_s": rollout.start_s,
                    "finish_s": [response.finish_s for response in done],
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def interval_table(rollouts: Sequence[Rollout], workers: int) -> pd.DataFrame:
    """Return where each worker's time went; what no worker booked in a rollout is waiting for its end."""
    timelines = [Timeline(worker) for worker in range(workers)]
    for rollout in rollouts:
        for interval in rollout.intervals:
            timelines[interval.worker].book(interval.cause, rollout.step, min(interval.end_s, rollout.end_s))
        for timeline in timelines:
            timeline.book("tail_idle", rollout.step, rollout.end_s)
    return intervals(timelines)


def step_table(rollouts: Sequence[Rollout], plan: PolicyPlan) -> pd.DataFrame:
    """Return a row a rollout (tlt.traces.runs.runfolder.STEP_COLUMNS)."""
    rows = []
    for rollout in rollouts:
        bodies = (record.body for record in read(rollout.lines))
        drafting = [body for body in bodies if isinstance(body, DecisionEnded) and body.draft_config.depth]
        rows.append(
            {
                "step": rollout.step,
                "start_s": rollout.start_s,
                "rollout_end_s": rollout.end_s,
                "end_s": rollout.end_s,
                "request_steps": sum(interval.request_steps for interval in drafting),
                "accepted_tokens": sum(sum(interval.accepted_by_position) for interval in drafting),
                "drafter_version": 0 if plan.speculating else -1,
                "drafter_age_steps": 0,
                "trained_tokens": 0,
            }
        )
    return pd.DataFrame(rows)


def engine_step_table(rollouts: Sequence[Rollout]) -> pd.DataFrame:
    """Return a row an engine step (ENGINE_STEP_COLUMNS); those after worker are of messages.EngineStep."""
    rows = [
        (rollout.step, worker, *msgspec.structs.astuple(engine_step))
        for rollout in rollouts
        for worker, engine_steps in rollout.engine_steps
        for engine_step in engine_steps
    ]
    return pd.DataFrame(rows, columns=list(ENGINE_STEP_COLUMNS)).astype(ENGINE_STEP_COLUMNS)


def _acceptance(config: RealConfig) -> str:
    drafter = config.drafter
    if drafter.synthetic_survival:
        rates = ", ".join(f"{rate:g}" for rate in drafter.synthetic_survival)
        return f"assumed: the engine accepts drafts at given rates by position ({rates})"
    return f"measured: drafter {drafter.kind}"


def _warnings(
    config: RealConfig, plan: PolicyPlan, losses: Sequence[Loss], engine_steps: pd.DataFrame
) -> tuple[str, ...]:
    found = [
        f"worker {loss.worker} died in rollout {loss.step} of {loss.policy} ({loss.reason}): what it had not "
        "reported was generated again by the others, and its time from then on is booked as idle"
        for loss in losses
    ]
    compiled = int(engine_steps["compiled"].sum())
    if compiled:
        found.append(
            f"{compiled} timed engine steps of {plan.name} contain a compilation: its times are too long"
        )
    if config.model.random_weights:
        found.append("the model has random weights: times are real, text and acceptance are not")
    return tuple(found)
