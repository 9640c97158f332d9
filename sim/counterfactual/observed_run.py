"""A run that somebody observed: its lengths, its times where a log has them, and the settings that it states.

It is a run folder or comparison of this project, a trace file, or what a framework wrote
(tlt.traces.importers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tlt.sim.counterfactual.lengths_and_log import notes_on_lengths
from tlt.sim.counterfactual.log_times import ROLLOUT, Logged, logged_of, logged_run
from tlt.sim.validate.replay_measured import MeasuredSettings
from tlt.traces.catalogue.gpus import gpu_of
from tlt.traces.catalogue.models import is_known
from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.phases import PhaseTimes, find_phases
from tlt.traces.importers.reading.items import Options
from tlt.traces.importers.stated.drafts import StatedDrafts
from tlt.traces.importers.unfinished import without_unfinished
from tlt.traces.lengths.files import read_trace
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.counterfactual import LengthFacts
from tlt.traces.runs.runfolder import RunFolder, Summary, read_struct
from tlt.traces.sources import ComparisonSource, Runs, RunSource, TraceFile, open_source
from tltsched.errors import InputError
from tltsched.event_log import SchedulerSetup
from tltsched.written.policy_name import PolicyName

# What the settings of a simulated run say of the run itself, and not of the policy or the lengths.
KEPT_SECTIONS = ("hardware", "cost", "acceptance", "drafter", "engine", "phases", "cluster")


@dataclass(frozen=True)
class Observed:
    """What is known of a run.

    settings: of the simulator, as far as the run states them. policy: as a user would write it.
    """

    trace: Trace
    logged: Logged | None
    source: str
    read_as: str
    settings: dict[str, Any]
    policy: str
    notes: tuple[str, ...] = ()
    drafts: StatedDrafts | None = None  # that a log says the run made
    concurrency: int | None = None  # requests that ran at once, over all workers

    def step_numbers(self) -> list[int]:
        """Return the numbers of the steps, in order."""
        return sorted(self.trace.rows["step"].unique().tolist())

    def why_order_is_kept(self) -> str:
        """Return why schedules that change the order of samples cannot be judged; empty: they can."""
        sizes = self.trace.rows.groupby(["step", "prompt_id"]).size()
        if sizes.min() != sizes.max():
            return f"prompts of this run have {sizes.min()} to {sizes.max()} responses"
        if self.logged is not None and self.logged.waits():
            return "responses wait for tools or scoring, and it is not known which of them how long"
        if self.logged is not None and self.logged.unsplit(len(self.step_numbers())) is not None:
            return "steps are timed and not their rollouts"
        return ""

    def stated_gpus(self) -> tuple[float, str] | None:
        """Return on how many GPUs the log says that the rollouts ran, and by what; None: it does not."""
        logged = self.logged
        if logged is None:
            return None
        if logged.gpus is not None:
            return logged.gpus, "tokens of a step over its seconds and its tokens a second and GPU"
        if logged.gpu_rate is None or ROLLOUT not in logged.times:
            return None
        tokens = float(self.trace.rows["response_tokens"].sum()) / len(self.step_numbers())
        gpus = tokens / (logged.times[ROLLOUT].mean_s * logged.gpu_rate)
        return gpus, "response tokens over the rollout's seconds and its tokens a second and GPU"

    def first(self, steps: int) -> Observed:
        """Return the first `steps` of the run; raises InputError if there are fewer."""
        numbers = self.step_numbers()
        if steps > len(numbers):
            raise InputError("workload.steps", steps, f"at most the {len(numbers)} of the run", "lower it")
        rows = self.trace.rows[self.trace.rows["step"].isin(numbers[:steps])]
        logged = None if self.logged is None else self.logged.first(steps)
        return replace(self, trace=Trace(rows.reset_index(drop=True), self.trace.origin), logged=logged)


def observe(
    path: Path, phases: Path | None, options: Options, progress: Callable[[int], None] | None = None
) -> Observed:
    """Read a run. `phases`: what `tlt trace import --phases` wrote; without it the run's own times count.

    Raises InputError if nothing can be read.
    """
    times = None if phases is None else read_struct(phases, PhaseTimes)
    source = open_source(path)
    match source:
        case RunSource() | ComparisonSource():
            observed = _of_run(source)
        case TraceFile():
            observed = Observed(read_trace(path), None, str(path), "trace", {}, "none")
            drafted = observed.trace.origin.drafted
            if drafted and times is None:
                observed = replace(observed, drafts=StatedDrafts(accepted=0.0, origin=drafted))
        case _:
            trace, report = import_trace(path, options, progress=progress)
            left = f"{report.skips:,} records left out" if report.skips else ""
            notes = tuple(note for note in (left, *report.notes) if note)
            read_as = f"{report.framework} ({report.format})"
            observed = Observed(trace, None, report.source, read_as, {}, "none", notes)
            times = times or find_phases(path)
    if not isinstance(source, Runs):
        trace, left_out = without_unfinished(observed.trace, times)
        notes = (*observed.notes, left_out) if left_out else observed.notes
        observed = replace(observed, trace=trace, notes=notes)
    if times is not None:
        notes = tuple(notes_on_lengths(observed.trace, times))
        observed = replace(
            observed,
            notes=(*observed.notes, *notes),
            logged=logged_of(times, observed.step_numbers()),
            drafts=times.drafts,
            concurrency=times.concurrency,
        )
    return observed


def _of_run(source: Runs) -> Observed:
    path, others = source.folders[0], [folder.name for folder in source.folders[1:]]
    folder = RunFolder(path)
    summary, schedule = folder.summary(), folder.schedule()
    if schedule is not None and not schedule[0].keeps_order:
        raise InputError(
            "schedule of the observed run", schedule[0].name, "one that keeps the order of samples",
            "its steps do not train on the responses that they began with: give a synchronous run",
        )  # fmt: skip
    beside = f"of the comparison the first run is observed; beside it lie {', '.join(others)}"
    settings_of = _simulated_settings if summary.kind == "simulated" else _measured_settings
    trace, rows = read_trace(path / "responses.parquet"), folder.responses()
    order = rows.sort_values(["step", "request"], kind="stable").index.to_numpy()
    return Observed(
        trace=Trace(trace.rows.iloc[order].reset_index(drop=True), trace.origin),
        logged=logged_run(path),
        source=str(path),
        read_as=f"{summary.kind} run folder, policy {summary.policy}",
        settings=settings_of(path, summary),
        policy=str(PolicyName.parse(summary.policy).with_drafter(None)),  # its training is of that run alone
        notes=(beside,) if others else (),
    )


def _simulated_settings(path: Path, summary: Summary) -> dict[str, Any]:
    whole = read_struct(path / "resolved_config.json", dict[str, Any])
    kept = {name: dict(whole[name]) for name in KEPT_SECTIONS if isinstance(whole.get(name), dict)}
    if summary.acceptance_source == "not used":  # nothing was drafted, so it may not suit policies that do
        kept.pop("acceptance", None)
    return {"run": {"seed": whole.get("run", {}).get("seed", 0)}, **kept}


def _measured_settings(path: Path, summary: Summary) -> dict[str, Any]:
    setup = read_struct(path / "scheduler.json", SchedulerSetup)
    engine = read_struct(path / "resolved_config.json", MeasuredSettings).engine
    hardware: dict[str, Any] = {"gpus": summary.gpus, "tp": summary.gpus_per_worker}
    gpu = gpu_of(summary.gpu)
    hardware |= {"gpu": gpu.name} if gpu else {}
    hardware |= {"model": summary.model} if is_known(summary.model) else {}
    cluster = msgspec.to_builtins(setup.cluster)
    return {
        "run": {"seed": setup.seed},
        "hardware": hardware,
        "engine": {"max_running": engine.max_running, "prefix_caching": False},
        "cluster": {name: cluster[name] for name in ("dispatch", "phases", "spot")},
    }


def length_facts(trace: Trace) -> LengthFacts:
    """Return what the lengths of a trace look like."""
    rows = trace.rows
    lengths, prompts = rows["response_tokens"].to_numpy(), rows["prompt_tokens"].to_numpy()
    median, p90, p99 = np.quantile(lengths, [0.5, 0.9, 0.99], method="inverted_cdf").tolist()
    return LengthFacts(
        responses=len(rows),
        prompts=int((~rows.duplicated(["step", "prompt_id"])).sum()),
        prompt_tokens_mean=float(prompts.mean()) if prompts.min() > 0 else None,
        mean=float(lengths.mean()), median=median, p90=p90, p99=p99, longest=int(lengths.max()),
        truncated=int(rows["truncated"].sum()),
        max_response_tokens=trace.origin.max_response_tokens,
    )  # fmt: skip
