"""Times of the phases of training steps, out of the metrics that a run logged.

They are measured by the framework. PHASES says what its names mean here; times of one phase are summed within
a line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from tlt.traces.importers.folder import regular_files
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Skip
from tlt.traces.importers.reading.lines import shown
from tlt.traces.importers.reading.metric_lines import Metrics
from tlt.traces.importers.reading.metrics import iter_metrics
from tlt.traces.importers.report import Tally
from tltsched.errors import InputError

FORMAT_VERSION = 1
KEPT_STEPS = 10_000
LOG_NAMES = (".log", ".txt", ".out", ".jsonl", ".json")

# What the simulator calls a phase, and what a step and its rollout took.
Phase = Literal["step", "gen", "reward", "logprob", "policy_update", "weight_sync"]
# framework -> phase -> names that are summed
PHASES: dict[str, dict[Phase, tuple[str, ...]]] = {
    "verl": {
        "step": ("timing_s/step",),
        "gen": ("timing_s/gen",),
        "reward": ("timing_s/reward",),
        "logprob": ("timing_s/old_log_prob", "timing_s/ref", "timing_s/values"),
        "policy_update": ("timing_s/adv", "timing_s/update_critic", "timing_s/update_actor"),
        "weight_sync": ("timing_s/update_weights",),
    },
    "NeMo-RL": {
        "step": ("timing/train/total_step_time",),
        "gen": ("timing/train/generation",),
        "reward": ("timing/train/reward_calculation",),
        "logprob": ("timing/train/policy_and_reference_logprobs",),
        "policy_update": ("timing/train/policy_training",),
        "weight_sync": ("timing/train/weight_sync", "timing/train/prepare_for_generation/total"),
    },
    "prime-rl": {
        "step": ("time/step",),
        "gen": ("time/generate_completions",),
        "policy_update": ("time/forward_backward",),
        "weight_sync": ("time/broadcast_weights", "time/update_weights"),
    },
}
NOTES = {
    "verl": "Without timing_s/update_weights the weights are sent within timing_s/gen.",
    "NeMo-RL": "",
    "prime-rl": "Trainer and orchestrator step side by side: phases overlap and do not add up to a step.",
}


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


class PhaseTimes(msgspec.Struct, kw_only=True):
    """Phase times of a run, as its framework measured them."""

    format_version: int = FORMAT_VERSION
    kind: Literal["measured"] = "measured"
    source: str
    framework: str
    steps: list[int] = msgspec.field(default_factory=list)  # of the first 10,000 lines
    lines: int = 0
    ignored: int = 0  # times that are negative or too large to be one
    phases: dict[Phase, PhaseTime] = msgspec.field(default_factory=dict)
    note: str = ""

    def add(self, metrics: Metrics) -> None:
        """Take the times of one line."""
        found = False
        for phase, names in PHASES[self.framework].items():
            present = [name for name in names if name in metrics.values]
            if phase == "weight_sync":
                present = present[:1]  # one time under two names
            if not present:
                continue
            seconds = sum(metrics.values[name] for name in present)
            if not 0 <= seconds < 1e9:
                self.ignored += 1
                continue
            found = True
            self.phases.setdefault(phase, PhaseTime(names=tuple(present))).add(seconds)
        if found:
            self.lines += 1
            if len(self.steps) < KEPT_STEPS:
                self.steps.append(metrics.step)


def read_phases(path: Path) -> PhaseTimes:
    """Return what `find_phases` finds; raises InputError if there is nothing."""
    times = find_phases(path)
    if times is None:
        names = ", ".join(phases["gen"][0] for phases in PHASES.values())
        raise InputError(
            "phase times", "none", f"lines with {names}", f"give a log of metrics, not {shown(path)}"
        )
    return times


def find_phases(path: Path) -> PhaseTimes | None:
    """Return the phase times that the logs at `path` (a file, or a folder of logs) state, if any.

    Raises InputError if a log cannot be read.
    """
    times: PhaseTimes | None = None
    for metrics in _metrics(path):
        if times is None:
            framework = _framework(metrics)
            if framework is None:
                continue
            times = PhaseTimes(source=shown(path), framework=framework, note=NOTES[framework])
        times.add(metrics)
    return times if times is not None and times.phases else None


def _metrics(path: Path) -> Iterator[Metrics]:
    files = regular_files(path, Tally())
    if files != [path]:
        files = [file for file in files if file.name.lower().removesuffix(".gz").endswith(LOG_NAMES)]
    for file in files:
        if Head(file).is_text:
            for found in iter_metrics(file):
                if not isinstance(found, Skip):
                    yield found


def _framework(metrics: Metrics) -> str | None:
    for framework, phases in PHASES.items():
        if any(name in metrics.values for names in phases.values() for name in names):
            return framework
    return None
