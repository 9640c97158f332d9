"""What a sweep says of one configuration: a row of its table."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec
import numpy as np

from tlt.sim.config import Config, WorkloadConfig
from tlt.sim.model.cluster import Cluster
from tlt.sim.parallel.timing import left_share
from tlt.sim.simulation import Simulation
from tlt.sim.workload import describe_lengths, load_workload
from tlt.sim.write_run import cost_source, warnings_of
from tlt.traces.common.intervals import Jackknife
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.answer import LEFT_BEHIND, unranked
from tlt.traces.runs.runfolder import CAUSES
from tltsched.errors import InputError
from tltsched.schedules import schedule_name

M = 1e6


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one configuration; those of one that could not run are empty, but for `error`.

    Intervals are of the spread over RL steps, 95 %; they know nothing of errors of step times and acceptance.
    """

    schedule: str = ""
    gpus: int = 0
    workers: int = 0  # rollout engines, those that only train included
    steps: int = 0
    responses: int = 0  # trained on, in all steps
    response_tokens: int = 0
    step_s: float | None = None  # mean of RL steps
    s_per_mtoken: float | None = None  # seconds for a million trained response tokens
    s_per_mtoken_low: float | None = None
    s_per_mtoken_high: float | None = None
    gpu_s_per_mtoken: float | None = None
    rollout_share: float | None = None  # of the time of RL steps
    idle_share: float | None = None  # of the time of workers
    length_with_bonus: float | None = None  # tokens of a request's engine step that drafted
    wasted_tokens: int = 0  # generated and thrown away
    dropped_responses: int = 0  # given up, spare or too stale
    in_flight_lag: float | None = None  # policy updates while a trained response was generated, mean
    in_queue_lag: float | None = None  # and from its end to its training
    pause_share: float | None = None  # of the time of workers, waiting for engines to stop for new weights
    carried_responses: int = 0  # under way or put off after the last step
    preemptions: int = 0
    decisions: int = 0  # decision intervals: what the simulation took
    cost_source: str = ""
    acceptance_source: str = ""
    lengths_source: str = ""
    unranked: str = ""  # why its seconds a trained token cannot be held against those of others
    warnings: str = ""
    error: str = ""


def figures(config: Config) -> Row:
    """Simulate a configuration; one that cannot run gives its error."""
    try:
        simulation = Simulation(config, _lengths(config.workload, config.run.seed))
        cluster = simulation.run()
    except InputError as error:
        return Row(error=str(error))
    return _row(simulation, cluster)


@lru_cache(maxsize=4)
def _lengths(workload: WorkloadConfig, seed: int) -> Trace:
    """Return the lengths of a workload: a process samples those of a sweep once."""
    return load_workload(workload, seed)


def _row(simulation: Simulation, cluster: Cluster) -> Row:
    config, steps, rows = simulation.config, cluster.log.step_rows, cluster.log.schedule_rows
    step_s = np.array([row["end_s"] - row["start_s"] for row in steps])
    rollout_s = np.array([row["rollout_end_s"] - row["start_s"] for row in steps])
    tokens = np.array([row["response_tokens"] for row in rows], np.float64)
    each = Jackknife(len(step_s)).estimate_ratio(step_s, tokens / M, positive=True)
    low, high = each.interval or (None, None)
    request_steps = sum(row["request_steps"] for row in steps)
    accepted = sum(row["accepted_tokens"] for row in steps)
    return Row(
        schedule=schedule_name(cluster.spec),
        gpus=config.hardware.gpus,
        workers=config.workers,
        steps=len(steps),
        responses=int(sum(row["trained_responses"] for row in rows)),
        response_tokens=int(tokens.sum()),
        step_s=float(step_s.mean()),
        s_per_mtoken=each.value,
        s_per_mtoken_low=low,
        s_per_mtoken_high=high,
        gpu_s_per_mtoken=each.value * config.hardware.gpus,
        rollout_share=float(rollout_s.sum() / step_s.sum()),
        idle_share=_share(cluster, lambda cause: CAUSES[cause][0] == "idle"),
        length_with_bonus=1.0 + accepted / request_steps if request_steps else None,
        wasted_tokens=int(sum(row["wasted_tokens"] for row in rows)),
        dropped_responses=int(sum(row["dropped_responses"] for row in rows)),
        in_flight_lag=float(np.mean([row["in_flight_lag_mean"] for row in rows])),
        in_queue_lag=float(np.mean([row["in_queue_lag_mean"] for row in rows])),
        pause_share=_share(cluster, lambda cause: cause == "sync_pause"),
        carried_responses=int(rows[-1]["carried_responses"]),
        preemptions=cluster.log.preemptions,
        decisions=cluster.log.decisions,
        cost_source=cost_source(simulation),
        acceptance_source=simulation.law.source if simulation.drafts else "not used",
        lengths_source=describe_lengths(simulation.trace),
        unranked=unranked(
            cluster.knows_lengths, int(rows[-1]["carried_responses"]), left_share(cluster) > LEFT_BEHIND
        ),
        warnings="; ".join(warnings_of(simulation, cluster)),
    )


def _share(cluster: Cluster, counts: Callable[[str], bool]) -> float:
    """Return the share of the workers' time that went to causes that count."""
    some_s = all_s = 0.0
    for timeline in cluster.timelines:
        seconds = np.diff(np.array(timeline.ends_s), prepend=0.0)
        some_s += float(seconds[np.array([counts(cause) for cause in timeline.causes], bool)].sum())
        all_s += timeline.booked_s
    return some_s / all_s if all_s else 0.0
