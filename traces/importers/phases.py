"""Times of the phases of training steps, out of the metrics that a run logged.

They are measured by the framework. tlt.traces.importers.meaning says what its keys mean; times of one phase
are summed within a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from tlt.traces.importers.folder import regular_files
from tlt.traces.importers.formats.metrics.stated_lengths import StatedLengths
from tlt.traces.importers.meaning import FRAMEWORKS, framework_of, in_seconds
from tlt.traces.importers.meaning.key import PHASE_NAMES, Framework, Phase
from tlt.traces.importers.meaning.rollout_seconds import fixed_seconds, generations_of, has_turns
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Skip
from tlt.traces.importers.reading.lines import shown
from tlt.traces.importers.reading.metric_lines import Metrics
from tlt.traces.importers.reading.metric_tables import is_parquet
from tlt.traces.importers.reading.metrics import iter_metrics
from tlt.traces.importers.report import Tally
from tlt.traces.importers.stated.benchmark_times import benchmark_times
from tlt.traces.importers.stated.drafts import StatedDrafts, stated_drafts
from tltsched.errors import InputError

FORMAT_VERSION = 1
KEPT_STEPS = 10_000
OPEN_STEPS = 16  # whose lines may still come: several processes log one step each
MOST_KEPT = 100  # names
LONGEST_S = 1e9
OVERLAP = 1.05  # of a step: a rollout and an update that take more run side by side
PHASE_KEYS = frozenset(
    name
    for framework in FRAMEWORKS.values()
    for key in framework.keys
    if key.meaning in PHASE_NAMES
    for name in key.names
)
LOG_NAMES = (".log", ".txt", ".out", ".jsonl", ".json", ".csv", ".parquet")
NO_PHASES = "A benchmark has no RL phases: a step is its requests alone."
BENCHMARK_PHASES: tuple[Phase, ...] = ("step", "gen")
EVENTS = "events.out.tfevents."


class PhaseTime(msgspec.Struct, kw_only=True):
    """Seconds of one phase. values_s: by step, of the first 10,000; sd_s: over steps, 0 for one step."""

    names: tuple[str, ...]  # as logged
    observations: int = 0
    mean_s: float = 0.0
    sd_s: float = 0.0
    values_s: list[float] = msgspec.field(default_factory=list)

    def add(self, seconds: float) -> None:
        """Take one observation (Welford's running mean and variance)."""
        before = self.mean_s
        spread = self.sd_s**2 * max(self.observations - 1, 0)
        self.observations += 1
        self.mean_s += (seconds - before) / self.observations
        spread += (seconds - before) * (seconds - self.mean_s)
        self.sd_s = math.sqrt(max(spread, 0.0) / max(self.observations - 1, 1))
        if len(self.values_s) < KEPT_STEPS:
            self.values_s.append(seconds)


class Rollouts(msgspec.Struct, kw_only=True):
    """What else a log says of the seconds of `gen`, by step as in the phase.

    fixed_least, fixed_most: of these seconds no draft shortens so many, at the least and at the most.
    longest: that a response was generated for, or may have been.
    generations: by step; gen holds so many, one after the other.
    turns: steps whose responses are said to have several turns.
    side_by_side: what says that rollouts go on while the policy is trained; then there is no phase `gen`.
    overlapping: steps whose trainer waited clearly less than the rollout took.
    dropped: a name that says that responses were generated and dropped; empty: none does.
    gpus: that the step ran on, as its rate of tokens says; rates: response tokens a second and GPU of the
    rollout. Both by step.
    """

    fixed_least: PhaseTime
    fixed_most: PhaseTime
    longest: PhaseTime = msgspec.field(default_factory=lambda: PhaseTime(names=()))
    generations: list[float] = msgspec.field(default_factory=list)
    turns: int = 0
    side_by_side: str = ""
    overlapping: int = 0
    dropped: str = ""
    gpus: list[float] = msgspec.field(default_factory=list)
    rates: list[float] = msgspec.field(default_factory=list)

    def mean_generations(self) -> float:
        """Return the mean over steps; 1 where nothing is said."""
        return sum(self.generations) / len(self.generations) if self.generations else 1.0


def _no_rollouts() -> Rollouts:
    return Rollouts(fixed_least=PhaseTime(names=()), fixed_most=PhaseTime(names=()))


class PhaseTimes(msgspec.Struct, kw_only=True):
    """Phase times of a run, as its framework measured them."""

    format_version: int = FORMAT_VERSION
    kind: Literal["measured"] = "measured"
    source: str
    framework: str
    steps: list[int] = msgspec.field(default_factory=list)  # of the first 10,000
    lines: int = 0  # steps
    ignored: int = 0  # times that are negative or too large to be one
    phases: dict[Phase, PhaseTime] = msgspec.field(default_factory=dict)
    rollouts: Rollouts = msgspec.field(default_factory=_no_rollouts)
    kept: dict[str, PhaseTime] = msgspec.field(default_factory=dict)  # no phase here, by name
    lengths: StatedLengths = msgspec.field(default_factory=StatedLengths)  # what the log says of them
    drafts: StatedDrafts | None = None  # that the run made
    concurrency: int | None = None  # requests that ran at once on all engines, as a benchmark limits them
    note: str = ""

    def side_by_side(self) -> str:
        """Return what says that rollouts go on while the policy is trained, also in a file of before."""
        framework = FRAMEWORKS.get(self.framework)
        return self.rollouts.side_by_side or (framework.always_side_by_side if framework else "")

    def add(self, metrics: Metrics) -> None:
        """Take the times of one step."""
        framework = FRAMEWORKS[self.framework]
        found = [self._phase(framework, phase, metrics.values) for phase in PHASE_NAMES]
        if not any(found):
            return
        self.lines += 1
        if len(self.steps) < KEPT_STEPS:
            self.steps.append(metrics.step)
            self.lengths.add(self.framework, metrics)
        self._rollout(framework, metrics.values)
        for name in framework.kept(metrics.values):
            if name in self.kept or len(self.kept) < MOST_KEPT:
                self.kept.setdefault(name, PhaseTime(names=(name,))).add(metrics.values[name])

    def _phase(self, framework: Framework, phase: Phase, values: dict[str, float]) -> bool:
        names = framework.names(phase, values)
        if not names:
            return False
        seconds = sum(values[name] for name in names)
        if not 0 <= seconds < LONGEST_S:
            self.ignored += 1
            return False
        self.phases.setdefault(phase, PhaseTime(names=names)).add(seconds)
        return True

    def _rollout(self, framework: Framework, values: dict[str, float]) -> None:
        about = self.rollouts
        about.side_by_side = about.side_by_side or framework.side_by_side(values)
        about.overlapping += framework.waits_less(values)
        about.dropped = about.dropped or framework.dropped(values)
        self._gpus(framework, values)
        gen_s = framework.stated("gen", values)
        if gen_s is None or not 0 <= gen_s < LONGEST_S:
            return
        fixed = fixed_seconds(framework, values, gen_s)
        about.fixed_least.add(fixed.least_s)
        about.fixed_most.add(fixed.most_s)
        about.longest.add(fixed.longest_s)
        about.turns += has_turns(framework, values)
        if len(about.generations) < KEPT_STEPS:
            about.generations.append(generations_of(framework, values))

    def _gpus(self, framework: Framework, values: dict[str, float]) -> None:
        about = self.rollouts
        tokens, rate, step_s, rollout_rate = (
            framework.stated(meaning, values) or 0.0
            for meaning in ("tokens", "step_rate", "step", "rollout_rate")
        )
        if min(tokens, rate, step_s) > 0 and len(about.gpus) < KEPT_STEPS:
            about.gpus.append(tokens / (rate * step_s))
        if rollout_rate > 0 and len(about.rates) < KEPT_STEPS:
            about.rates.append(rollout_rate)


def read_phases(path: Path) -> PhaseTimes:
    """Return what `find_phases` finds; raises InputError if there is nothing."""
    times = find_phases(path)
    if times is None:
        names = ", ".join(one.of("step")[0].names[0] for one in FRAMEWORKS.values())
        raise InputError(
            "phase times", "none", f"lines with {names}", f"give a log of metrics, not {shown(path)}"
        )
    return times


def find_phases(path: Path) -> PhaseTimes | None:
    """Return the phase times that the logs at `path` (a file, or a folder of logs) state, if any.

    Raises InputError if a log cannot be read.
    """
    times: PhaseTimes | None = None
    for metrics in _by_step(_metrics(path)):
        metrics.values = in_seconds(metrics.values)
        if times is None:
            framework = framework_of(metrics.values)
            if framework is None:
                continue
            times = PhaseTimes(source=shown(path), framework=framework.name, note=framework.note)
        times.add(metrics)
    if times is None or not times.phases:
        times = _of_benchmark(path)
    if times is None:
        return None
    times.drafts = stated_drafts(path)
    times.rollouts.side_by_side = times.rollouts.side_by_side or _overlap(times)
    if times.rollouts.side_by_side:
        times.phases.pop("gen", None)
    return times


def _overlap(times: PhaseTimes) -> str:
    """Return which times say that rollouts go on while the policy is trained; empty: none do."""
    step, rollout, update = (times.phases.get(name) for name in ("step", "gen", "policy_update"))
    if times.rollouts.overlapping * 2 > times.lines:
        return "the trainer waits for less than a rollout takes"
    if step is None or rollout is None or update is None:
        return ""
    both_s = rollout.mean_s + update.mean_s
    if both_s <= OVERLAP * step.mean_s:
        return ""
    names = " and ".join((*rollout.names, *update.names))
    return f"{names} take {both_s:.4g} s of a step of {step.mean_s:.4g} s"


def _of_benchmark(path: Path) -> PhaseTimes | None:
    """Return the times of a serving benchmark: each run is a step that is its rollout alone."""
    found = benchmark_times(path)
    if found is None:
        return None
    times = PhaseTimes(source=shown(path), framework="the benchmark", note=NO_PHASES)
    times.concurrency = found.concurrency
    for step, seconds in enumerate(found.durations_s[:KEPT_STEPS]):
        times.lines += 1
        times.steps.append(step)
        for phase in BENCHMARK_PHASES:
            times.phases.setdefault(phase, PhaseTime(names=("duration",))).add(seconds)
    return times


def _metrics(path: Path) -> Iterator[Metrics]:
    files = regular_files(path, Tally())
    if files != [path]:
        files = [
            file for file in files
            if file.name.startswith(EVENTS) or file.name.lower().removesuffix(".gz").endswith(LOG_NAMES)
        ]  # fmt: skip
    for file in files:
        if (head := Head(file)).is_text or is_parquet(head):
            for found in iter_metrics(file):
                if not isinstance(found, Skip):
                    yield found


def _by_step(lines: Iterator[Metrics]) -> Iterator[Metrics]:
    """Join the lines of a step, which several processes may write; a key said again begins the step anew."""
    held: dict[int, Metrics] = {}
    for line in lines:
        before = held.get(line.step)
        if before is None or _says_again(before, line):
            if before is not None:
                yield held.pop(line.step)
            held[line.step] = line
            if len(held) > OPEN_STEPS:
                yield held.pop(next(iter(held)))
        else:
            before.values |= line.values
    yield from held.values()


def _says_again(before: Metrics, line: Metrics) -> bool:
    return not PHASE_KEYS.isdisjoint(before.values.keys() & line.values.keys())
