"""What a run says of acceptance by request: counts of accepted drafts, and the requests that they are of.

A run that kept drafts by request (acceptance.parquet) has an observation for each request, bin of its
response and draft configuration. An older live run has them by engine step alone: an observation is a
stretch of engine steps with the same requests in the batch, known from the times at which responses began
and ended, and a request's position is interpolated over the engine steps between the two (modelled).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.sim.acceptance.population import LengthScores
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.acceptance_counts import NOTHING, PositionCounts, position_counts
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.records import RECORDS, read_records
from tlt.traces.runs.request_acceptance import bins, read_acceptance
from tlt.traces.runs.runfolder import RunFolder
from tlt.traces.runs.training import prompt_kinds
from tltsched.errors import InputError
from tltsched.written.draft_config import parse_draft_config

STRETCH_ENGINE_STEPS = 64  # at most, in one observation of a run without drafts by request


class Block(msgspec.Struct, frozen=True):
    """Observations that share requests, of one RL step; other blocks have others.

    A row is a share of an observation: `engine_steps` in which request `request` drafted `depth` tokens in
    bin `bin`, [rows] each. The others have one entry an observation, `accepted`, or a request: its prompt's
    group in the block, the score of its length, and the kind of its prompt ("": not known).
    """

    step: int
    observation: Ints
    request: Ints
    bin: Ints
    depth: Ints
    engine_steps: Floats
    accepted: Floats
    group: Ints
    score: Floats
    kind: np.ndarray


class Observed(msgspec.Struct, frozen=True):
    """Blocks of one run, and accepted drafts by position over the same RL steps."""

    blocks: tuple[Block, ...]
    positions: PositionCounts
    by_request: bool  # else by engine step


def observed(folder: Path, steps: Ints | None = None) -> Observed:
    """Read the observations of a run folder, of some of its RL steps, [n], or all.

    Raises InputError if it drafted no chains, or does not say whose drafts were accepted.
    """
    responses = RunFolder(folder).responses()
    if steps is not None:
        responses = responses[responses["step"].isin(steps)]
    responses = responses.reset_index(drop=True)
    tokens = responses["response_tokens"].to_numpy(np.int64)
    responses["score"] = LengthScores(tokens).of(tokens)
    kinds = prompt_kinds(folder, responses)
    responses["kind"] = "" if kinds is None else kinds
    rows, by_request = read_acceptance(folder), True
    if rows is not None:
        blocks = list(_of_requests(folder, rows[rows["step"].isin(responses["step"])], responses))
    else:
        engine_steps, by_request = read_engine_steps(folder), False
        if engine_steps is None:
            raise InputError(
                "run", str(folder), "a run that kept drafts by request or by engine step",
                "which requests had their drafts accepted cannot be known from it: write the run again",
            )  # fmt: skip
        blocks = list(_of_engine_steps(engine_steps, responses))
    by_step = position_counts(read_records(folder / RECORDS))
    counts = sum((by_step.get(step, NOTHING) for step in responses["step"].unique()), NOTHING)
    if not blocks or not len(counts.accepted):
        raise InputError("run", str(folder), "a run that drafted", "name one whose policy drafts")
    return Observed(tuple(blocks), counts, by_request)


def _of_requests(folder: Path, rows: pd.DataFrame, responses: pd.DataFrame) -> Iterator[Block]:
    """Yield a block for each prompt of each step."""
    configs = {name: parse_draft_config(name) for name in rows["draft_config"].astype("str").unique()}
    if trees := [name for name, config in configs.items() if not config.is_chain]:
        raise InputError(
            "run", f"{folder} with trees {', '.join(trees)}", "drafts in chains",
            "fit a run of static:4 or goodput: a tree's acceptance by request is not modelled yet",
        )  # fmt: skip
    known = ["step", "request", "group", "score", "kind"]
    rows = rows.merge(responses[known], on=["step", "request"])
    depth = {name: config.depth for name, config in configs.items()}
    rows = rows.assign(depth=rows["draft_config"].astype("str").map(depth))
    for _, mine in rows.groupby(["step", "group"], sort=True):
        requests, of = np.unique(mine["request"].to_numpy(), return_inverse=True)
        of_request = mine.groupby("request", sort=True)[["score", "kind"]].first()
        yield Block(
            int(mine["step"].iloc[0]), np.arange(len(mine)), of, bins(mine["from_token"].to_numpy()),
            mine["depth"].to_numpy(np.int64), mine["request_steps"].to_numpy(np.float64),
            mine["accepted_tokens"].to_numpy(np.float64), np.zeros(len(requests), np.int64),
            of_request["score"].to_numpy(), of_request["kind"].to_numpy(str),
        )  # fmt: skip


def _of_engine_steps(engine_steps: pd.DataFrame, responses: pd.DataFrame) -> Iterator[Block]:
    """Yield a block for each worker and step."""
    of_worker = dict(iter(responses.groupby(["step", "worker"])))
    for key, steps in engine_steps.sort_values("t_s").groupby(["step", "worker"], sort=True):
        if key in of_worker and (steps["drafted_tokens"] > 0).any():
            yield _stretches(steps, of_worker[key])


def _stretches(steps: pd.DataFrame, responses: pd.DataFrame) -> Block:
    """Return the observations of one worker in one RL step."""
    middle = (steps["t_s"] + steps["seconds"] / 2).to_numpy()
    running = (responses["start_s"].to_numpy() <= middle[:, None]) & (
        middle[:, None] <= responses["finish_s"].to_numpy()
    )  # [engine steps, requests]
    done = running.cumsum(axis=0) - 0.5
    position = done / np.maximum(running.sum(axis=0), 1) * responses["response_tokens"].to_numpy()
    number = bins(position.clip(min=0.0).astype(np.int64))
    drafted, batch = steps["drafted_tokens"].to_numpy(), steps["batch"].to_numpy()
    depth = np.rint(drafted / np.maximum(batch, 1)).astype(np.int64)
    used = np.flatnonzero((drafted > 0) & (depth > 0) & running.any(axis=1))
    stretch = _numbered(running[used], depth[used])
    at, request = np.nonzero(running[used])
    share = pd.DataFrame({"stretch": stretch[at], "request": request, "bin": number[used][at, request]})
    rows = share.value_counts().reset_index()
    first = np.unique(stretch, return_index=True)[1]
    groups = np.unique(responses["group"].to_numpy(), return_inverse=True)[1]
    return Block(
        int(steps["step"].iloc[0]), rows["stretch"].to_numpy(), rows["request"].to_numpy(),
        rows["bin"].to_numpy(), depth[used][first][rows["stretch"]], rows["count"].to_numpy(np.float64),
        np.bincount(stretch, steps["accepted_tokens"].to_numpy(np.float64)[used]).astype(np.float64), groups,
        responses["score"].to_numpy(), responses["kind"].to_numpy(str),
    )  # fmt: skip


def _numbered(running: np.ndarray, depth: Ints) -> Ints:
    """Return the stretch of each engine step, [n]: the same requests and drafts, and not too many."""
    changes = np.ones(len(depth), bool)
    changes[1:] = (running[1:] != running[:-1]).any(axis=1) | (depth[1:] != depth[:-1])
    begins = np.maximum.accumulate(np.where(changes, np.arange(len(depth)), 0))
    changes |= (np.arange(len(depth)) - begins) % STRETCH_ENGINE_STEPS == 0
    return changes.cumsum() - 1
