"""Prompt groups as schedules count them: a group is complete when enough of its responses are done."""

from __future__ import annotations

from collections.abc import Iterable

from tltsched.events import Request


class Groups:
    """The groups whose responses are alive; `complete` is in the order in which they got there."""

    def __init__(self) -> None:
        self.members: dict[int, dict[int, None]] = {}
        self.done: dict[int, list[int]] = {}  # finished members, the first ones first
        self.complete: dict[int, None] = {}
        self._needed: dict[int, int] = {}
        self._group_of: dict[int, int] = {}

    def add(self, requests: Iterable[Request], needed: int = 0) -> None:
        """Take in fresh groups of which `needed` responses each are enough; 0: all."""
        fresh: dict[int, None] = {}
        for request in requests:
            self.members.setdefault(request.group, {})[request.id] = None
            self._group_of[request.id] = request.group
            fresh[request.group] = None
        for group in fresh:
            self.done[group] = []
            size = len(self.members[group])
            self._needed[group] = min(needed, size) if needed else size

    def finish(self, requests: Iterable[int]) -> list[int]:
        """Note finished requests; returns the groups that are complete now and were not before."""
        completed = []
        for request in requests:
            group = self._group_of[request]
            self.done[group].append(request)
            if group not in self.complete and len(self.done[group]) >= self._needed[group]:
                self.complete[group] = None
                completed.append(group)
        return completed

    def has(self, request: int) -> bool:
        """Return whether a request is of one of these groups."""
        return request in self._group_of

    def move(self, group: int, others: Groups) -> None:
        """Hand a group over to others, with who is done; there all have to be."""
        done = self.done[group]
        members = self.forget(group)
        others.members[group] = dict.fromkeys(members)
        others._group_of.update(dict.fromkeys(members, group))
        others.done[group], others._needed[group] = [], len(members)
        others.finish(done)

    def batch(self, group: int) -> list[int]:
        """Return the responses of a complete group that count: the first to finish."""
        return self.done[group][: self._needed[group]]

    def rest(self, group: int) -> list[int]:
        """Return the members of a group that do not count."""
        chosen = set(self.batch(group))
        return [request for request in self.members[group] if request not in chosen]

    def restart(self, group: int, size: int) -> list[int]:
        """Put a group back to its first `size` members, none of them done; returns the members let go."""
        members = list(self.members[group])
        for request in members[size:]:
            del self._group_of[request], self.members[group][request]
        self.done[group] = []
        self.complete.pop(group, None)
        self._needed[group] = len(self.members[group])
        return members[size:]

    def forget(self, group: int) -> list[int]:
        """Let a group go; returns its members."""
        members = list(self.members.pop(group))
        for request in members:
            del self._group_of[request]
        del self.done[group], self._needed[group]
        self.complete.pop(group, None)
        return members
