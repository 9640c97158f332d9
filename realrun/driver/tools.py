"""Sessions between two turns: their tools sleep on the policy's clock, and their workers wait for them.

Its twin on the simulated clock is tlt.sim.model.sessions.tools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tlt.realrun.driver.books import Books
from tlt.realrun.driver.clock import PolicyClock, Timers
from tlt.realrun.driver.requests import LiveRequests
from tlt.realrun.workers.messages import Finish
from tltsched.commands import CallTools
from tltsched.events import ClusterEvent, ToolsReturned, TurnsEnded


class Tools:
    """Calls tools, and tells the scheduler of turns that end and of sessions that come back."""

    def __init__(
        self,
        clock: PolicyClock,
        timers: Timers,
        requests: LiveRequests,
        books: Books,
        tell: Callable[[ClusterEvent], None],
        done: Callable[[int, Sequence[Finish]], None],
    ) -> None:
        """`tell` hands an event to the scheduler; `done(worker, finishes)` notes sessions that are over."""
        self._clock = clock
        self._timers = timers
        self._requests = requests
        self._books = books
        self._tell = tell
        self._done = done

    def end_turns(self, worker: int, finishes: Sequence[Finish], reported_s: float) -> list[Finish]:
        """Send sessions whose turns have ended to their tools; returns the finishes of the others."""
        done, away = self._requests.end_turns(worker, finishes, reported_s)
        if away:
            self._books.leave(worker, len(away), reported_s)
            tokens = tuple(self._requests.generated(request) for request in away)
            self._tell(TurnsEnded(self._clock.read(reported_s), worker, tuple(away), tokens))
        return done

    def call(self, command: CallTools) -> None:
        """Let tools run: they sleep as long as the trace says."""
        now_s = self._clock.now_s
        for request in command.requests:
            seconds, call = self._requests.sessions.call(request, now_s)
            self._timers.at(now_s + seconds, partial(self._returned, request, call))

    def _returned(self, request: int, call: int) -> None:
        """Go on with a session whose tool has returned, unless the call was given up."""
        came = self._requests.sessions.returned(request, call)
        if came is None:
            return
        now_s, (tokens, over) = self._clock.now_s, came
        worker = self._requests.alive[request].worker
        self._books.leave(worker, -1, now_s)
        if over:
            self._done(worker, [Finish(request, 0, now_s)])
        self._tell(ToolsReturned(now_s, (request,), (tokens,), (request,) if over else ()))
