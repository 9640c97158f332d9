"""The responses of every RL step: sampled from recorded lengths, or replayed from a trace."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from tlt.sim.config import WorkloadConfig
from tlt.sim.model.requests import StepRequests
from tlt.traces.common.arrays import Ints
from tlt.traces.lengths.generate import generate
from tlt.traces.lengths.schema import COLUMNS, KIND_LABELS, Trace
from tlt.traces.lengths.shipped import load_histogram, load_trace
from tlt.traces.sessions.files import is_session_file, read_sessions, sessions_path
from tlt.traces.sessions.generate import generate_sessions
from tlt.traces.sessions.schema import Sessions
from tlt.traces.sessions.session_laws import load_laws
from tlt.traces.sessions.turns import CUT_ENDS
from tltsched.errors import InputError


def load_workload(config: WorkloadConfig, seed: int) -> Trace:
    """Return the trace to roll out.

    Lengths depend on the seed and the workload alone, so policies share them.
    """
    if config.sessions:
        return SessionTrace.of(load_sessions(config, seed))
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


@dataclass(frozen=True)
class SessionTrace(Trace):
    """Sessions, and the lengths that they are as single responses, a row each."""

    sessions: Sessions

    @classmethod
    def of(cls, sessions: Sessions) -> SessionTrace:
        """Return the trace of sessions: all input is prompt, all that is decoded is the response."""
        lasts = sessions.end[sessions.turn_offsets[1:] - 1]
        columns = {
            "step": sessions.step,
            "prompt_id": sessions.prompt_id,
            "sample": sessions.sample,
            "prompt_tokens": sessions.per_session(sessions.input_tokens.astype(np.int64)),
            "response_tokens": sessions.per_session(sessions.response_tokens.astype(np.int64)),
            "truncated": np.isin(lasts, CUT_ENDS),
        }
        return cls(pd.DataFrame(columns).astype(COLUMNS), sessions.origin, sessions)


def load_sessions(config: WorkloadConfig, seed: int) -> Sessions:
    """Return the sessions of the steps that are simulated: recorded, or drawn from laws.

    Raises InputError for a file that is neither, has fewer steps, or does not know how long tools took.
    """
    path = sessions_path(config.sessions)
    if path.is_file() and is_session_file(path):
        return _recorded(read_sessions(path), config)
    laws = load_laws(path)
    sizes = (config.steps, config.prompts_per_step, config.samples_per_prompt)
    return generate_sessions(laws, *sizes, seed)


def _recorded(sessions: Sessions, config: WorkloadConfig) -> Sessions:
    """Return the first steps of recorded sessions, whose waits must be known."""
    steps = np.unique(sessions.step)
    if len(steps) < config.steps:
        allowed = f"at most the {len(steps)} steps of {config.sessions}"
        raise InputError("workload.steps", config.steps, allowed, "lower it")
    unknown = int(np.isnan(sessions.wait_s).sum())
    if unknown:
        raise InputError(
            "wait_s", f"{unknown:,} of {len(sessions.wait_s):,} turns of {config.sessions} not known",
            "seconds of every turn", "give a law for them: `tlt trace convert --law wait_s=LAW`",
        )  # fmt: skip
    return sessions.chosen(np.isin(sessions.step, steps[: config.steps]))


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


def steps_of(trace: Trace, sessions: Sessions | None = None) -> list[StepRequests]:
    """Return the responses step by step, in the order of the trace; with `sessions` which each of them is."""
    places = None if sessions is None else _places(sessions)
    rows = trace.rows.sort_values("step", kind="stable", ignore_index=True)
    cuts = np.flatnonzero(np.diff(rows["step"].to_numpy())) + 1
    edges = [0, *cuts.tolist(), len(rows)]
    return [_step(rows.iloc[low:high], places) for low, high in pairwise(edges) if high > low]


def _places(sessions: Sessions) -> dict[tuple[int, int, int], int]:
    keys = zip(sessions.step.tolist(), sessions.prompt_id.tolist(), sessions.sample.tolist(), strict=True)
    return {key: place for place, key in enumerate(keys)}


def _step(rows: pd.DataFrame, places: dict[tuple[int, int, int], int] | None) -> StepRequests:
    groups, _ = pd.factorize(rows["prompt_id"])
    return StepRequests(
        group=groups.astype(np.int64),
        prompt_tokens=rows["prompt_tokens"].to_numpy(np.int64),
        response_tokens=rows["response_tokens"].to_numpy(np.int64),
        truncated=rows["truncated"].to_numpy(bool),
        offset=np.zeros(len(rows)),
        session=None if places is None else _sessions_of(rows, places),
    )


def _sessions_of(rows: pd.DataFrame, places: dict[tuple[int, int, int], int]) -> Ints:
    """Return which session each row is, [rows]."""
    keys = zip(*(rows[name].tolist() for name in ("step", "prompt_id", "sample")), strict=True)
    return np.array([places[step, prompt, sample] for step, prompt, sample in keys], np.int64)


def describe_lengths(trace: Trace) -> str:
    """Return one line that says where the lengths come from."""
    origin = trace.origin
    return " ".join(part for part in (f"{origin.source} ({KIND_LABELS[origin.kind]}).", origin.note) if part)
