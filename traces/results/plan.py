"""A search for the best cluster under a budget of GPUs: plan.json (Plan) and plan.parquet (PLAN_COLUMNS).

A design is a GPU, a tensor-parallel degree, so many engines, a schedule and a policy. Designs are compared by
the seconds (or dollars) of an RL step that trains on as many tokens as a step of the workload: schedules that
put long responses off train on other ones in a run of few steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import pandas as pd

from tlt.traces.runs.runfolder import FORMAT_VERSION, read_struct, read_table, write_json, write_table
from tltsched.errors import InputError

PLAN = "plan.json"
Objective = Literal["seconds a step", "USD a step"]

PLAN_COLUMNS = {
    "design": "str",
    "gpu": "str",
    "tp": "int32",
    "engines": "int32",
    "gpus": "int32",
    "schedule": "str",
    "policy": "str",
    "on_policy": "str",  # yes, mixed or no
    "provenance": "str",  # of the step times: measured, published, assumed; "" if left out
    "cost_source": "str",
    "steps": "int32",  # RL steps that the figures rest on; 0: left out
    "raw_step_s": "float64",  # as simulated
    "step_s": "float64",  # for as many trained tokens as a step of the workload has
    "usd_per_step": "float64",  # NaN without prices
    "low": "float64",  # 95 % interval of the objective over all uncertain inputs; NaN: not a finalist
    "high": "float64",
    "stage": "str",  # finalist, dropped, left out
    "reason": "str",  # why it was dropped or left out
    "run": "str",  # folder of the finalist; "": none
}

UNSETTLED = "of its responses are put off or under way at the end"
"""In the reason of a design whose figure is not compared: what it leaves behind is what takes long."""


class Input(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An uncertain input of the choice, with what its uncertainty alone does to it."""

    name: str
    spread: str  # how far it may be off, and whether that is measured or assumed
    variance_share: float  # of the log ratio of runner-up to best
    expected_loss: float  # share of the objective lost on average for not knowing this input alone
    command: str  # that measures it


class SearchRound(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One round of the search."""

    steps: int
    designs: int


class Plan(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The choice, how sure it is, and what to measure to be surer."""

    format_version: int = FORMAT_VERSION
    name: str
    model: str
    gpus_budget: int
    objective: Objective
    usd_per_gpu_hour: dict[str, float]
    only_on_policy: bool
    rounds: tuple[SearchRound, ...]
    best: str
    runner_up: str | None
    best_on_policy: str | None
    ratio: float | None  # of the runner-up's objective to the best's; None: there is no runner-up
    ratio_low: float | None  # 95 %
    ratio_high: float | None
    runner_up_better: float  # probability
    other_better: float  # probability that any finalist is better than the best
    expected_loss: float  # share of the objective, over all draws: what knowing everything would save
    loss_if_wrong: float  # the same over those draws in which the choice is wrong; 0: there are none
    loss_high: float | None = None  # upper end of the 95 % interval of the loss; None: not told
    ties: tuple[str, ...] = ()  # designs as good as the best: exactly, or within 1 % at 95 %
    near: tuple[str, ...] = ()  # within 1 % of the best by the fit alone
    inputs: tuple[Input, ...]  # most important first
    step_tokens: float | None = None  # response tokens of a step of the workload; None: not told
    probe_steps: int  # over which the answer to each input was simulated
    draws: int
    seed: int
    lengths_source: str
    acceptance_source: str
    tool_version: str


@dataclass(frozen=True, slots=True)
class PlanFiles:
    """A plan with its table."""

    plan: Plan
    designs: pd.DataFrame  # PLAN_COLUMNS


def unsettled(designs: pd.DataFrame) -> pd.Series[bool]:
    """Return which designs (PLAN_COLUMNS) are not ranked, since too much of their work is left behind."""
    return designs["reason"].str.contains(UNSETTLED, regex=False)


def write_plan(folder: Path, found: PlanFiles) -> None:
    """Write plan.json and plan.parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder / "plan.parquet", found.designs, PLAN_COLUMNS)
    write_json(folder / PLAN, found.plan)


def read_plan(folder: Path) -> PlanFiles:
    """Read a plan; raises InputError if a file is missing or not of that form."""
    plan = read_struct(folder / PLAN, Plan)
    table = read_table(folder / "plan.parquet", PLAN_COLUMNS)
    if plan.best not in set(table["design"]):
        raise InputError(
            "plan.parquet", f"no design {plan.best}", "the designs of plan.json", "recommend again"
        )
    return PlanFiles(plan, table)
