"""What schedules do to samples, simulated against measured: what a trained token takes, what is dropped, how
stale what is trained on is.

Dropped samples and their staleness are counted from the records of both runs, by one rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tlt.analysis.load import Run
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.common.intervals import Estimate, Jackknife, divide
from tlt.traces.runs.records import RECORDS, read_records
from tltsched.commands import Assign, Drop, EndStep, Restart
from tltsched.event_log import CLUSTER


class ScheduleCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs are (measured, simulated), over the judged steps; `error` is simulated over measured, less 1."""

    schedule: str
    s_per_trained_token: tuple[float, float]
    error: Estimate
    trained: tuple[int, int]  # responses
    dropped: tuple[int, int]  # responses given up, begun or not
    dropped_staleness: tuple[float, float]  # mean steps between their begin and their end, of those begun
    wasted_tokens: tuple[int, int]
    staleness: tuple[float, float]  # mean, of trained responses
    staleness_max: tuple[int, int]


def check_schedule(measured: Run, simulated: Run, steps: Ints) -> ScheduleCheck:
    """Return the figures of a policy whose runs say what its schedule did."""
    assert measured.schedule is not None
    assert simulated.schedule is not None
    tables = [run.schedule[1] for run in (measured, simulated) if run.schedule]
    real, model = (table[table["step"].isin(steps)] for table in tables)
    counted = [row["trained_responses"].to_numpy(np.float64) for row in (real, model)]
    staleness = [
        float((row["staleness_mean"] * count).sum() / max(1.0, count.sum()))
        for row, count in zip((real, model), counted, strict=True)
    ]
    over = Jackknife(len(steps), "rollouts")
    seconds, tokens = seconds_and_tokens((measured, simulated), steps)
    per_token = divide(over.sums(seconds), over.sums(tokens))
    ratio = over.estimate(per_token[1] / per_token[0], positive=True)
    gone = [dropped(run, steps) for run in (measured, simulated)]
    means = [float(ages.mean()) if len(ages) else 0.0 for _, ages in gone]
    return ScheduleCheck(
        schedule=measured.schedule[0].name,
        s_per_trained_token=(float(per_token[0][0]), float(per_token[1][0])),
        error=ratio.mapped(lambda value: value - 1.0),
        trained=(int(counted[0].sum()), int(counted[1].sum())),
        dropped=(gone[0][0], gone[1][0]),
        dropped_staleness=(means[0], means[1]),
        wasted_tokens=(int(real["wasted_tokens"].sum()), int(model["wasted_tokens"].sum())),
        staleness=(staleness[0], staleness[1]),
        staleness_max=(int(real["staleness_max"].max()), int(model["staleness_max"].max())),
    )


def dropped(run: Run, steps: Ints) -> tuple[int, Ints]:
    """Return how many responses a run gave up in some steps, and how many steps ago those that had been
    begun were, [begun].

    Raises InputError without records.
    """
    step, count, born, ages = 0, 0, dict[int, int](), list[int]()
    for record in read_records(run.path / RECORDS):
        body = record.body
        if record.owner != CLUSTER:
            continue
        match body:
            case Assign():
                born |= {request: step for request in body.requests if request not in born}
            case Restart():
                for request in body.requests:
                    born.pop(request, None)
            case Drop():
                mine = [born.pop(request, -1) for request in body.requests]
                if step in steps:
                    count += len(mine)
                    ages += [step - begun for begun in mine if begun >= 0]
            case EndStep():
                step = body.step + 1
                if run.schedule is not None and run.schedule[0].keeps_order:
                    born.clear()  # ids begin anew
    return count, np.array(ages, np.int64)


def seconds_and_tokens(runs: Sequence[Run], steps: Ints) -> tuple[Floats, Floats]:
    """Return the seconds of whole steps and the response tokens trained on in them, [runs, steps] each."""
    return np.array([_seconds(run, steps) for run in runs]), np.array([_tokens(run, steps) for run in runs])


def _seconds(run: Run, steps: Ints) -> Floats:
    rows = run.steps.set_index("step").loc[steps]
    return (rows["end_s"] - rows["start_s"]).to_numpy(np.float64)


def _tokens(run: Run, steps: Ints) -> Floats:
    tokens = run.responses.groupby("step")["response_tokens"].sum()
    return tokens.reindex(steps, fill_value=0).to_numpy(np.float64)
