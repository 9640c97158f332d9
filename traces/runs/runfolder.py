"""The files of a run: the one place where the simulator, the live engine and the reports meet.

A run folder holds

    summary.json           who ran what, on how many GPUs, for how long (Summary)
    resolved_config.json   every setting, defaults included
    scheduler.json         what rebuilds the schedulers for a replay (tltsched.event_log.SchedulerSetup)
    records.jsonl          every event and command, in order (tltsched.event_log)
    responses.parquet      a row a response (RESPONSE_COLUMNS)
    intervals.parquet      a row an interval that one worker spent on one cause (INTERVAL_COLUMNS)
    steps.parquet          a row an RL step (STEP_COLUMNS)

A run under another schedule than the plain synchronous one has

    schedule.json          what the schedule does to the order and freshness of samples (ScheduleFacts)
    schedule.parquet       a row an RL step (SCHEDULE_COLUMNS)

one whose requests are sessions has sessions.json (what turns, tools and prefix caches came to, SessionFacts)
and sessions.parquet (a row a session, SESSION_COLUMNS), a run with drafts has acceptance.parquet
(tlt.traces.runs.request_acceptance), a live one has
engine_steps.parquet (tlt.traces.runs.engine_steps), and a comparison folder holds comparison.json
(Comparison) beside the run folders it names; one that was made to recommend has advice.json (Advice) and
cost_draws.parquet (COST_DRAW_COLUMNS) as well. Times are seconds since the run began. For each worker the
intervals tile [0, wall_s] without gaps or overlaps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tlt.traces.common import migrate
from tlt.traces.common.bounds import require_size
from tlt.traces.common.manifest import verify
from tlt.traces.common.writing import replacing, write_file
from tltsched.errors import InputError

FORMAT_VERSION = 2  # what version 1 wrote is read by traces.common.migrate
T = TypeVar("T")

Category = Literal["rollout", "idle", "drafter", "phase"]

# cause -> (category, what a reader is told)
CAUSES: dict[str, tuple[Category, str]] = {
    "prefill": ("rollout", "prefill of prompts"),
    "decode": ("rollout", "decode without drafts"),
    "decode_off": ("rollout", "decode with speculation configured but off (K = 0)"),
    "speculate": ("rollout", "draft and verify"),
    "switch": ("rollout", "rebuilding caches to switch speculation on"),
    "recompute": ("rollout", "prefill again of what was preempted, moved or resumed"),
    "tail_idle": ("idle", "idle, waiting for the longest responses"),
    "tool_wait": ("idle", "idle, waiting for tools of sessions"),
    "preempt_wait": ("idle", "waiting for drafter training to stop"),
    "admission_wait": ("idle", "idle, until staleness allows further prompts"),
    "batch_wait": ("idle", "trainers waiting for a complete batch"),
    "sync_pause": ("idle", "waiting for running requests to stop before new weights go out"),
    "lend": ("idle", "trainers changing sides, to generate and back"),
    "drafter_activation": ("drafter", "loading the drafter trainer"),
    "drafter_training": ("drafter", "training the drafter"),
    "drafter_stop": ("drafter", "leaving drafter training"),
    "drafter_publish": ("drafter", "sending drafter weights to all workers"),
    "reward": ("phase", "GPUs waiting for rewards"),
    "logprob": ("phase", "log-probabilities of the old and reference policy"),
    "policy_update": ("phase", "policy update"),
    "weight_sync": ("phase", "sending policy weights to the rollout engines"),
    "other": ("phase", "time of a step that its log books to no phase"),
}

RESPONSE_COLUMNS = {
    "step": "int32",
    "request": "int32",  # unique inside a step; through the run under a schedule that carries requests over
    "group": "int32",
    "worker": "int16",
    "prompt_tokens": "int32",
    "response_tokens": "int32",
    "truncated": "bool",
    "start_s": "float64",
    "finish_s": "float64",
}
INTERVAL_COLUMNS = {
    "worker": "int16",
    "cause": "category",
    "step": "int32",
    "start_s": "float64",
    "end_s": "float64",
}
STEP_COLUMNS = {
    "step": "int32",
    "start_s": "float64",
    "rollout_end_s": "float64",
    "end_s": "float64",
    "request_steps": "int64",  # while drafting: acceptance is accepted_tokens / request_steps
    "accepted_tokens": "int64",  # the bonus token is not counted
    "drafter_version": "int32",  # -1: no drafter
    "drafter_age_steps": "int32",  # policy updates since that version was published
    "trained_tokens": "int64",
}


SCHEDULE_COLUMNS = {
    "step": "int32",
    "trained_responses": "int32",  # that the policy was trained on in this step
    "response_tokens": "int64",  # of those
    "wasted_tokens": "int64",  # generated and thrown away in this step
    "carried_responses": "int32",  # begun or queued, and alive at the end of the step
    "carried_tokens": "int64",  # generated by those, as last reported
    "staleness_mean": "float64",  # policy updates from the weights that began a response to its training
    "staleness_max": "int32",
    "in_flight_lag_mean": "float64",  # of these, while it was generated
    "in_queue_lag_mean": "float64",  # and from its end to its training
    "dropped_responses": "int32",  # given up in this step, spare or too stale
    "dropped_tokens": "int64",  # of those; part of wasted_tokens
}
NOT_TOLD = {"in_flight_lag_mean": float("nan"), "in_queue_lag_mean": float("nan"), "dropped_responses": -1,
            "dropped_tokens": -1}  # fmt: skip


SESSIONS = "sessions.json"
SESSION_COLUMNS = {
    "step": "int32",
    "request": "int32",
    "turns": "int32",
    "tool_s": "float64",  # that its tools took
    "tool_queue_s": "float64",  # that it waited until they ran
}


class SessionFacts(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What sessions met with in a run. Tokens are those of contexts, when their turns were admitted."""

    routing: str  # rule by which turns were placed
    tools_at_once: int  # 0: no limit
    tool_wait_kv: Literal["keep", "drop"]
    turns: int  # admitted, those of stopped sessions included
    asked_tokens: int  # whole contexts, as engines count queries of their prefix caches
    found_tokens: int  # of these, found there
    again_tokens: int  # computed before, and computed again
    timeouts: int

    @property
    def hit_share(self) -> float:
        """The share of the contexts that was found in prefix caches."""
        return self.found_tokens / self.asked_tokens if self.asked_tokens else 0.0


class ScheduleFacts(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a rollout schedule does beside the time it takes."""

    name: str
    keeps_order: bool  # each step trains on the responses to its own prompts, as synchronous training does
    on_policy: Literal["yes", "mixed", "no"]  # whether trained tokens come from the weights they update
    clairvoyant: bool = False  # it knows lengths in advance: nobody can run it


ONE_WORKER = re.compile(r"^(one|\d+ x) | \(TP \d+\)$")  # around the GPU's name, as a live engine says it


class Summary(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Facts about one run. `warnings` are sentences that must be shown beside any of its figures."""

    format_version: int = FORMAT_VERSION
    kind: Literal["simulated", "measured"]
    name: str
    policy: str
    model: str
    gpu: str
    workers: int
    gpus_per_worker: int
    steps: int
    wall_s: float
    response_tokens: int
    cost_source: str  # e.g. "measured: vLLM 0.32.0, one H100 80 GB, 2026-10-30"
    lengths_source: str
    acceptance_source: str
    seed: int
    tool_version: str
    elapsed_s: float | None = None  # what the tool itself took; None in files that must be reproducible
    preemptions: int | None = None  # requests that lost their KV cache to make room; None: not counted
    warnings: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.workers * self.gpus_per_worker

    @property
    def hardware(self) -> str:
        """All that the run had, such as `4 x H100`; in a measured run `gpu` says what one worker has."""
        if self.gpu.startswith("CPU "):
            return f"{self.workers} x {self.gpu}"
        return f"{self.gpus} x {ONE_WORKER.sub('', self.gpu)}"


class Comparison(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Run folders (by name, beside this file) that rolled out the same lengths; the first is the baseline."""

    format_version: int = FORMAT_VERSION
    name: str
    runs: tuple[str, ...]


class BatchAdvice(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The best draft config for one batch size; gains are in tokens per second over no speculation."""

    requests: int
    context_tokens: float  # of one request when so many are left
    draft_config: str
    gain: float  # 1.0: as fast as without speculation
    gain_low: float  # 95 % interval over the uncertainty of the step times
    gain_high: float
    runner_up: str
    runner_up_lost: float | None = None  # share of tokens/s that it loses over the best, by the fit
    regret: float | None = None  # mean share that the best loses to what is fastest in a draw; None: not told
    regret_high: float | None = None  # upper end of its 95 % interval
    ties: tuple[str, ...] = ()  # as good as the best: exactly, or within 1 % at 95 %
    near: tuple[str, ...] = ()  # within 1 % of the best by the fit alone
    extrapolated: bool  # batch or context lies outside the points that the step times were fitted to


class Advice(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What to draft at which batch size, beside a comparison that was made to recommend."""

    format_version: int = FORMAT_VERSION
    cost_error: float  # standard deviation of the step times, as a share
    cost_error_source: str
    rows: tuple[BatchAdvice, ...]


# Step times of every policy under step-time coefficients drawn within their error; draw 0 is the fit itself.
COST_DRAW_COLUMNS = {"draw": "int32", "run": "str", "step": "int32", "step_s": "float64"}


def _frame(rows: pd.DataFrame, columns: dict[str, str]) -> pd.DataFrame:
    """Return these columns in these types; raises InputError for a number that its type cannot hold."""
    chosen = rows[list(columns)]
    try:
        found = chosen.astype(columns)
    except OverflowError as error:
        raise InputError("a table", str(error), "numbers of 64 bits at most", "correct it") from None
    for name, kind in columns.items():
        if kind.startswith("int") and chosen[name].dtype != kind:
            odd = chosen[name][found[name] != chosen[name]]  # a narrower type would wrap it round
            if len(odd):
                allowed = f"whole numbers of {kind.removeprefix('int')} bits"
                raise InputError(name, odd.iloc[0], allowed, "correct it, or make it again")
    return found


def run_name(policy: str) -> str:
    """Return a folder name for a policy as the user wrote it."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", policy).strip("-.") or "policy"


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON with a newline at the end."""
    write_file(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def write_table(path: Path, rows: pd.DataFrame, columns: dict[str, str] | None = None) -> None:
    """Write a table as parquet: its columns as they are, or `columns` (name -> dtype) of them."""
    table = rows if columns is None else _frame(rows, columns)
    # Times hardly ever repeat, but their first bytes do: each byte is kept in a stream of its own.
    times = table.select_dtypes("float64").columns.tolist()
    others = table.columns.difference(times).tolist()
    with replacing(path) as part:
        table.to_parquet(
            part, index=False, compression="zstd", use_byte_stream_split=times, use_dictionary=others
        )


def file_of(path: Path) -> Path:
    """Return the file, or the one that version 1 wrote in its place if that alone is there."""
    old = path.with_name(migrate.FILES.get(path.name, path.name))
    return old if old.is_file() and not path.is_file() else path


def read_struct(path: Path, kind: type[T]) -> T:
    """Read a JSON file as `kind`; raises InputError if it is missing or not of that form."""
    verify(path)
    require_size(file_of(path), path.name)
    try:
        return migrate.decode(file_of(path).read_bytes(), kind)
    except FileNotFoundError:
        raise InputError(
            "run folder", str(path.parent), f"a folder with {path.name}", "check the path"
        ) from None
    except InputError as error:
        raise InputError(f"{error.field} of {path}", error.got, error.allowed, error.fix) from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(path.name, str(error), kind.__name__, f"check {path}") from None


def read_table(
    path: Path, columns: dict[str, str], not_told: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """Read these columns (name -> dtype) of a parquet file; raises InputError if it is not of that form.

    `not_told` has the value of each column that older files lack.
    """
    path = file_of(path)
    if not path.is_file():
        raise InputError("folder", str(path.parent), f"a folder with {path.name}", "check the path")
    verify(path)
    try:
        given = pq.read_schema(path).names
        new = migrate.new_names(given, columns)
        found = {new.get(name, name): name for name in given}
        lacking = {name: (not_told or {}).get(name) for name in columns if name not in found}
        missing = [name for name, value in lacking.items() if value is None]
        if missing:
            raise InputError("columns", f"no {', '.join(missing)}", ", ".join(columns), "make it again")
        rows = pd.read_parquet(path, columns=[found[name] for name in columns if name in found])
        return _frame(rows.rename(columns=new).assign(**lacking), columns)
    except InputError as error:
        raise InputError(f"{error.field} of {path}", error.got, error.allowed, error.fix) from None
    except (ValueError, TypeError, OSError, pa.ArrowException) as error:
        raise InputError(path.name, str(error), ", ".join(columns), f"check {path}") from None


class RunFolder:
    """Reads and writes one run folder; every table is validated against its columns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(
        self, summary: Summary, responses: pd.DataFrame, intervals: pd.DataFrame, steps: pd.DataFrame
    ) -> None:
        """Write the summary and the three tables; the folder is made if it does not exist."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_table(self.path / "responses.parquet", responses, RESPONSE_COLUMNS)
        write_table(self.path / "intervals.parquet", intervals, INTERVAL_COLUMNS)
        write_table(self.path / "steps.parquet", steps, STEP_COLUMNS)
        write_json(self.path / "summary.json", summary)

    def write_schedule(self, facts: ScheduleFacts, rows: pd.DataFrame) -> None:
        """Write what a schedule did beside the time; columns of NOT_TOLD may be missing."""
        rows = rows.assign(**{name: value for name, value in NOT_TOLD.items() if name not in rows})
        write_table(self.path / "schedule.parquet", rows, SCHEDULE_COLUMNS)
        write_json(self.path / "schedule.json", facts)

    def schedule(self) -> tuple[ScheduleFacts, pd.DataFrame] | None:
        """Return what the schedule did beside the time; None if it was the plain synchronous one."""
        if not (self.path / "schedule.json").is_file():
            return None
        facts = read_struct(self.path / "schedule.json", ScheduleFacts)
        return facts, read_table(self.path / "schedule.parquet", SCHEDULE_COLUMNS, NOT_TOLD)

    def write_sessions(self, facts: SessionFacts, rows: pd.DataFrame) -> None:
        """Write what came of sessions."""
        write_table(self.path / "sessions.parquet", rows, SESSION_COLUMNS)
        write_json(self.path / SESSIONS, facts)

    def sessions(self) -> tuple[SessionFacts, pd.DataFrame] | None:
        """Return what came of sessions; None if requests were single responses."""
        if not (self.path / SESSIONS).is_file():
            return None
        facts = read_struct(self.path / SESSIONS, SessionFacts)
        return facts, read_table(self.path / "sessions.parquet", SESSION_COLUMNS)

    def summary(self) -> Summary:
        """Return the summary; raises InputError if the folder holds none."""
        return read_struct(self.path / "summary.json", Summary)

    def responses(self) -> pd.DataFrame:
        """Return a row a response."""
        return read_table(self.path / "responses.parquet", RESPONSE_COLUMNS)

    def intervals(self) -> pd.DataFrame:
        """Return a row an interval, in order of worker and time."""
        return read_table(self.path / "intervals.parquet", INTERVAL_COLUMNS)

    def steps(self) -> pd.DataFrame:
        """Return a row an RL step."""
        return read_table(self.path / "steps.parquet", STEP_COLUMNS)
