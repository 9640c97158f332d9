"""What a driver keeps of RL steps: the state of the one that is on, and the rows of those that are over.

The simulated driver and the live one fill the same state and the same log. What one of them alone sees stands
in a class below these (tlt.sim.model.step, tlt.realrun.driver.step).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from tlt.traces.runs.runfolder import RESPONSE_COLUMNS, STEP_COLUMNS, ScheduleFacts
from tlt.traces.runs.timeline import Timeline, intervals
from tltsched.cluster_config import ClusterConfig
from tltsched.draft_config import DraftConfig
from tltsched.schedules import schedule_name
from tltsched.schedules.synchronous import SynchronousConfig

Row = dict[str, float | int]
Columns = Mapping[str, Any] | pd.DataFrame


class StepState(msgspec.Struct, kw_only=True):
    """What one step has seen so far. Times are seconds of the run, negative until they are known."""

    step: int
    start_s: float
    drafter_version: int = -1  # that the rollout began with; -1: no drafter
    drafter_age_steps: int = 0  # policy updates since it was published
    rollout_end_s: float = -1.0
    end_s: float = -1.0
    request_steps: int = 0  # of drafting decision intervals alone, as the next
    accepted_tokens: int = 0
    trained_tokens: int = 0  # by the drafter

    def count(self, drafted: DraftConfig, request_steps: int, accepted_by_position: Sequence[int]) -> None:
        """Count a decision interval towards acceptance if something was drafted in it."""
        if drafted.depth:
            self.request_steps += request_steps
            self.accepted_tokens += sum(accepted_by_position)

    def row(self) -> Row:
        """Return the row of a step that is over (STEP_COLUMNS)."""
        return {name: getattr(self, name) for name in STEP_COLUMNS}


def schedule_facts(config: ClusterConfig) -> ScheduleFacts | None:
    """Return what the schedule does to samples; None: it is the plain synchronous one, lengths unknown."""
    spec = config.schedule_spec()
    if isinstance(spec, SynchronousConfig) and not config.knows_lengths():
        return None
    return ScheduleFacts(
        name=schedule_name(spec),
        keeps_order=spec.keeps_order,
        on_policy=spec.on_policy,
        clairvoyant=config.knows_lengths(),
    )


class StepLog:
    """The rows of the steps that are over."""

    def __init__(self) -> None:
        self.step_rows: list[Row] = []
        self.responses: list[Columns] = []

    def add(self, state: StepState, responses: Columns) -> None:
        """Take in a step that is over, with a row a response: RESPONSE_COLUMNS by name, [responses] each."""
        self.step_rows.append(state.row())
        self.responses.append(responses)

    def tables(self, timelines: list[Timeline]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Return responses, intervals and steps as tlt.traces.runs.runfolder wants them."""
        responses = {
            name: np.concatenate([part[name] for part in self.responses]) for name in RESPONSE_COLUMNS
        }
        return pd.DataFrame(responses, copy=False), intervals(timelines), pd.DataFrame(self.step_rows)
