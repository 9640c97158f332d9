"""The simulated clock: SimPy's, with events at a given time."""

from __future__ import annotations

from heapq import heappush

import simpy
from simpy.events import NORMAL


class Clock(simpy.Environment):
    """SimPy's environment. Its own timeouts are told how long to wait, and a sum is rounded."""

    def at(self, t_s: float) -> simpy.Event:
        """Return an event that happens at exactly `t_s`, which is not before now."""
        event = simpy.Event(self)
        event._ok, event._value = True, None
        heappush(self._queue, (t_s, NORMAL, next(self._eid), event))
        return event
