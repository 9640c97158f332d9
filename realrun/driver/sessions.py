"""Sessions on live engines: turns whose prompts are the whole context so far, and tools that sleep.

A session is one request to the scheduler. Its turns are requests to an engine: each asks for the context of
the turn before, with what the engine has generated in it, behind that what the tool returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tlt.realrun.engine.protocol import EngineRequest


class LiveTurn(msgspec.Struct, frozen=True, gc=False):
    """What a turn adds to the context (`input_ids`), behind `kept_tokens` of the context before it."""

    input_ids: tuple[int, ...]
    kept_tokens: int
    response_tokens: int
    wait_s: float


class TurnCount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a turn found in the prefix cache of its engine, in tokens."""

    asked: int  # its context
    found: int
    again: int  # of what was computed before, and was not found


class LiveSession(msgspec.Struct):
    """Where a session is."""

    turns: tuple[LiveTurn, ...]
    turn: int = -1
    context: tuple[int, ...] = ()  # the prompt of its turn
    begun: int = 0  # tokens generated in the turns before
    away_s: float = -1.0  # when it went to its tool; below 0: it is not there
    tool_s: float = 0.0  # that its tools took
    queue_s: float = 0.0  # that it waited until they ran
    call: int = 0  # number of its call

    def go_on(self) -> None:
        """Begin the next turn."""
        self.turn += 1
        turn = self.turns[self.turn]
        self.context = self.context[: turn.kept_tokens] + turn.input_ids
        self.away_s = -1.0

    @property
    def calls_tool(self) -> bool:
        """Whether a tool follows on the present turn."""
        return self.turn + 1 < len(self.turns) or self.turns[self.turn].wait_s > 0.0


class LiveSessions:
    """The sessions of the requests alive, by id; empty where requests are single responses."""

    def __init__(self) -> None:
        self.by_id: dict[int, LiveSession] = {}
        self._calls = 0

    def begin(self, turns: dict[int, tuple[LiveTurn, ...]]) -> None:
        """Take in the sessions of a step in place of those of the step before."""
        self.by_id = {request: LiveSession(mine) for request, mine in turns.items()}
        for session in self.by_id.values():
            session.go_on()

    def asked(self, request: EngineRequest) -> EngineRequest:
        """Return a request as its engine has to take it in the turn that it is in."""
        session = self.by_id.get(request.id)
        if session is None:
            return request
        tokens = session.turns[session.turn].response_tokens
        return msgspec.structs.replace(
            request, prompt_token_ids=session.context, response_tokens=tokens, told=True
        )

    def end_turn(self, request: int, response: Sequence[int], now_s: float) -> bool:
        """Note that the turn of a request is over; returns whether a tool follows."""
        session = self.by_id.get(request)
        if session is None:
            return False
        session.context += tuple(response)
        session.begun += len(response)
        if session.calls_tool:
            session.away_s = now_s
        return session.calls_tool

    def call(self, request: int, now_s: float) -> tuple[float, int]:
        """Begin the tool call of a session; returns how long it takes, and the number of the call."""
        session = self.by_id[request]
        self._calls += 1
        session.call, seconds = self._calls, session.turns[session.turn].wait_s
        session.queue_s += now_s - session.away_s
        session.tool_s += seconds
        return seconds, self._calls

    def returned(self, request: int, call: int) -> tuple[int, bool] | None:
        """Go on after a call: returns the tokens that its tool adds, and whether the session is over.

        None: the call was given up.
        """
        session = self.by_id.get(request)
        if session is None or session.call != call:
            return None
        if session.turn + 1 == len(session.turns):
            session.away_s = -1.0
            return 0, True
        session.go_on()
        return len(session.turns[session.turn].input_ids), False

    def count(self, found: Iterable[tuple[int, int]]) -> list[TurnCount]:
        """Return what turns, by request, found in prefix caches; requests without sessions are left out."""
        counts = []
        for request, tokens in found:
            session = self.by_id.get(request)
            if session is None:
                continue
            seen = session.turns[session.turn].kept_tokens
            counts.append(TurnCount(len(session.context), tokens, max(0, seen - tokens)))
        return counts
