"""Which worker gets the next turn of a session, when its tool has returned.

A rule sees how many requests each living worker has, where the session ran last, and what the router knows of
caches: its own account of what was computed where, least recently used first, within the capacity that it was
told. It does not ask engines, as routers in front of engines do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from tltsched.errors import InputError, look_up
from tltsched.written.parameters import split_parameters, with_parameters

_PUBLISHED = (0.3, 64, 1.5)  # defaults of SGLang's cache-aware router
Rule = Literal["sticky", "least_loaded", "round_robin", "prefix"]


class Turn(NamedTuple):
    """A turn that is to begin: whose, after how many tokens, and where the session ran last."""

    request: int
    context_tokens: int
    last_worker: int


class Load(NamedTuple):
    """What a worker has; compares as the order in which workers are chosen."""

    requests: int
    trains: bool
    worker: int


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where turns go. The numbers are those of the rule `prefix`, by default as SGLang's router has them."""

    rule: Annotated[
        Rule,
        Meta(
            description="sticky: where the session ran before; least_loaded: to the fewest requests; "
            "round_robin: each turn to the next worker; prefix: to the longest cached prefix unless loads "
            "differ"
        ),
    ] = "sticky"
    cached_share: Annotated[
        float, Meta(description="share of the context that has to be cached; below: to the fewest requests")
    ] = _PUBLISHED[0]
    balance_requests: Annotated[
        int, Meta(description="requests by which loads have to differ before the prefix counts no more")
    ] = int(_PUBLISHED[1])
    balance_ratio: Annotated[float, Meta(description="and the largest load over the smallest, likewise")] = (
        _PUBLISHED[2]
    )

    def __post_init__(self) -> None:
        if not 0.0 <= self.cached_share <= 1.0:
            raise InputError("cached_share", self.cached_share, "0 to 1", "give a share of the context")
        if self.balance_requests < 0:
            raise InputError("balance_requests", self.balance_requests, "0 or more", "0: any difference")
        if not 1.0 <= self.balance_ratio <= 1e6:
            raise InputError("balance_ratio", self.balance_ratio, "1 to 1,000,000", "1: any difference")
        chosen = (self.cached_share, self.balance_requests, self.balance_ratio)
        if self.rule != "prefix" and chosen != _PUBLISHED:
            raise InputError("routing", self.rule, "prefix, where it has settings", "leave the others out")


STICKY = RoutingConfig()


def parse_routing(text: str) -> RoutingConfig:
    """Read the name of a rule, or prefix(FIELD=VALUE,...); raises InputError that lists the names."""
    name, given = split_parameters(text, "routing")
    return with_parameters(RoutingConfig(rule=look_up(RULE_NAMES, "routing", name)), given, "routing")


class Router:
    """Chooses workers for turns, and keeps account of what is cached where."""

    def __init__(self, config: RoutingConfig, kv_tokens: float) -> None:
        """`kv_tokens` is what the cache of one worker holds; 0: no limit that is known."""
        self.config = config
        self._kv_tokens = kv_tokens
        self._next = 0  # worker after the one that the last turn went to
        # Of each worker: sessions and what is cached of them in tokens, least recently used first.
        self._cached: dict[int, dict[int, int]] = {}
        self._held: dict[int, int] = {}  # their sums

    def choose(self, turn: Turn, loads: Mapping[int, Load]) -> int:
        """Return the worker of a turn; `loads` are those of the living workers."""
        return _RULES[self.config.rule](self, turn, loads)

    def ran(self, worker: int, request: int, context_tokens: int) -> None:
        """Note that a session's context was computed on a worker."""
        if self.config.rule != "prefix":
            return
        self._drop(worker, request)
        cached = self._cached.setdefault(worker, {})
        cached[request] = context_tokens
        self._held[worker] = self._held.get(worker, 0) + context_tokens
        while self._kv_tokens and self._held[worker] > self._kv_tokens:
            self._drop(worker, next(iter(cached)))

    def forget(self, request: int) -> None:
        """Note that a session is over, or begins anew."""
        for worker in self._cached:
            self._drop(worker, request)

    def lose(self, worker: int) -> None:
        """Note that a worker and its cache are gone."""
        self._cached.pop(worker, None)
        self._held.pop(worker, None)

    def flush(self) -> None:
        """Note that all caches are lost, as with new weights."""
        self._cached.clear()
        self._held.clear()

    def _drop(self, worker: int, request: int) -> None:
        self._held[worker] = self._held.get(worker, 0) - self._cached.get(worker, {}).pop(request, 0)

    def _sticky(self, turn: Turn, loads: Mapping[int, Load]) -> int:
        return turn.last_worker if turn.last_worker in loads else self._least_loaded(turn, loads)

    def _least_loaded(self, turn: Turn, loads: Mapping[int, Load]) -> int:
        del turn
        return min(loads.values()).worker

    def _round_robin(self, turn: Turn, loads: Mapping[int, Load]) -> int:
        del turn
        worker = min(loads, key=lambda each: (each < self._next, each))
        self._next = worker + 1
        return worker

    def _prefix(self, turn: Turn, loads: Mapping[int, Load]) -> int:
        config, least, most = self.config, min(loads.values()), max(loads.values())
        uneven = most.requests - least.requests > config.balance_requests
        if uneven and most.requests > config.balance_ratio * least.requests:
            return least.worker
        cached = {worker: self._cached.get(worker, {}).get(turn.request, 0) for worker in loads}
        best = max(loads.values(), key=lambda load: (cached[load.worker], -load.requests, -load.worker))
        enough = cached[best.worker] > config.cached_share * turn.context_tokens
        return best.worker if enough else least.worker


_RULES: dict[Rule, Callable[[Router, Turn, Mapping[int, Load]], int]] = {
    "sticky": Router._sticky,
    "least_loaded": Router._least_loaded,
    "round_robin": Router._round_robin,
    "prefix": Router._prefix,
}
RULE_NAMES: dict[str, Rule] = {str(rule): rule for rule in _RULES}
