"""What the live driver knows of each request, from the step that brings it to the one that lets it go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import field

from tlt.plugin.requests import AcceptanceCount
from tlt.realrun.driver.sessions import LiveSessions, LiveTurn
from tlt.realrun.driver.step import Carried, LiveStep, Response
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.workers.messages import Finish
from tltsched.events import Request


class Fresh(NamedTuple):
    """What a step begins with: `groups` of `samples` are to be trained on; 0: all of `requests`."""

    requests: Sequence[EngineRequest]
    groups: int = 0
    samples: int = 0
    turns: dict[int, tuple[LiveTurn, ...]] = {}  # noqa: RUF012 -- of requests that are sessions


class Alive(msgspec.Struct):
    """A request that is neither trained on nor dropped."""

    asked: EngineRequest
    carried: Carried
    worker: int = -1
    acceptance: list[AcceptanceCount] = field(default_factory=list)


class LiveRequests:
    """The requests alive, by id, in the order in which they came."""

    def __init__(self) -> None:
        self.alive: dict[int, Alive] = {}
        self.sessions = LiveSessions()

    def clear(self) -> None:
        """Forget all: the next step begins with its own."""
        self.alive.clear()

    def add(self, requests: Iterable[EngineRequest], carried: Iterable[Carried] = ()) -> None:
        """Take in requests, fresh ones or, with what is `carried`, those of a run that goes on."""
        known = {each.request: each for each in carried}
        for asked in requests:
            self.alive[asked.id] = Alive(asked, known.get(asked.id) or Carried(request=asked.id))

    def group(self, request: int) -> int:
        """Return the prompt group of a request; one without is its own."""
        group = self.alive[request].asked.group
        return request if group < 0 else group

    def row(self, request: int, hint: bool) -> Request:
        """Return a request as schedulers see it, with its length where they are told."""
        asked = self.alive[request].asked
        return Request(
            request, self.group(request), len(asked.prompt_token_ids), asked.response_tokens if hint else 0
        )

    def assign(self, requests: Sequence[int], worker: int, version: int, now_s: float) -> list[EngineRequest]:
        """Put requests on a worker; returns them as its engine takes them, behind what they have.

        `version` is of its weights, in policy updates.
        """
        chosen = []
        for request in requests:
            alive = self.alive[request]
            alive.worker = worker
            if alive.carried.born < 0:
                alive.carried.born, alive.carried.start_s = version, now_s
            asked = self.sessions.asked(alive.asked)
            chosen.append(msgspec.structs.replace(asked, resumed=alive.carried.tokens))
        return chosen

    def finish(self, worker: int, finishes: Iterable[Finish], version: int) -> list[Response]:
        """Note who is done; returns their responses."""
        for each in finishes:
            carried = self.alive[each.request].carried
            carried.finish_s, carried.ended, carried.tokens = each.finish_s, version, ()
            carried.emitted = self.generated(each.request, each.tokens)
            self.alive[each.request].worker = worker
        return [self.response(each.request) for each in finishes]

    def generated(self, request: int, tokens: int = 0) -> int:
        """Return what a request has generated, with `tokens` in the turn that it is in."""
        session = self.sessions.by_id.get(request)
        return tokens if session is None else session.begun + tokens

    def end_turns(
        self, worker: int, finishes: Iterable[Finish], now_s: float
    ) -> tuple[list[Finish], list[int]]:
        """Split what an engine has finished: requests that are done, and sessions that call tools now."""
        done, away = [], []
        for each in finishes:
            if self.sessions.end_turn(each.request, each.response, now_s):
                alive = self.alive[each.request]
                alive.worker, alive.carried.tokens = worker, ()
                alive.carried.emitted = self.generated(each.request)
                away.append(each.request)
            else:
                counted = each.request in self.sessions.by_id  # its tokens were added to its turns
                done.append(msgspec.structs.replace(each, tokens=0) if counted else each)
        return done, away

    def response(self, request: int) -> Response:
        """Return the response of a request that is done."""
        alive = self.alive[request]
        carried = alive.carried
        session, prompt = self.sessions.by_id.get(request), len(alive.asked.prompt_token_ids)
        if session is not None:  # all of its context that it did not generate
            prompt = len(session.context) - session.begun
        return Response(
            request, alive.worker, carried.emitted, carried.finish_s, self.group(request),
            prompt, carried.start_s, carried.born, carried.ended,
        )  # fmt: skip

    def take_back(self, requests: Sequence[int], tokens: Sequence[tuple[int, ...]]) -> None:
        """Note what requests have that left their worker undone."""
        for request, has in zip(requests, tokens, strict=True):
            carried = self.alive[request].carried
            carried.tokens, carried.emitted = has, len(has)

    def lose(self, worker: int) -> None:
        """Forget what a worker that died had generated of requests that are not done."""
        for alive in self.alive.values():
            if alive.worker == worker and alive.carried.finish_s < 0.0:
                alive.carried.tokens, alive.carried.emitted = (), self.generated(alive.asked.id)

    def restart(self, requests: Sequence[int]) -> int:
        """Put requests back to their prompts; returns the tokens that are thrown away."""
        wasted = sum(self.alive[request].carried.emitted for request in requests)
        for request in requests:
            self.alive[request].carried = Carried(request=request)
            self.alive[request].acceptance.clear()
        return wasted

    def drop(self, requests: Sequence[int]) -> int:
        """Give requests up; returns the tokens that are thrown away."""
        return sum(self.alive.pop(request).carried.emitted for request in requests)

    def count(self, counts: Iterable[AcceptanceCount]) -> None:
        """Keep acceptance by request; that of requests which are gone comes too late to be told."""
        for count in counts:
            if count.request in self.alive:
                self.alive[count.request].acceptance.append(count)

    def close(self, state: LiveStep) -> None:
        """Let go of what a step has trained on, and note in it what the others go on with."""
        done = [self.alive.pop(response.request) for response in state.responses]
        state.acceptance += [count for alive in done for count in alive.acceptance]
        told = ((response.request, self.sessions.by_id.get(response.request)) for response in state.responses)
        state.sessions = [
            (request, mine.turn + 1, mine.tool_s, mine.queue_s) for request, mine in told if mine is not None
        ]
        state.carried = [msgspec.structs.replace(alive.carried) for alive in self.alive.values()]
