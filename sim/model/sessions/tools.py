"""The driver's part of sessions on the simulated clock: turns end, tools run, sessions come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import simpy

from tlt.sim.model.clock import Clock
from tlt.sim.model.requests import Requests
from tlt.sim.model.sessions.turns import Turns
from tlt.traces.common.arrays import Ints
from tltsched.commands import CallTools
from tltsched.events import ClusterEvent, ToolsReturned, TurnsEnded


class Waiter(Protocol):
    """A worker, which is told what to wait for."""

    def expect(self, sessions: int) -> None:
        """So many sessions have gone to their tools, or, below 0, are not waited for any more."""


class Tools:
    """Sessions between two turns."""

    def __init__(
        self,
        env: Clock,
        turns: Turns,
        workers: Sequence[Waiter],
        tell: Callable[[ClusterEvent], None],
        done: Callable[[Ints, float], None],
    ) -> None:
        """`tell` hands an event to the scheduler and carries out what follows; `done` notes finishes."""
        self.env = env
        self.turns = turns
        self.workers = workers
        self.tell = tell
        self.done = done
        self._asked_s: dict[int, float] = {}  # when each session that is away ended its turn

    def end_turns(self, worker: int, ids: Ints, requests: Requests) -> Ints:
        """Send those of the requests, [n], that need a tool to it; returns the others, which are done."""
        calls = self.turns.call_tool(ids)
        away = ids[calls]
        if len(away):
            for request in away.tolist():
                self.turns.leave(request)
                self._asked_s[request] = self.env.now
            self.workers[worker].expect(len(away))
            tokens = tuple(requests.emitted[away].tolist())
            self.tell(TurnsEnded(self.env.now, worker, tuple(away.tolist()), tokens))
        done: Ints = ids[~calls]
        return done

    def call(self, command: CallTools, requests: Requests) -> None:
        """Begin tool calls."""
        for request in command.requests:
            number, seconds = self.turns.away[request], self.turns.call(request).seconds
            self.turns.queue_s[request] += self.env.now - self._asked_s[request]
            self.turns.tool_s[request] += seconds
            event = self.env.at(self.env.now + seconds)
            assert event.callbacks is not None
            event.callbacks.append(partial(self._returned, request, number, requests))

    def cancel(self, ids: Sequence[int], requests: Requests) -> None:
        """End the calls of sessions that are dropped or begin anew."""
        for request in ids:
            if self.turns.away.pop(request, None) is not None:
                self.workers[int(requests.worker[request])].expect(-1)

    def _returned(self, request: int, number: int, requests: Requests, event: simpy.Event) -> None:
        """Go on with a session, unless its call was ended or is another one by now."""
        del event
        if self.turns.away.get(request) != number:
            return
        self.cancel((request,), requests)
        call = self.turns.call(request)
        self.turns.timeouts += call.timed_out
        ended: tuple[int, ...] = ()
        observed = 0
        if call.ends:
            ended = (request,)
            cut = requests.emitted[request] < requests.length[request]
            requests.length[request] = requests.emitted[request]
            requests.truncated[request] |= cut or call.timed_out
            self.done(np.array([request]), self.env.now)
        else:
            observed = self.turns.go_on(request, requests)
        self.tell(ToolsReturned(self.env.now, (request,), (observed,), ended))


def start(turns: Turns, requests: Requests, ids: Ints, sessions: Ints) -> None:
    """Take in fresh requests, [n], which are these sessions, with the prompts of their first turns."""
    turns.add(sessions)
    requests.prompt_tokens[ids] = turns.first_prompt(ids)
    assert len(turns.session) == len(requests.group)
    assert np.all(turns.call_tool(ids) | (turns.target(ids) == requests.length[ids]))
