"""Where the time of a policy's workers goes, as the driver books it: what they say, what they wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tlt.realrun.driver.clock import PolicyClock
from tlt.realrun.driver.step import Interval, LiveStep


class Books:
    """Intervals of the step that is on. What is booked until now is what the policy's clock last read."""

    def __init__(self, clock: PolicyClock, trainers: Sequence[int]) -> None:
        """`trainers` do nothing but train the policy: phases are theirs, while the others generate."""
        self.training: set[int] = set()  # workers that train the drafter, and say themselves what they did
        self._clock = clock
        self._trainers = trainers
        self._state = LiveStep(step=-1, start_s=0.0, policy="")
        self.pausing = False  # whether running requests are stopped before new weights go out
        self._away: dict[int, int] = {}  # sessions at their tools, by the worker that they left
        self._changes: dict[int, list[tuple[str, float]]] = {}  # what idle time was until when
        self._worked: set[int] = set()  # since the step began, or ever where rollouts never end

    def begin(self, state: LiveStep) -> None:
        """Book to another step from now on."""
        self._state = state
        self._away.clear()
        self._changes.clear()
        if not self._trainers:
            self._worked.clear()

    def spent(self, worker: int, intervals: Iterable[tuple[str, float]]) -> None:
        """Book what a worker says of its own time."""
        for cause, end_s in intervals:
            changes = self._changes.pop(worker, [])
            if cause == "tail_idle":
                self._state.intervals += [
                    Interval(worker, was, until_s) for was, until_s in changes if until_s <= end_s
                ]
                cause = self._idle(worker)
            self._state.intervals.append(Interval(worker, cause, end_s))
            self._worked.add(worker)

    def leave(self, worker: int, sessions: int, now_s: float) -> None:
        """Note that so many sessions have left a worker for their tools, or, below 0, have come back."""
        before = self._away.get(worker, 0)
        self._away[worker] = before + sessions
        if not before or not self._away[worker]:
            was = "tool_wait" if before else "tail_idle"
            self._changes.setdefault(worker, []).append((was, now_s))

    def book(self, worker: int, cause: str) -> None:
        """Book a worker's time until now."""
        self._state.intervals.append(Interval(worker, cause, self._clock.now_s))

    def resume(self, worker: int) -> None:
        """Book the wait of a worker that was through and gets more."""
        if worker in self._worked:
            self.book(worker, self._idle(worker))

    def lose(self, worker: int) -> None:
        """Book the time of a worker that died to what it did last."""
        causes = [interval.cause for interval in self._state.intervals if interval.worker == worker]
        self.book(worker, causes[-1] if causes else "prefill")

    def end_rollout(self, workers: Iterable[int]) -> None:
        """Book the wait for the end of the rollout: of the `workers` that do not train, or of trainers."""
        for trainer in self._trainers:
            self.book(trainer, "batch_wait")
        for worker in () if self._trainers else workers:
            if worker not in self.training:
                self.spent(worker, [("tail_idle", self._state.rollout_end_s)])

    def end_handover(self, workers: Iterable[int]) -> None:
        """Book the wait for those that stop training, once a step."""
        if self._state.handover_end_s >= 0.0:
            return
        self._state.handover_end_s = self._clock.now_s
        for worker in () if self._trainers else workers:
            self.book(worker, "preempt_wait")

    def end_pause(self) -> None:
        """Book what trainers have waited for before new weights go out under rollouts that go on."""
        for trainer in self._trainers:
            self.book(trainer, "sync_pause")

    def _idle(self, worker: int) -> str:
        """Return what a worker without requests waits for."""
        if self._away.get(worker, 0):
            return "tool_wait"
        if not self._trainers:
            return "tail_idle"
        return "sync_pause" if self.pausing else "admission_wait"

    def end_phase(self, workers: Iterable[int], phase: str) -> None:
        """Book a phase to all who take part in it."""
        for worker in self._trainers or workers:
            self.book(worker, phase)
