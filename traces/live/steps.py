"""Rollouts of several engines as the RL steps of one job.

Rollouts of different engines that overlap in time are one step. Where engines stop together, as they do when
a trainer takes its step, those are the steps of the job. The clock of the job stands at 0 when the first of
them begins, and a step lasts until the next one begins: what lies between is the trainer's, and which phase
it was in no engine knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tlt.plugin.facts import Finished
from tlt.traces.live.engines import EngineLog, Rollout

ABORTED = "abort"


@dataclass
class JobStep:
    """One step: (engine, rollout) in order of time; seconds of the job."""

    number: int
    start_s: float
    rollout_end_s: float
    end_s: float = 0.0
    parts: list[tuple[int, Rollout]] = field(default_factory=list)
    ids: dict[tuple[int, int], int] = field(default_factory=dict)  # (engine, its number) -> request

    def finished(self) -> list[tuple[int, Finished]]:
        """Return (engine, response) of all that are done and were not aborted."""
        return [
            (engine, done)
            for engine, rollout in self.parts
            for done in rollout.done
            if done.reason != ABORTED
        ]

    def id_of(self, engine: int, number: int) -> int:
        """Return the request's number in the step; one that did not finish is numbered behind all others."""
        return self.ids.setdefault((engine, number), len(self.ids))


class Job:
    """Engines, and the steps that they took together."""

    def __init__(self, engines: Sequence[EngineLog]) -> None:
        """Rollouts without a response that finished are left out, and counted in `empty`."""
        self.engines = list(engines)
        windows = [
            (self._unix_s(engine, rollout.began.t_s), self._unix_s(engine, rollout.end_s), engine, rollout)
            for engine, log in enumerate(engines)
            for rollout in log.rollouts
            if any(done.reason != ABORTED for done in rollout.done)
        ]
        windows.sort(key=lambda window: window[:3])
        self.empty = sum(len(log.rollouts) for log in engines) - len(windows)
        self.origin_unix_s = windows[0][0] if windows else 0.0
        self.steps: list[JobStep] = []
        for begin_s, end_s, engine, rollout in windows:
            self._add(begin_s - self.origin_unix_s, end_s - self.origin_unix_s, engine, rollout)
        for step, after in zip(self.steps, [*self.steps[1:], None], strict=True):
            step.end_s = after.start_s if after else step.rollout_end_s

    def t_s(self, engine: int, t_s: float) -> float:
        """Return a time of an engine on the clock of the job."""
        return self._unix_s(engine, t_s) - self.origin_unix_s

    def _unix_s(self, engine: int, t_s: float) -> float:
        return self.engines[engine].about.started_unix_s + t_s

    def _add(self, begin_s: float, end_s: float, engine: int, rollout: Rollout) -> None:
        last = self.steps[-1] if self.steps else None
        if last is None or begin_s >= last.rollout_end_s or any(who == engine for who, _ in last.parts):
            last = JobStep(len(self.steps), begin_s, end_s)
            if self.steps:  # of an engine that is ahead of the others: their step ends where its next begins
                before = self.steps[-1]
                before.rollout_end_s = min(before.rollout_end_s, begin_s)
            self.steps.append(last)
        last.rollout_end_s = max(last.rollout_end_s, end_s)
        last.parts.append((engine, rollout))
        for done in rollout.done:
            if done.reason != ABORTED:
                last.id_of(engine, done.request)
