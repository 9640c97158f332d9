"""What the simulated driver keeps of RL steps, beside what every driver does (tlt.traces.runs.step_log)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import simpy

from tlt.sim.model.draft_counts import Counts, DraftCounts
from tlt.sim.model.engines.engine import DecisionInterval, PrefillStep
from tlt.sim.model.requests import Requests
from tlt.traces.common.arrays import Ints
from tlt.traces.runs.step_log import Columns, Row, StepLog, StepState
from tltsched.draft_config import DraftConfig


class SimulatedStep(StepState, kw_only=True):
    """What one step has seen so far."""

    over: simpy.Event
    wasted_tokens: int = 0  # generated and thrown away
    dropped_responses: int = 0
    dropped_tokens: int = 0  # of those; part of the wasted ones
    pausing: bool = False  # running requests are being stopped for new weights
    chosen: Ints | None = None  # responses that the schedule trains on; None: all of the step
    preemptions: int = 0
    largest_draft_batch: int = 0
    decisions: int = 0

    def decided(self, interval: DecisionInterval, batch: int) -> None:
        """Count a decision interval that began with `batch` requests."""
        self.count(interval.draft_config, interval.request_steps, interval.accepted_by_position)
        self.decisions += 1
        if interval.draft_config.depth:
            self.largest_draft_batch = max(self.largest_draft_batch, batch)

    def decided_alike(
        self, draft_config: DraftConfig, batch: int, intervals: int, request_steps: int, accepted_tokens: int
    ) -> None:
        """Count decision intervals in a row, all with drafts or all without, that began with `batch`."""
        self.count(draft_config, request_steps, (accepted_tokens,))
        self.decisions += intervals
        if draft_config.depth:
            self.largest_draft_batch = max(self.largest_draft_batch, batch)

    def prefilled(self, draft_config: DraftConfig, step: PrefillStep) -> None:
        """Count what was decoded in an engine step that prefilled."""
        self.count(draft_config, step.request_steps, step.accepted_by_position)

    def trained(self, requests: Requests) -> Ints:
        """Return the ids that the step trains on, [requests]."""
        return np.arange(len(requests.group)) if self.chosen is None else self.chosen


class SimulatedLog(StepLog):
    """The rows of the steps that are over, and what the schedule did beside the time (SCHEDULE_COLUMNS)."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule_rows: list[Row] = []
        self.acceptance: list[tuple[int, Counts]] = []  # of the responses of each step
        self.preemptions = 0
        self.largest_draft_batch = 0
        self.decisions = 0  # decision intervals

    def close(
        self, state: SimulatedStep, requests: Requests, alive: Iterable[int], counts: DraftCounts | None
    ) -> None:
        """Take in a step that is over; requests `alive` go on in a later one."""
        ids = np.sort(state.trained(requests))
        if counts is not None:
            self.acceptance.append((state.step, counts.take(ids)))
        self.add(state, _responses(state.step, requests, ids))
        self.schedule_rows.append(_schedule_row(state, requests, ids, list(alive)))
        self.preemptions += state.preemptions
        self.decisions += state.decisions
        self.largest_draft_batch = max(self.largest_draft_batch, state.largest_draft_batch)


def _responses(step: int, requests: Requests, ids: Ints) -> Columns:
    return {
        "step": np.full(len(ids), step),
        "request": ids,
        "group": requests.group[ids],
        "worker": requests.worker[ids],
        "prompt_tokens": requests.prompt_tokens[ids],
        "response_tokens": requests.length[ids],
        "truncated": requests.truncated[ids],
        "start_s": requests.start_s[ids],
        "finish_s": requests.finish_s[ids],
    }


def _schedule_row(state: SimulatedStep, requests: Requests, trained: Ints, alive: list[int]) -> Row:
    in_flight = requests.ended[trained] - requests.born[trained]
    in_queue = state.step - requests.ended[trained]
    staleness = in_flight + in_queue
    return {
        "step": state.step,
        "trained_responses": len(trained),
        "response_tokens": int(requests.length[trained].sum()),
        "wasted_tokens": state.wasted_tokens,
        "carried_responses": len(alive),
        "carried_tokens": int(requests.emitted[alive].sum()) if alive else 0,
        "staleness_mean": float(staleness.mean()) if len(trained) else 0.0,
        "staleness_max": int(staleness.max(initial=0)),
        "in_flight_lag_mean": float(in_flight.mean()) if len(trained) else 0.0,
        "in_queue_lag_mean": float(in_queue.mean()) if len(trained) else 0.0,
        "dropped_responses": state.dropped_responses,
        "dropped_tokens": state.dropped_tokens,
    }
