"""Makes the run folder of one training policy from its finished steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from tlt.realrun.driver.engine_record import ENGINE, EngineRecord
from tlt.realrun.driver.plan import PolicyPlan
from tlt.realrun.driver.step import LiveStep, Response
from tlt.realrun.driver.write_run import Sources, natural_lengths, write_measured
from tlt.realrun.training.checkpoints import PolicyLog
from tlt.realrun.training_config import TrainConfig
from tlt.traces.common.manifest import sealed, verify_all
from tlt.traces.runs.runfolder import read_struct, write_table
from tlt.traces.runs.training import (
    HEAD_COLUMNS,
    PROBE_COLUMNS,
    REWARD_COLUMNS,
    UPDATE_COLUMNS,
    write_kinds,
)
from tltsched.errors import InputError


def write_run(
    log: PolicyLog, config: TrainConfig, plan: PolicyPlan, engine: EngineRecord,
    kinds: Callable[[int], tuple[str, ...]],
) -> None:  # fmt: skip
    """Write all files of the policy's run folder from the steps that are finished.

    `kinds` gives the kind of each prompt of a step, none if that is not known.
    """

    def truncated(step: int, response: Response) -> bool:
        del step
        return response.tokens >= config.rollout.max_response_tokens

    sources = Sources(lengths=lengths_source(config), acceptance=acceptance_source(log.steps, config))
    with sealed(log.folder):
        write_measured(log.folder, config, plan, engine, log.steps, sources, truncated)
        for name, table in training_tables(log.steps, config).items():
            write_table(log.folder / f"{name}.parquet", table)
        write_kinds(log.folder, {step.step: kinds(step.step) for step in log.steps})


def mend(
    log: PolicyLog, config: TrainConfig, plan: PolicyPlan, kinds: Callable[[int], tuple[str, ...]]
) -> None:
    """Write the run folder of a finished policy anew if a file of it is damaged: its steps are kept.

    Raises InputError if that file is engine.json, which no step holds, or a step is damaged as well.
    """
    try:
        verify_all(log.folder)
    except InputError:
        engine = read_struct(log.folder / ENGINE, EngineRecord)
        log.read()
        write_run(log, config, plan, engine, kinds)


def lengths_source(config: TrainConfig) -> str:
    """Return one line that says where the lengths come from."""
    if config.rollout.forced_lengths:
        return "forced: the natural lengths of an earlier run."
    return natural_lengths(config.rollout.max_response_tokens)


def acceptance_source(steps: Sequence[LiveStep], config: TrainConfig) -> str:
    """Return one line that says what drafted, and in which steps drafts came without a model."""
    without = [str(step.step) for step in steps if step.drafter == "model_free"]
    text = f"measured: drafter {config.drafter.kind}"
    return f"{text}; without a model in steps {', '.join(without)}" if without else text


def training_tables(steps: Sequence[LiveStep], config: TrainConfig) -> dict[str, pd.DataFrame]:
    """Return rewards, updates, heads and probes (tlt.traces.runs.training), by name."""
    rewards = [
        (step.step, request, reward, step.step * config.update.minibatches)
        for step in steps
        for request, reward in sorted(step.rewards.items())
    ]
    trained = [
        (step.step, worker, head.tokens, head.loss)
        for step in steps
        for worker, heads in sorted(step.heads.items())
        for head in heads
    ]
    return {
        "rewards": pd.DataFrame(rewards, columns=list(REWARD_COLUMNS)).astype(REWARD_COLUMNS),
        "updates": _updates(steps),
        "heads": pd.DataFrame(trained, columns=list(HEAD_COLUMNS)).astype(HEAD_COLUMNS),
        "probes": _probes(steps),
    }


def _updates(steps: Sequence[LiveStep]) -> pd.DataFrame:
    rows = []
    for step in steps:
        measured = {
            "step": step.step,
            "reward_mean": sum(step.rewards.values()) / len(step.rewards),
            "handover_s": step.handover_end_s - step.rollout_end_s,
            "stop_s": step.stop_s,
            "scored_early": step.scored_early,
        }
        rows.append({name: measured.get(name, step.facts.get(name, 0.0)) for name in UPDATE_COLUMNS})
    return pd.DataFrame(rows).astype(UPDATE_COLUMNS)


def _probes(steps: Sequence[LiveStep]) -> pd.DataFrame:
    """Average the probes of all workers by their tokens."""
    rows = [
        (step.step, probe.head, probe.position, probe.greedy, probe.sampled, probe.tokens)
        for step in steps
        for probe in step.probes
    ]
    table = pd.DataFrame(rows, columns=[*PROBE_COLUMNS, "tokens"])
    for column in ("greedy", "sampled"):
        table[column] *= table["tokens"]
    keys = ["step", "head", "position"]
    summed = table.groupby(keys, as_index=False)[["greedy", "sampled", "tokens"]].sum()
    for column in ("greedy", "sampled"):
        summed[column] /= summed["tokens"]
    return summed.drop(columns="tokens").astype(PROBE_COLUMNS)
