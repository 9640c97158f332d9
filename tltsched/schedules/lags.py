"""How stale responses are: under which weights each began, counted in policy updates."""

from __future__ import annotations

from collections.abc import Iterable


class Lags:
    """`version` is the number of policy updates that the rollouts' weights have seen."""

    def __init__(self) -> None:
        self.version = 0
        self._began: dict[int, int] = {}  # version of each request that has begun

    def begin(self, request: int) -> None:
        """Note that a request goes to a worker; one that goes on keeps the weights that it began with."""
        self._began.setdefault(request, self.version)

    def began_before(self, requests: Iterable[int], version: int) -> bool:
        """Return whether one of these began under weights older than `version`."""
        return any(self._began.get(request, version) < version for request in requests)

    def forget(self, requests: Iterable[int]) -> None:
        """Let requests go, or begin anew when they are next placed."""
        for request in requests:
            self._began.pop(request, None)
