"""The responses of every RL step: sampled from recorded lengths, or replayed from a trace."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.sim.config import WorkloadConfig
from tlt.sim.model.requests import StepRequests
from tlt.traces.lengths.generate import generate
from tlt.traces.lengths.schema import KIND_LABELS, Trace
from tlt.traces.lengths.shipped import load_histogram, load_trace
from tltsched.errors import InputError


def load_workload(config: WorkloadConfig, seed: int) -> Trace:
    """Return the trace to roll out.

    Lengths depend on the seed and the workload alone, so policies share them.
    """
    if config.replay_steps:
        return replayed(load_trace(config.lengths), config)
    return generate(
        load_histogram(config.lengths),
        steps=config.steps,
        prompts_per_step=config.prompts_per_step,
        samples_per_prompt=config.samples_per_prompt,
        max_response_tokens=config.max_response_tokens,
        group_correlation=config.group_correlation,
        length_drift_per_step=config.length_drift_per_step,
        prompt_tokens=config.prompt_tokens,
        seed=seed,
    )


def replayed(trace: Trace, config: WorkloadConfig) -> Trace:
    """Return the first steps of a trace, cut and completed as the settings say; raises InputError."""
    rows = trace.rows
    steps = sorted(rows["step"].unique().tolist())
    if len(steps) < config.steps:
        raise InputError(
            "workload.steps", config.steps, f"at most the {len(steps)} steps of {config.lengths}", "lower it"
        )
    rows = rows[rows["step"].isin(steps[: config.steps])].copy()
    rows["truncated"] |= rows["response_tokens"] > config.max_response_tokens
    rows["response_tokens"] = rows["response_tokens"].clip(upper=config.max_response_tokens)
    rows.loc[rows["prompt_tokens"] == 0, "prompt_tokens"] = config.prompt_tokens
    return Trace(rows, trace.origin)


def steps_of(trace: Trace) -> list[StepRequests]:
    """Return the responses step by step, in the order of the trace."""
    return [_step(rows) for _, rows in trace.rows.groupby("step", sort=True)]


def _step(rows: pd.DataFrame) -> StepRequests:
    groups, _ = pd.factorize(rows["prompt_id"])
    return StepRequests(
        group=groups.astype(np.int64),
        prompt_tokens=rows["prompt_tokens"].to_numpy(np.int64),
        response_tokens=rows["response_tokens"].to_numpy(np.int64),
        truncated=rows["truncated"].to_numpy(bool),
        offset=np.zeros(len(rows)),
    )


def describe_lengths(trace: Trace) -> str:
    """Return one line that says where the lengths come from."""
    origin = trace.origin
    return " ".join(part for part in (f"{origin.source} ({KIND_LABELS[origin.kind]}).", origin.note) if part)
