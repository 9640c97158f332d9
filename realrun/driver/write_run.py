"""Makes the run folder of one measured policy from its finished steps, for a replay as for RL training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pandas as pd

from tlt.realrun.config import RealConfig
from tlt.realrun.driver.engine_record import ENGINE, EngineRecord
from tlt.realrun.driver.plan import PolicyPlan
from tlt.realrun.driver.step import Interval, LiveStep, Response, numbered
from tlt.realrun.training_config import TrainConfig
from tlt.traces.common.manifest import sealed
from tlt.traces.common.writing import replacing
from tlt.traces.runs.engine_steps import ENGINE_STEP_COLUMNS
from tlt.traces.runs.records import RECORDS
from tlt.traces.runs.request_acceptance import write_acceptance
from tlt.traces.runs.runfolder import RunFolder, Summary, write_json, write_table
from tlt.traces.runs.stalls import stalls
from tlt.traces.runs.step_log import StepLog, schedule_facts
from tlt.traces.runs.timeline import Timeline
from tlt.version import VERSION
from tltsched.draft_config import chain


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Where a measurement's lengths and acceptance come from, each one line, and what must be said of it."""

    lengths: str
    acceptance: str
    warnings: tuple[str, ...] = ()


def natural_lengths(most_tokens: int) -> str:
    """Return one line on lengths that the model itself gave its responses."""
    return f"measured: natural lengths of this run, at most {most_tokens:,} tokens."


def write_measured(
    folder: Path,
    config: RealConfig | TrainConfig,
    plan: PolicyPlan,
    engine: EngineRecord,
    steps: Sequence[LiveStep],
    sources: Sources,
    truncated: Callable[[int, Response], bool],
) -> None:
    """Write all files that measured runs have in common; `truncated(step, response)` says who was cut."""
    engine_steps = engine_step_table(steps)
    log = StepLog()
    for step in steps:
        log.add(step, response_table(step, truncated))
    responses, intervals, rows = log.tables(timelines(steps, config.workers.count, plan.spec.overlaps))
    summary = Summary(
        kind="measured",
        name=config.name,
        policy=plan.name,
        model=config.model.name,
        gpu=engine.device,
        workers=config.workers.count,
        gpus_per_worker=config.workers.tp,
        steps=len(steps),
        wall_s=steps[-1].end_s,
        response_tokens=int(responses["response_tokens"].sum()),
        cost_source=engine.describe(),
        lengths_source=sources.lengths,
        acceptance_source=sources.acceptance if plan.speculating else "not used",
        seed=config.seed,
        tool_version=VERSION,
        preemptions=sum(row.preempted for step in steps for _, rows in step.engine_steps for row in rows),
        warnings=(*sources.warnings, *_stalled(engine_steps), *_compiled(plan, engine_steps)),
    )
    with sealed(folder):
        write_json(folder / "resolved_config.json", config)
        write_json(folder / "scheduler.json", plan.setup)
        write_json(folder / ENGINE, engine)
        with replacing(folder / RECORDS) as part, part.open("wb") as file:
            file.writelines(numbered(steps))
        write_table(folder / "engine_steps.parquet", engine_steps)
        write_acceptance(folder, acceptance_table(steps))
        run = RunFolder(folder)
        run.write(summary, responses, intervals, rows)
        if facts := schedule_facts(plan.setup.cluster):
            run.write_schedule(facts, pd.DataFrame([schedule_row(step) for step in steps]))


def response_table(step: LiveStep, truncated: Callable[[int, Response], bool]) -> pd.DataFrame:
    """Return a row a response (tlt.traces.runs.runfolder.RESPONSE_COLUMNS)."""
    done = sorted(step.responses, key=lambda response: response.request)
    return pd.DataFrame(
        {
            "step": step.step,
            "request": [response.request for response in done],
            "group": [response.group for response in done],
            "worker": [response.worker for response in done],
            "prompt_tokens": [response.prompt_tokens for response in done],
            "response_tokens": [response.tokens for response in done],
            "truncated": [truncated(step.step, response) for response in done],
            "start_s": [response.start_s for response in done],
            "finish_s": [response.finish_s for response in done],
        }
    )


def schedule_row(step: LiveStep) -> dict[str, float | int]:
    """Return what the schedule did beside the time in a step (SCHEDULE_COLUMNS)."""
    in_flight = [response.ended - response.born for response in step.responses]
    in_queue = [step.step - response.ended for response in step.responses]
    staleness = [sum(lags) for lags in zip(in_flight, in_queue, strict=True)]
    return {
        "step": step.step,
        "trained_responses": len(step.responses),
        "response_tokens": sum(response.tokens for response in step.responses),
        "wasted_tokens": step.wasted_tokens,
        "carried_responses": len(step.carried),
        "carried_tokens": sum(carried.emitted for carried in step.carried),
        "staleness_mean": _mean(staleness),
        "staleness_max": max(staleness, default=0),
        "in_flight_lag_mean": _mean(in_flight),
        "in_queue_lag_mean": _mean(in_queue),
        "dropped_responses": step.dropped_responses,
        "dropped_tokens": step.dropped_tokens,
    }


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def timelines(steps: Sequence[LiveStep], workers: int, overlaps: bool) -> list[Timeline]:
    """Return where each worker's time went; what no worker booked in a step is waiting for its end.

    Rollouts that go on between steps (`overlaps`) are told late, and cut at the ends of steps.
    """
    booked = [Timeline(worker) for worker in range(workers)]
    if overlaps:
        ends = [(step.step, step.end_s) for step in steps]
        told = [interval for step in steps for interval in step.intervals]
        told += [Interval(worker, "admission_wait", ends[-1][1]) for worker in range(workers)]
        for interval in told:
            for number, end_s in ends:
                booked[interval.worker].book(interval.cause, number, min(interval.end_s, end_s))
        return booked
    for step in steps:
        for interval in step.intervals:
            booked[interval.worker].book(interval.cause, step.step, min(interval.end_s, step.end_s))
        for timeline in booked:
            timeline.book("tail_idle", step.step, step.end_s)
    return booked


def engine_step_table(steps: Sequence[LiveStep]) -> pd.DataFrame:
    """Return a row an engine step (ENGINE_STEP_COLUMNS); those after worker are of messages.EngineStep."""
    rows = [
        (step.step, worker, *msgspec.structs.astuple(engine_step)[: len(ENGINE_STEP_COLUMNS) - 2])
        for step in steps
        for worker, engine_steps in step.engine_steps
        for engine_step in engine_steps
    ]
    return pd.DataFrame(rows, columns=list(ENGINE_STEP_COLUMNS)).astype(ENGINE_STEP_COLUMNS)


def acceptance_table(steps: Sequence[LiveStep]) -> pd.DataFrame:
    """Return acceptance by request (ACCEPTANCE_COLUMNS), counts of the same cell summed."""
    rows = [(step.step, *msgspec.structs.astuple(count)) for step in steps for count in step.acceptance]
    table = pd.DataFrame(
        rows, columns=["step", "request", "from_token", "depth", "request_steps", "accepted_tokens"]
    )
    cells = table.groupby(["step", "request", "from_token", "depth"], as_index=False).sum()
    names = {depth: str(chain(depth)) for depth in cells["depth"].unique().tolist()}
    return cells.assign(
        draft_config=cells["depth"].map(names),
        drafted_tokens=cells["depth"] * cells["request_steps"],
    )


def _stalled(engine_steps: pd.DataFrame) -> tuple[str, ...]:
    return tuple(
        f"{stall.text()}: its figures hold that time, measure it again" for stall in stalls(engine_steps)
    )


def _compiled(plan: PolicyPlan, engine_steps: pd.DataFrame) -> tuple[str, ...]:
    count = int(engine_steps["compiled"].sum())
    text = f"{count} timed engine steps of {plan.name} contain a compilation: its times are too long"
    return (text,) if count else ()
