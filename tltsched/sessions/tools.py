"""Tools that sessions wait for: how many run at once, and who is next."""

from __future__ import annotations

from collections.abc import Iterable

from tltsched.commands import CallTools

MOST_AT_ONCE = 2**20  # calls, far beyond any limit that somebody sets


class Tools:
    """Sessions at their tools: calls that run, and those that queue, first come first served."""

    def __init__(self, at_once: int) -> None:
        """At most `at_once` calls run at the same time; 0: no limit."""
        self._at_once = at_once
        self.running: dict[int, None] = {}
        self._queue: dict[int, None] = {}

    def ask(self, requests: Iterable[int]) -> tuple[CallTools, ...]:
        """Queue calls of these sessions; returns which calls begin now."""
        self._queue.update(dict.fromkeys(requests))
        return self._call()

    def over(self, requests: Iterable[int]) -> tuple[CallTools, ...]:
        """Note calls that have returned, or that nobody waits for any more; returns which begin now."""
        for request in requests:
            self.running.pop(request, None)
            self._queue.pop(request, None)
        return self._call()

    def _call(self) -> tuple[CallTools, ...]:
        room = self._at_once - len(self.running) if self._at_once else len(self._queue)
        begun = tuple(self._queue)[:room]
        for request in begun:
            del self._queue[request]
            self.running[request] = None
        return (CallTools(begun),) if begun else ()
