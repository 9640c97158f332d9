"""A run folder made of what the plugin wrote: the same files that `tlt real` leaves."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from tlt.plugin.facts import ENGINE, Advice, EngineFacts, Step
from tlt.traces.common.manifest import sealed
from tlt.traces.common.writing import replacing
from tlt.traces.live.engines import EngineLog, is_live, newest_s, read_engines
from tlt.traces.live.steps import ABORTED, Job, JobStep
from tlt.traces.runs.engine_steps import ENGINE_STEP_COLUMNS, ENGINE_STEPS
from tlt.traces.runs.records import RECORDS, in_order
from tlt.traces.runs.request_acceptance import write_acceptance
from tlt.traces.runs.runfolder import RESPONSE_COLUMNS, RunFolder, Summary, write_json, write_table
from tlt.traces.runs.step_log import StepLog, StepState
from tlt.traces.runs.timeline import Timeline
from tlt.version import VERSION
from tltsched.draft_config import chain
from tltsched.errors import InputError
from tltsched.event_log import Record, SchedulerSetup, encode
from tltsched.events import DecisionEnded, RolloutBegan
from tltsched.policies import parse_policy

WEIGHTLESS = ("ngram", "ngram_gpu", "suffix")  # they draft from texts alone
ONE_JOB = ("mode", "policy", "model", "engine_version", "max_running", "name")


def collect(folder: Path) -> Summary:
    """Write the run folder of a job into the folder that its engines wrote into; returns its summary.

    Raises InputError if engines of different jobs wrote there, or if no response was finished.
    """
    engines = read_engines(folder)
    _check_one_job(folder, engines)
    job = Job(engines)
    if not job.steps:
        raise InputError("FOLDER", str(folder), "a job that finished a response", "let it run on")
    rows = [(step, engine, each) for step in job.steps for engine, part in step.parts for each in part.steps]
    log = StepLog()
    for step in job.steps:
        log.add(state_of(job, step), response_table(job, step))
    responses, intervals, steps = log.tables(timelines(job))
    summary = summary_of(job, responses, sum(each.preempted for _, _, each in rows))
    setup = _setup(folder, engines)
    with sealed(folder):
        write_json(folder / "scheduler.json", setup)
        write_json(folder / "resolved_config.json", _settings(engines))
        write_json(folder / ENGINE, engines[0].about)
        with replacing(folder / RECORDS) as part, part.open("wb") as file:
            file.writelines(_records(job))
        write_table(folder / ENGINE_STEPS, engine_step_table(job, rows))
        write_acceptance(folder, acceptance_table(job))
        RunFolder(folder).write(summary, responses, intervals, steps)
    return summary


def collect_if_new(folder: Path) -> None:
    """Write the run folder of a job if the plugin has written there since it was made; raises InputError."""
    if is_live(folder):
        made = folder / "summary.json"
        if not made.is_file() or made.stat().st_mtime < newest_s(folder):
            collect(folder)


def _check_one_job(folder: Path, engines: list[EngineLog]) -> None:
    first = engines[0].about
    for log in engines[1:]:
        for name in ONE_JOB:
            if getattr(log.about, name) != getattr(first, name):
                raise InputError(
                    f"{name} of engine {log.about.number} in {folder}", getattr(log.about, name),
                    f"{getattr(first, name)}, as engine {first.number} has it",
                    "give each job a folder of its own (`out` in the file of TLT_PLUGIN)",
                )  # fmt: skip


def _setup(folder: Path, engines: list[EngineLog]) -> SchedulerSetup:
    """Return what the engines' schedulers were built from; raises InputError if they differ."""
    setups = [log.about.setup for log in engines if log.about.setup is not None]
    if not setups:  # step times were never known, so that nobody decided
        return SchedulerSetup(workers=len(engines), policy=parse_policy("none"))
    same = [msgspec.structs.replace(setup, workers=len(engines)) for setup in setups]
    if any(setup != same[0] for setup in same):
        raise InputError(
            "setup", str(folder), "engines that decide by the same policy and step times",
            "give each job a folder of its own",
        )  # fmt: skip
    return same[0]


def _settings(engines: list[EngineLog]) -> dict[str, Any]:
    about = engines[0].about
    return {
        "engine": {"max_running": about.max_running, "prefix_caching": about.prefix_caching},
        "drafter": {"kind": about.method, "most": about.max_drafts},
        "live": msgspec.to_builtins(msgspec.structs.replace(about, setup=None)),
    }


def _records(job: Job) -> Iterator[bytes]:
    """Yield the records of all engines: times of the job, steps and requests as its tables number them."""
    lines = [
        [encode(record) for record in _renumbered(job, engine, log)] for engine, log in enumerate(job.engines)
    ]
    for seq, line in enumerate(in_order(lines)):
        record = msgspec.json.decode(line, type=Record)
        yield encode(msgspec.structs.replace(record, seq=seq))


def _renumbered(job: Job, engine: int, log: EngineLog) -> Iterator[Record]:
    steps = {part.began.rollout: step for step in job.steps for who, part in step.parts if who == engine}
    current: JobStep | None = None
    for record in log.records:
        body, t_s = record.body, job.t_s(engine, record.t_s)
        if isinstance(body, RolloutBegan):
            current = steps.get(body.step)
        if current is None:
            continue  # of a rollout that no response was finished in
        if hasattr(body, "t_s"):
            body = msgspec.structs.replace(body, t_s=t_s)
        if isinstance(body, RolloutBegan):
            body = msgspec.structs.replace(body, step=current.number)
        elif isinstance(body, DecisionEnded):
            number = {each: current.id_of(engine, each) for each in _named(body)}
            body = msgspec.structs.replace(
                body,
                finished=tuple(number[each] for each in body.finished),
                by_request=tuple((number[each], *counts) for each, *counts in body.by_request),
            )
        yield msgspec.structs.replace(record, t_s=t_s, body=body)


def _named(body: DecisionEnded) -> Iterator[int]:
    yield from body.finished
    yield from (each[0] for each in body.by_request)


def engine_step_table(job: Job, rows: Iterable[tuple[JobStep, int, Step]]) -> pd.DataFrame:
    """Return a row an engine step (ENGINE_STEP_COLUMNS)."""
    values = [
        (
            step.number, engine, job.t_s(engine, each.t_s), each.seconds, each.batch, each.context_tokens,
            each.prompt_tokens, each.k, each.drafted_tokens, sum(each.accepted_by_position), each.compiled,
        )
        for step, engine, each in rows
    ]  # fmt: skip
    return pd.DataFrame(values, columns=list(ENGINE_STEP_COLUMNS)).astype(ENGINE_STEP_COLUMNS)


def response_table(job: Job, step: JobStep) -> pd.DataFrame:
    """Return a row a response (RESPONSE_COLUMNS); one that was waiting when the step began starts there."""
    done = step.finished()
    groups: dict[object, int] = {}
    rows = []
    for engine, each in done:
        request = step.id_of(engine, each.request)
        prompt: object = each.prompt if each.prompt >= 0 else (engine, each.request)
        rows.append(
            (
                step.number, request, groups.setdefault(prompt, len(groups)), engine, each.prompt_tokens,
                each.response_tokens, each.reason == "length",
                max(job.t_s(engine, each.arrived_s), step.start_s), job.t_s(engine, each.t_s),
            )
        )  # fmt: skip
    return pd.DataFrame(sorted(rows), columns=list(RESPONSE_COLUMNS))


def timelines(job: Job) -> list[Timeline]:
    """Return where each engine's time went; between rollouts it is the trainer's."""
    booked = [Timeline(worker) for worker in range(len(job.engines))]
    for step in job.steps:
        for engine, rollout in step.parts:
            off = "decode_off" if job.engines[engine].about.max_drafts else "decode"
            timeline = booked[engine]
            for each in rollout.steps:
                cause = "prefill" if each.prompt_tokens else "speculate" if each.k else off
                start_s = job.t_s(engine, each.t_s)
                timeline.book("tail_idle", step.number, min(start_s, step.end_s))
                timeline.book(cause, step.number, min(start_s + each.seconds, step.end_s))
        for timeline in booked:
            timeline.book("tail_idle", step.number, step.rollout_end_s)
            timeline.book("other", step.number, step.end_s)
    return booked


def state_of(job: Job, step: JobStep) -> StepState:
    """Return what a step did; n-grams and suffixes are no drafter that has weights."""
    began = [part.began for _, part in step.parts]
    engine, first = step.parts[0]
    learned = job.engines[engine].about.method not in WEIGHTLESS
    version = min(each.drafter_version for each in began) if learned else -1
    state = StepState(
        step=step.number, start_s=step.start_s, rollout_end_s=step.rollout_end_s, end_s=step.end_s,
        drafter_version=version, drafter_age_steps=_drafter_age(job.engines[engine], first.began.t_s),
    )  # fmt: skip
    for _, rollout in step.parts:
        for before, each in zip([None, *rollout.steps], rollout.steps, strict=False):
            if not each.prompt_tokens and (each.drafted_tokens or (before is not None and before.k)):
                state.request_steps += each.batch
                state.accepted_tokens += sum(each.accepted_by_position)
    return state


def _drafter_age(log: EngineLog, t_s: float) -> int:
    """Return how often the policy was updated since the drafter was, before a time of this engine."""
    before = [weights for weights in log.weights if weights.t_s <= t_s]
    drafted = [weights.policy_version for weights in before if weights.what == "drafter"]
    now = before[-1].policy_version if before else 0
    return now - (drafted[-1] if drafted else 0) if log.about.max_drafts else 0


def acceptance_table(job: Job) -> pd.DataFrame:
    """Return acceptance by request (ACCEPTANCE_COLUMNS)."""
    rows = [
        (
            step.number, step.id_of(engine, done.request), count.from_token, str(chain(count.depth)),
            count.request_steps, count.depth * count.request_steps, count.accepted_tokens,
        )
        for step in job.steps
        for engine, done in step.finished()
        for count in done.drafts
        if count.from_token <= done.response_tokens
    ]  # fmt: skip
    columns = ["step", "request", "from_token", "draft_config"]
    counts = ["request_steps", "drafted_tokens", "accepted_tokens"]
    return pd.DataFrame(rows, columns=columns + counts)


def summary_of(job: Job, responses: pd.DataFrame, preemptions: int) -> Summary:
    """Return the facts of a job."""
    about = job.engines[0].about
    day = datetime.datetime.fromtimestamp(about.started_unix_s, datetime.UTC).date().isoformat()
    return Summary(
        kind="measured",
        name=about.name,
        policy=about.policy,
        model=Path(about.model).name,
        gpu=about.device,
        workers=len(job.engines),
        gpus_per_worker=about.gpus,
        steps=len(job.steps),
        wall_s=job.steps[-1].end_s,
        response_tokens=int(responses["response_tokens"].sum()),
        cost_source=f"measured: {about.engine} {about.engine_version}, {about.device}, {day}",
        lengths_source=f"a live job, mode {about.mode} of the plugin",
        acceptance_source=f"measured: drafter {about.method}" if about.max_drafts else "not used",
        seed=about.setup.seed if about.setup else 0,
        tool_version=VERSION,
        preemptions=preemptions,
        warnings=tuple(_warnings(job, about)),
    )


def _warnings(job: Job, about: EngineFacts) -> Iterator[str]:
    for log in job.engines:
        for fault in log.faults:
            yield (
                f"the plugin stopped in engine {log.about.number} after {fault.t_s:.1f} s, and the engine "
                f"went on by its own choice: {fault.text}"
            )
        if log.torn:
            yield f"engine {log.about.number} was killed: its last line is lost"
    aborted = sum(
        done.reason == ABORTED for step in job.steps for _, part in step.parts for done in part.done
    )
    if aborted:
        yield f"{aborted:,} requests were aborted: they are in no table, the time that they took is"
    undecided = [log for log in job.engines if log.about.setup is None]
    if undecided:
        yield f"step times were not known before the end: {about.policy} has decided nothing"
    if about.advised_policy:
        yield _advice(about.advised_policy, [each for log in job.engines for each in log.advice])
    if len(job.steps) > 1:
        yield "what the job did between two rollouts is booked as other: the engines do not know"


def _advice(policy: str, advice: list[Advice]) -> str:
    """Return what an advised policy would have done otherwise, by batch."""
    batches: dict[tuple[str, str], list[int]] = {}
    for each in advice:
        if each.advised != each.actual:
            batches.setdefault((each.advised, each.actual), []).append(each.requests)
    others = [
        f"{advised} in place of {actual} at batch {min(at)}{f' to {max(at)}' if max(at) > min(at) else ''}"
        for (advised, actual), at in sorted(batches.items(), key=lambda item: min(item[1]))
    ]
    count = sum(map(len, batches.values()))
    told = f": drafts of {'; '.join(others)}" if others else ""
    return f"{policy} would have drafted otherwise at {count:,} of {len(advice):,} decisions{told}"
