"""A run as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.

One process a worker with a track of causes and a counter of running requests; one process for the cluster
with the RL steps, their rollouts, the counter over all workers, and an instant for each publication of the
drafter.
Timestamps are microseconds since the run began.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import pandas as pd

from tlt.analysis.comparison.drawn.running_requests import running_requests
from tlt.traces.runs.runfolder import CAUSES, Summary

MAX_EVENTS = 1_000_000  # about 100 MB of JSON, and what the viewer's JSON importer takes without trouble
CLUSTER = 0  # process id of the cluster; worker w has w + 1

Args = dict[str, str | int | float]


class TraceEvent(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One event of the Chrome trace format; `ts` and `dur` in microseconds."""

    name: str
    ph: Literal["X", "C", "i", "M"]
    pid: int
    ts: float = -1.0  # metadata events have none
    tid: int = -1
    dur: float | None = None
    cat: str = ""
    s: str = ""
    args: Args = {}


class Trace(msgspec.Struct, frozen=True):
    """The file: events in order of time after the metadata, and facts about the run."""

    traceEvents: list[TraceEvent]  # noqa: N815 - the format's own name
    displayTimeUnit: Literal["ms"]  # noqa: N815
    otherData: Args  # noqa: N815


def to_trace(
    summary: Summary,
    intervals: pd.DataFrame,
    responses: pd.DataFrame,
    steps: pd.DataFrame,
    max_events: int = MAX_EVENTS,
) -> bytes:
    """Return the trace of a run as JSON.

    If the run needs more than `max_events` events, the first RL steps that fit are kept (at least one), and
    `otherData.kept` says which.
    """
    kept = _steps_that_fit(intervals, responses, steps, max_events)
    everything = len(kept) == len(steps)
    if not everything:
        steps = steps[steps["step"].isin(kept)]
        intervals = intervals[intervals["step"].isin(kept)]
        responses = responses[responses["step"].isin(kept)]
    events = (
        _slices(intervals) + _counters(summary, responses) + _step_marks(steps) + _publications(intervals)
    )
    events.sort(key=lambda event: (event.ts, -(event.dur or 0.0)))  # an outer slice before its inner ones
    facts: Args = {
        "run": summary.name,
        "policy": summary.policy,
        "kind": summary.kind,
        "cost_source": summary.cost_source,
        "lengths_source": summary.lengths_source,
        "kept": "all steps" if everything else f"steps {kept[0]} to {kept[-1]} of {summary.steps}",
    }
    return msgspec.json.encode(Trace(_names(summary) + events, "ms", facts))


def _steps_that_fit(
    intervals: pd.DataFrame, responses: pd.DataFrame, steps: pd.DataFrame, max_events: int
) -> list[int]:
    order = steps.sort_values("start_s")["step"]
    # a counter changes at each distinct time of a start or finish: one counter a worker, and the cluster's
    keys = ["step", "worker", "at_s"]
    times = [responses.rename(columns={name: "at_s"})[keys] for name in ("start_s", "finish_s")]
    changes = pd.concat(times).drop_duplicates().groupby("step").size().reindex(order, fill_value=0)
    cost = intervals.groupby("step").size().reindex(order, fill_value=0) + 2 * changes
    fitting = int((cost.cumsum() <= max_events).sum())
    return [int(step) for step in order.iloc[: max(1, fitting)]]


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _names(summary: Summary) -> list[TraceEvent]:
    width = summary.gpus_per_worker
    events = [_metadata("process_name", CLUSTER, {"name": f"cluster: {summary.policy}"})]
    events.append(_metadata("thread_name", CLUSTER, {"name": "RL steps"}, tid=0))
    for worker in range(summary.workers):
        first = worker * width
        gpus = f"GPU {first}" if width == 1 else f"GPUs {first}-{first + width - 1}"
        events.append(_metadata("process_name", worker + 1, {"name": f"worker {worker} ({gpus})"}))
        events.append(_metadata("process_sort_index", worker + 1, {"sort_index": worker + 1}))
        events.append(_metadata("thread_name", worker + 1, {"name": "causes"}, tid=0))
    return events


def _metadata(name: str, pid: int, args: Args, tid: int = -1) -> TraceEvent:
    return TraceEvent(name, "M", pid, tid=tid, args=args)


def _slices(intervals: pd.DataFrame) -> list[TraceEvent]:
    columns = [intervals[name].tolist() for name in ("worker", "cause", "step", "start_s", "end_s")]
    return [
        TraceEvent(
            cause,
            "X",
            worker + 1,
            ts=_us(start_s),
            tid=0,
            dur=_us(end_s - start_s),
            cat=CAUSES[cause][0],
            args={"step": step, "meaning": CAUSES[cause][1]},
        )
        for worker, cause, step, start_s, end_s in zip(*columns, strict=True)
    ]


def _counters(summary: Summary, responses: pd.DataFrame) -> list[TraceEvent]:
    events = _counter(CLUSTER, responses)
    for worker in range(summary.workers):
        events += _counter(worker + 1, responses[responses["worker"] == worker])
    return events


def _counter(pid: int, responses: pd.DataFrame) -> list[TraceEvent]:
    times, counts = running_requests(responses["start_s"].to_numpy(), responses["finish_s"].to_numpy())
    return [
        TraceEvent("running requests", "C", pid, ts=_us(at_s), args={"requests": count})
        for at_s, count in zip(times.tolist(), counts.astype(np.int64).tolist(), strict=True)
    ]


def _step_marks(steps: pd.DataFrame) -> list[TraceEvent]:
    events = []
    names = ("step", "start_s", "rollout_end_s", "end_s", "drafter_version", "drafter_age_steps")
    for step, start_s, rollout_end_s, end_s, version, age in zip(
        *(steps[name].tolist() for name in names), strict=True
    ):
        args: Args = {"step": step, "drafter_version": version, "drafter_age_steps": age}
        begin, length = _us(start_s), _us(end_s - start_s)
        events.append(TraceEvent(f"RL step {step}", "X", CLUSTER, begin, 0, length, "step", args=args))
        events.append(TraceEvent("rollout", "X", CLUSTER, begin, 0, _us(rollout_end_s - start_s), "step"))
    return events


def _publications(intervals: pd.DataFrame) -> list[TraceEvent]:
    """Return an instant at the end of each sending of drafter weights; the workers' common end is one."""
    sent = intervals[intervals["cause"] == "drafter_publish"].drop_duplicates("end_s")
    return [
        TraceEvent(
            "drafter published", "i", CLUSTER, _us(end_s), 0, cat="drafter", s="g", args={"step": step}
        )
        for step, end_s in zip(sent["step"].tolist(), sent["end_s"].tolist(), strict=True)
    ]
