"""Makes the run folder of one training policy from its finished steps."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tlt.realrun.replay.parts import ENGINE, EngineRecord, numbered
from tlt.realrun.replay.write_run import engine_step_table, interval_table
from tlt.realrun.training.checkpoints import PolicyLog
from tlt.realrun.training.cluster import StepPart
from tlt.realrun.training.config import TrainConfig
from tlt.realrun.training.plan import TrainingPolicy
from tlt.traces.runs.runfolder import RunFolder, Summary, write_json
from tlt.traces.runs.training import HEAD_COLUMNS, PROBE_COLUMNS, REWARD_COLUMNS, UPDATE_COLUMNS
from tlt.version import VERSION
from tltsched.event_log import read
from tltsched.events import DecisionEnded, StepBegan


def write_run(log: PolicyLog, config: TrainConfig, policy: TrainingPolicy, engine: EngineRecord) -> None:
    """Write all files of the policy's run folder from the steps that are finished."""
    folder, parts = log.folder, log.parts
    rollouts = [part.rollout for part in parts]
    write_json(folder / "resolved_config.json", config)
    write_json(folder / "scheduler.json", policy.setup)
    write_json(folder / ENGINE, engine)
    with (folder / "records.jsonl").open("wb") as file:
        file.writelines(numbered(rollouts))
    engine_steps = engine_step_table(rollouts)
    engine_steps.to_parquet(folder / "engine_steps.parquet", index=False)
    responses = response_table(parts, config)
    compiled = int(engine_steps["compiled"].sum())
    summary = Summary(
        kind="measured",
        name=config.name,
        policy=policy.name,
        model=config.model.name,
        gpu=engine.device,
        workers=config.workers.count,
        gpus_per_worker=1,
        steps=len(parts),
        wall_s=rollouts[-1].end_s,
        response_tokens=int(responses["response_tokens"].sum()),
        cost_source=engine.describe(),
        lengths_source=lengths_source(config),
        acceptance_source=acceptance_source(parts, config) if policy.speculating else "not used",
        seed=config.seed,
        tool_version=VERSION,
        warnings=(f"{compiled} timed engine steps contain a compilation: they took too long",)
        if compiled
        else (),
    )
    RunFolder(folder).write(
        summary, responses, interval_table(rollouts, config.workers.count), step_table(parts)
    )
    for name, table in training_tables(parts, config).items():
        table.to_parquet(folder / f"{name}.parquet", index=False)


def lengths_source(config: TrainConfig) -> str:
    """Return one line that says where the lengths come from."""
    if config.rollout.forced_lengths:
        return "forced: the natural lengths of an earlier run."
    return f"measured: natural lengths of this run, at most {config.rollout.max_response_tokens:,} tokens."


def acceptance_source(parts: Sequence[StepPart], config: TrainConfig) -> str:
    """Return one line that says what drafted, and in which steps drafts came without a model."""
    without = [str(part.rollout.step) for part in parts if part.drafter == "model_free"]
    text = f"measured: drafter {config.drafter.kind}"
    return f"{text}; without a model in steps {', '.join(without)}" if without else text


def response_table(parts: Sequence[StepPart], config: TrainConfig) -> pd.DataFrame:
    """Return a row a response (tlt.traces.runs.runfolder.RESPONSE_COLUMNS)."""
    rows = []
    for part in parts:
        bodies = (record.body for record in read(part.rollout.lines))
        (began,) = [body for body in bodies if isinstance(body, StepBegan)]
        asked = {request.id: request for request in began.requests}
        for done in sorted(part.rollout.responses, key=lambda response: response.request):
            request = asked[done.request]
            rows.append(
                {
                    "step": part.rollout.step,
                    "request": done.request,
                    "group": request.group,
                    "worker": done.worker,
                    "prompt_tokens": request.prompt_tokens,
                    "response_tokens": done.tokens,
                    "truncated": done.tokens >= config.rollout.max_response_tokens,
                    "start_s": part.rollout.start_s,
                    "finish_s": done.finish_s,
                }
            )
    return pd.DataFrame(rows)


def step_table(parts: Sequence[StepPart]) -> pd.DataFrame:
    """Return a row a step (tlt.traces.runs.runfolder.STEP_COLUMNS)."""
    rows = []
    for part in parts:
        bodies = (record.body for record in read(part.rollout.lines))
        drafting = [body for body in bodies if isinstance(body, DecisionEnded) and body.draft_config.depth]
        rows.append(
            {
                "step": part.rollout.step,
                "start_s": part.rollout.start_s,
                "rollout_end_s": part.rollout_end_s,
                "end_s": part.rollout.end_s,
                "request_steps": sum(epoch.request_steps for epoch in drafting),
                "accepted_tokens": sum(sum(epoch.accepted_by_position) for epoch in drafting),
                "drafter_version": part.served,
                "drafter_age_steps": part.age_steps,
                "trained_tokens": part.trained_tokens,
            }
        )
    return pd.DataFrame(rows)


def training_tables(parts: Sequence[StepPart], config: TrainConfig) -> dict[str, pd.DataFrame]:
    """Return rewards, updates, heads and probes (tlt.traces.runs.training), by name."""
    rewards = [
        (part.rollout.step, request, reward, part.rollout.step * config.update.minibatches)
        for part in parts
        for request, reward in sorted(part.rewards.items())
    ]
    heads = [
        (part.rollout.step, worker, step.tokens, step.loss)
        for part in parts
        for worker, steps in sorted(part.heads.items())
        for step in steps
    ]
    return {
        "rewards": pd.DataFrame(rewards, columns=list(REWARD_COLUMNS)).astype(REWARD_COLUMNS),
        "updates": _updates(parts),
        "heads": pd.DataFrame(heads, columns=list(HEAD_COLUMNS)).astype(HEAD_COLUMNS),
        "probes": _probes(parts),
    }


def _updates(parts: Sequence[StepPart]) -> pd.DataFrame:
    rows = []
    for part in parts:
        measured = {
            "step": part.rollout.step,
            "reward_mean": sum(part.rewards.values()) / len(part.rewards),
            "handover_s": part.handover_end_s - part.rollout_end_s,
            "stop_s": part.stop_s,
            "scored_early": part.scored_early,
        }
        rows.append({name: measured.get(name, part.facts.get(name, 0.0)) for name in UPDATE_COLUMNS})
    return pd.DataFrame(rows).astype(UPDATE_COLUMNS)


def _probes(parts: Sequence[StepPart]) -> pd.DataFrame:
    """Average the probes of all workers by their tokens."""
    rows = [
        (part.rollout.step, probe.head, probe.position, probe.greedy, probe.sampled, probe.tokens)
        for part in parts
        for probe in part.probes
    ]
    table = pd.DataFrame(rows, columns=[*PROBE_COLUMNS, "tokens"])
    for column in ("greedy", "sampled"):
        table[column] *= table["tokens"]
    keys = ["step", "head", "position"]
    summed = table.groupby(keys, as_index=False)[["greedy", "sampled", "tokens"]].sum()
    for column in ("greedy", "sampled"):
        summed[column] /= summed["tokens"]
    return summed.drop(columns="tokens").astype(PROBE_COLUMNS)
