"""The files of a run: the one place where the simulator, the live engine and the reports meet.

A run folder holds

    summary.json           who ran what, on how many GPUs, for how long (Summary)
    resolved_config.json   every setting, defaults included
    scheduler.json         what rebuilds the schedulers for a replay (tltsched.record.SchedulerSetup)
    records.jsonl          every event and command, in order (tltsched.record)
    responses.parquet      a row a response (RESPONSE_COLUMNS)
    intervals.parquet      a row a stretch of time that one worker spent on one cause (INTERVAL_COLUMNS)
    steps.parquet          a row an RL step (STEP_COLUMNS)

and a comparison folder holds comparison.json (Comparison) beside the run folders it names; one that was
made to recommend has advice.json (Advice) and cost_draws.parquet (COST_DRAW_COLUMNS) as well. Times are
seconds since the run began. For each worker the intervals tile [0, wall_s] without gaps or overlaps.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import pandas as pd

from tltsched.errors import InputError

FORMAT_VERSION = 1
T = TypeVar("T")

Category = Literal["rollout", "idle", "drafter", "phase"]

# cause -> (category, what a reader is told)
CAUSES: dict[str, tuple[Category, str]] = {
    "prefill": ("rollout", "prefill of prompts"),
    "decode": ("rollout", "decode without drafts"),
    "decode_off": ("rollout", "decode with speculation configured but off (K = 0)"),
    "speculate": ("rollout", "draft and verify"),
    "switch": ("rollout", "rebuilding caches to switch speculation on"),
    "recompute": ("rollout", "prefill again after KV-cache preemption"),
    "tail_idle": ("idle", "idle, waiting for the longest responses"),
    "preempt_wait": ("idle", "waiting for drafter training to stop"),
    "drafter_activation": ("drafter", "loading the drafter trainer"),
    "drafter_training": ("drafter", "training the drafter"),
    "drafter_stop": ("drafter", "leaving drafter training"),
    "drafter_publish": ("drafter", "sending drafter weights to all workers"),
    "reward": ("phase", "GPUs waiting for rewards"),
    "logprob": ("phase", "log-probabilities of the old and reference policy"),
    "policy_update": ("phase", "policy update"),
    "weight_sync": ("phase", "sending policy weights to the rollout engines"),
}

RESPONSE_COLUMNS = {
    "step": "int32",
    "request": "int32",  # unique inside a step
    "group": "int32",
    "worker": "int16",
    "prompt_tokens": "int32",
    "response_tokens": "int32",
    "capped": "bool",
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
    "request_cycles": "int64",  # of drafting epochs only: acceptance is accepted_tokens / request_cycles
    "accepted_tokens": "int64",  # the bonus token is not counted
    "drafter_version": "int32",  # -1: no drafter
    "drafter_age_steps": "int32",  # policy updates since that version was published
    "trained_tokens": "int64",
}


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
    warnings: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.workers * self.gpus_per_worker


class Comparison(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Run folders (by name, beside this file) that rolled out the same lengths; the first is the baseline."""

    format_version: int = FORMAT_VERSION
    name: str
    runs: tuple[str, ...]


class BatchAdvice(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The best arm for one batch size, and its tokens per second over those without speculation."""

    requests: int
    context_tokens: float  # of one request when so many are left
    arm: str
    gain: float  # 1.0: as fast as without speculation
    gain_low: float  # 95 % interval over the uncertainty of the step times
    gain_high: float
    runner_up: str
    may_flip: bool  # the runner-up wins in more than 2.5 % of the draws
    extrapolated: bool  # batch or context lies outside the points that the step times were fitted to


class Advice(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What to draft at which batch size, beside a comparison that was made to recommend."""

    format_version: int = FORMAT_VERSION
    cost_error: float  # standard deviation of the step times, as a share
    cost_error_source: str
    rows: tuple[BatchAdvice, ...]


# Step times of every arm under step-time coefficients drawn within their error; draw 0 is the fit itself.
COST_DRAW_COLUMNS = {"draw": "int32", "run": "str", "step": "int32", "step_s": "float64"}


def _frame(rows: pd.DataFrame, columns: dict[str, str]) -> pd.DataFrame:
    return rows[list(columns)].astype(columns)


def run_name(arm: str) -> str:
    """Return a folder name for an arm as the user wrote it."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", arm).strip("-.") or "arm"


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON with a newline at the end."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def read_struct(path: Path, kind: type[T]) -> T:
    """Read a JSON file as `kind`; raises InputError if it is missing or not of that form."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise InputError(
            "run folder", str(path.parent), f"a folder with {path.name}", "check the path"
        ) from None
    except msgspec.MsgspecError as error:
        raise InputError(path.name, str(error), kind.__name__, f"check {path}") from None


class RunFolder:
    """Reads and writes one run folder; every table is validated against its columns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(
        self, summary: Summary, responses: pd.DataFrame, intervals: pd.DataFrame, steps: pd.DataFrame
    ) -> None:
        """Write the summary and the three tables; the folder is made if it does not exist."""
        self.path.mkdir(parents=True, exist_ok=True)
        _frame(responses, RESPONSE_COLUMNS).to_parquet(self.path / "responses.parquet", index=False)
        _frame(intervals, INTERVAL_COLUMNS).to_parquet(self.path / "intervals.parquet", index=False)
        _frame(steps, STEP_COLUMNS).to_parquet(self.path / "steps.parquet", index=False)
        write_json(self.path / "summary.json", summary)

    def summary(self) -> Summary:
        """Return the summary; raises InputError if the folder holds none."""
        return read_struct(self.path / "summary.json", Summary)

    def responses(self) -> pd.DataFrame:
        """Return a row a response."""
        return self._table("responses.parquet", RESPONSE_COLUMNS)

    def intervals(self) -> pd.DataFrame:
        """Return a row an interval, in order of worker and time."""
        return self._table("intervals.parquet", INTERVAL_COLUMNS)

    def steps(self) -> pd.DataFrame:
        """Return a row an RL step."""
        return self._table("steps.parquet", STEP_COLUMNS)

    def _table(self, name: str, columns: dict[str, str]) -> pd.DataFrame:
        path = self.path / name
        if not path.is_file():
            raise InputError(
                "run folder", str(self.path), f"a folder with {name}", "run the simulation again"
            )
        try:
            return _frame(pd.read_parquet(path), columns)
        except (KeyError, ValueError, OSError) as error:
            raise InputError(name, str(error), ", ".join(columns), f"check {path}") from None
