"""A run folder in memory, and the runs of a comparison folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.analysis.cost_draws import Recommendation, read_recommendation
from tlt.traces.common.arrays import Floats
from tlt.traces.common.manifest import verify_all
from tlt.traces.results.answer import LEFT_BEHIND
from tlt.traces.results.bounds import Bounds, read_bounds
from tlt.traces.results.what_if import WhatIf, read_what_if
from tlt.traces.runs.batch_acceptance import read_batch_acceptance
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.request_acceptance import read_acceptance
from tlt.traces.runs.runfolder import CAUSES, Advice, RunFolder, ScheduleFacts, SessionFacts, Summary
from tlt.traces.runs.stalls import READ, stalls
from tlt.traces.sources import RunSource, open_runs
from tltsched.errors import InputError
from tltsched.schedules import PRESETS

# Of the RL steps' seconds: what was measured with more is not that of a policy. A stall moves the ratio of
# two policies by its own share at most, and a choice between them is held to 2 % (the regret of crosscheck).
STOOD_STILL = 0.02


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its summary, tables and settings.

    `policy` is the policy as the user wrote it, and unique among the runs that are read together.
    """

    policy: str
    path: Path
    summary: Summary
    responses: pd.DataFrame
    intervals: pd.DataFrame
    steps: pd.DataFrame
    config_text: str  # resolved_config.json as it was written; empty if the folder has none
    schedule: tuple[ScheduleFacts, pd.DataFrame] | None = None  # None: plain synchronous
    sessions: tuple[SessionFacts, pd.DataFrame] | None = None  # None: single responses
    acceptance: pd.DataFrame | None = None  # ACCEPTANCE_COLUMNS; None: no drafts, or not counted by request
    stalled_s: float = 0.0  # in which a worker stood still, of all steps; of a measured run

    def keeps_order(self) -> bool:
        """Return whether each step trains on the responses to its own prompts."""
        return self.schedule is None or self.schedule[0].keeps_order

    def drafts_by_batch(self) -> pd.DataFrame | None:
        """Return BATCH_ACCEPTANCE_COLUMNS; None if nothing was drafted, or no file says at which batch."""
        if not int(self.steps["request_steps"].sum()):
            return None
        rows = read_batch_acceptance(self.path)
        return None if rows is None or rows.empty else rows

    def threshold_requests(self) -> float | None:
        """Return the running-request threshold of speculation, or None if the settings name none."""
        return _find_threshold(msgspec.json.decode(self.config_text)) if self.config_text else None

    def trained_policy(self) -> bool:
        """Return whether this is a training run: it has rewards, and generated lengths of its own."""
        return (self.path / "rewards.parquet").is_file()

    def step_seconds(self) -> Floats:
        """Return the length of each RL step in seconds, shape (steps,), in order of step."""
        return (self.steps["end_s"] - self.steps["start_s"]).to_numpy(dtype=np.float64)

    def rollout_seconds(self) -> Floats:
        """Return the seconds from each RL step's start to its last response, shape (steps,)."""
        return (self.steps["rollout_end_s"] - self.steps["start_s"]).to_numpy(dtype=np.float64)

    def tokens(self) -> int:
        """Return the response tokens that it trained on."""
        return int(self.responses["response_tokens"].sum())

    def stood_still(self) -> str:
        """Return for how long workers stood still where that is too much to rank it; empty: it can be."""
        total_s = float(self.step_seconds().sum())
        return f"{self.stalled_s:,.3g} of {total_s:,.3g} s" if self.stalled_s > STOOD_STILL * total_s else ""

    def left_behind(self) -> int:
        """Return the responses that are under way or put off at its end."""
        return 0 if self.schedule is None else int(self.schedule[1]["carried_responses"].iloc[-1])

    def unsettled(self) -> bool:
        """Return whether it leaves too much behind to be ranked: more steps would tell.

        Where rollouts never stop what is under way at the end was paid for and is not counted, which flatters
        nobody.
        """
        if self.schedule is None or overlaps(self.schedule[0].name):
            return False
        return self.left_behind() > LEFT_BEHIND * len(self.responses)


@dataclass(frozen=True, slots=True)
class RunSet:
    """The runs of a folder, in its order; the first is the baseline."""

    name: str
    runs: tuple[Run, ...]
    recommendation: Recommendation | None = None
    bounds: Bounds | None = None  # how far any schedule could go
    what_if: WhatIf | None = None  # at other acceptances, on other GPUs

    def advice(self) -> Advice | None:
        """Return the advice by batch size if the folder was made to recommend."""
        return None if self.recommendation is None else self.recommendation.advice

    def step_seconds(self, run: Run) -> Floats:
        """Return the length of each RL step of a run of this set in seconds, shape (1 + draws, steps).

        Row 0 is the run itself; the others are the same run under drawn step-time coefficients.
        """
        if self.recommendation is None:
            return run.step_seconds()[np.newaxis]
        return self.recommendation.step_s[run.path.name]

    @property
    def reference(self) -> Run:
        """The run whose trained tokens the others are held to: the first that keeps the order of samples."""
        return next((run for run in self.runs if run.keeps_order()), self.runs[0])

    def token_factor(self, run: Run) -> float:
        """Return the reference's trained tokens over a run's; 1 where both train on the same responses."""
        tokens = run.tokens()
        if (run.keeps_order() and self.reference.keeps_order()) or not tokens:
            return 1.0
        return self.reference.tokens() / tokens

    def counted_seconds(self, run: Run) -> Floats:
        """Return step_seconds as if each step trained on as many tokens as the reference's.

        Runs are compared by these: their ratio is that of seconds a trained token.
        """
        return self.step_seconds(run) * self.token_factor(run)


def overlaps(schedule: str) -> bool:
    """Return whether rollouts go on while the policy is trained, under a schedule by name or kind."""
    return schedule in PRESETS and PRESETS[schedule].overlaps


def basis_of(runs: Sequence[Run]) -> list[str]:
    """Return what the figures of runs rest on: whether and from what they were simulated or measured."""
    facts = []
    for label, field in (("", "kind"), ("cost: ", "cost_source"), ("lengths: ", "lengths_source")):
        values = dict.fromkeys(str(getattr(run.summary, field)) for run in runs)
        facts.append(label + " / ".join(values))
    return facts


def source_rows(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Return what each kind of figure is, and whether that was measured, published, modelled or assumed."""
    fields = (
        ("Step times and costs", "cost_source"),
        ("Response lengths", "lengths_source"),
        ("Acceptance of drafts", "acceptance_source"),
        ("Timeline", "kind"),
    )
    rows: list[tuple[str, ...]] = []
    for label, field in fields:
        values = dict.fromkeys(str(getattr(run.summary, field)) for run in runs)
        rows += [(label, value) for value in values]
    return rows


def load_run(path: Path) -> Run:
    """Read a run folder. Raises InputError if a file is missing or malformed, a cause is unknown, or the
    times of a response are not in order.
    """
    verify_all(path)
    folder = RunFolder(path)
    summary = folder.summary()
    intervals = folder.intervals()
    unknown = [str(cause) for cause in intervals["cause"].cat.categories if cause not in CAUSES]
    if unknown or bool(intervals["cause"].isna().any()):
        raise InputError(
            "cause in intervals.parquet", ", ".join(unknown) or "null", ", ".join(CAUSES), f"check {path}"
        )
    responses = folder.responses()
    _check_responses(summary, responses)
    return Run(
        policy=summary.policy,
        path=path,
        summary=summary,
        responses=responses,
        intervals=intervals,
        steps=folder.steps().sort_values("step", ignore_index=True),
        config_text=_config_text(path / "resolved_config.json"),
        schedule=folder.schedule(),
        sessions=folder.sessions(),
        acceptance=read_acceptance(path),
        stalled_s=_stalled_s(path),
    )


def _stalled_s(path: Path) -> float:
    """Return the seconds in which a worker of a run stood still, the longest stall of each step."""
    engine_steps = read_engine_steps(path, *READ)
    longest_s: dict[int, float] = {}
    for stall in stalls(engine_steps) if engine_steps is not None else ():
        longest_s[stall.step] = max(stall.seconds, longest_s.get(stall.step, 0.0))
    return sum(longest_s.values())


def load_runs(path: Path) -> RunSet:
    """Read a comparison folder, with its recommendation if it has one, or a run folder as a set of one.

    Policies have the names of their policies, or of their folders if two runs share a policy. Raises
    InputError if the folder is neither, or a file in it is malformed.
    """
    source = open_runs(path)
    verify_all(source.path)
    runs = tuple(load_run(folder) for folder in source.folders)
    if isinstance(source, RunSource):
        return RunSet(runs[0].summary.name, runs)
    path, names = source.path, source.names
    if len({run.policy for run in runs}) < len(runs):
        runs = tuple(replace(run, policy=name) for run, name in zip(runs, names, strict=True))
    step_s = {run.path.name: pd.Series(run.step_seconds(), run.steps["step"]) for run in runs}
    return RunSet(
        source.comparison().name,
        runs,
        read_recommendation(path, step_s),
        _bounds(path, runs[0]),
        read_what_if(path),
    )


def _bounds(path: Path, baseline: Run) -> Bounds | None:
    """Read the bounds of a comparison; raises InputError unless they are of the baseline's steps."""
    bounds = read_bounds(path)
    if bounds is not None and len(bounds.rows) != len(baseline.steps):
        raise InputError(
            "bounds.json", f"{len(bounds.rows)} steps", f"the {len(baseline.steps)} of {baseline.policy}",
            "compare again, or delete it",
        )  # fmt: skip
    return bounds


def _check_responses(summary: Summary, responses: pd.DataFrame) -> None:
    """Demand 0 <= start <= finish <= wall time (to rounding) and a worker of the run for every response."""
    slack_s = 1e-9 * summary.wall_s
    starts, finishes = responses["start_s"].to_numpy(), responses["finish_s"].to_numpy()
    in_time = (starts >= -slack_s) & (finishes >= starts) & (finishes <= summary.wall_s + slack_s)
    wrong = np.flatnonzero(~(in_time & responses["worker"].between(0, summary.workers - 1).to_numpy()))
    if len(wrong) == 0:
        return
    row = responses.iloc[int(wrong[0])]
    raise InputError(
        "responses.parquet",
        f"step {row['step']} request {row['request']} on worker {row['worker']} from {row['start_s']:.6g} s "
        f"to {row['finish_s']:.6g} s ({len(wrong):,} such rows)",
        f"0 <= start <= finish <= {summary.wall_s:.6g} s on workers 0 to {summary.workers - 1}",
        "run the simulation again; the run folder is inconsistent",
    )


def _config_text(path: Path) -> str:
    if not path.is_file():
        return ""
    try:
        return msgspec.json.format(path.read_bytes(), indent=2).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(path.name, str(error), "JSON text", f"check {path}") from None


def _find_threshold(value: object) -> float | None:
    """Return the first number under a key that starts with `threshold`, outer levels first."""
    if not isinstance(value, dict):
        return None
    for key, child in value.items():
        if (
            str(key).startswith("threshold")
            and isinstance(child, (int, float))
            and not isinstance(child, bool)
        ):
            return float(child)
    for child in value.values():
        found = _find_threshold(child)
        if found is not None:
            return found
    return None
