"""The sessions of a run turn by turn: what each is to decode now, and how long its tool takes."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import pandas as pd
from msgspec import Meta

from tlt.sim.model.engines.running_batch import Submission
from tlt.sim.model.requests import Requests
from tlt.sim.model.sessions.pool import TurnSubmission
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.sessions.schema import Sessions


class ToolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long tools take. How many run at once is up to the scheduler (cluster.tools_at_once)."""

    wait_scale: Annotated[
        float, Meta(ge=0.0, description="recorded waits times this; 0: tools take no time")
    ] = 1.0
    timeout_s: Annotated[
        float, Meta(ge=0.0, description="a call ends after so many seconds, queueing not counted; 0: never")
    ] = 0.0
    timeout_ends: Annotated[
        bool, Meta(description="a call that timed out ends its session; false: it goes on as recorded")
    ] = False


class SessionWork(msgspec.Struct, frozen=True):
    """The sessions that the requests of a run are, and how their tools behave."""

    sessions: Sessions
    tools: ToolConfig


class Call(NamedTuple):
    """A tool call: how long it takes, and what then comes."""

    seconds: float
    timed_out: bool
    ends: bool  # the session is over


class Turns:
    """Where each request is in its session, by id, [n] each."""

    def __init__(self, work: SessionWork) -> None:
        self.work = work
        self.rows: list[pd.DataFrame] = []  # of sessions that were trained on, a step each
        self.timeouts = 0
        self.away: dict[int, int] = {}  # sessions at their tools -> number of the call
        self._calls = 0
        self.clear()

    def clear(self) -> None:
        """Forget all requests: their ids begin at 0 again."""
        self.session: Ints = np.empty(0, np.int64)
        self.turn, self.begun, self.seen = self.session, self.session, self.session
        self.tool_s: Floats = np.empty(0)
        self.queue_s: Floats = np.empty(0)

    def add(self, sessions: Ints) -> None:
        """Take in fresh requests, which are these sessions, [m]."""
        nothing = np.zeros(len(sessions), np.int64)
        self.session = np.concatenate([self.session, sessions])
        for name in ("turn", "begun", "seen"):
            setattr(self, name, np.concatenate([getattr(self, name), nothing]))
        for name in ("tool_s", "queue_s"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(len(sessions))]))

    def _at(self, ids: Ints) -> Ints:
        """Return where the present turns of requests are in the table, [n]."""
        return np.asarray(self.work.sessions.turn_offsets[self.session[ids]] + self.turn[ids])

    def first_prompt(self, ids: Ints) -> Ints:
        """Return the tokens of the prompts that sessions begin with, [n]."""
        first = self.work.sessions.turn_offsets[self.session[ids]]
        return self.work.sessions.input_tokens[first].astype(np.int64)

    def target(self, ids: Ints) -> Ints:
        """Return what sessions have decoded when their present turns end, [n]."""
        return np.asarray(self.begun[ids] + self.work.sessions.response_tokens[self._at(ids)])

    def submission(self, ids: Ints, requests: Submission) -> TurnSubmission:
        """Return requests, [n], as the turns that an engine takes."""
        columns = {name: getattr(requests, name) for name in requests.__struct_fields__}
        return TurnSubmission(
            **columns, begun=self.begun[ids], shared=self.first_prompt(ids), seen=self.seen[ids]
        )

    def call_tool(self, ids: Ints) -> np.ndarray:
        """Return which of the sessions, [n], call a tool at the end of their present turns."""
        at = self._at(ids)
        last = at + 1 == self.work.sessions.turn_offsets[self.session[ids] + 1]
        return np.asarray(~last | (self.work.sessions.wait_s[at] * self.work.tools.wait_scale > 0.0))

    def leave(self, request: int) -> int:
        """Note that a session waits for its tool; returns the number of its call."""
        self._calls += 1
        self.away[request] = self._calls
        return self._calls

    def call(self, request: int) -> Call:
        """Return what comes of the tool call of a session."""
        ids = np.array([request])
        at, tools = int(self._at(ids)[0]), self.work.tools
        seconds = float(self.work.sessions.wait_s[at]) * tools.wait_scale
        late = 0.0 < tools.timeout_s < seconds
        last = at + 1 == int(self.work.sessions.turn_offsets[self.session[request] + 1])
        return Call(tools.timeout_s if late else seconds, late, last or (late and tools.timeout_ends))

    def go_on(self, request: int, requests: Requests) -> int:
        """Begin the next turn of a session; returns the tokens that are new in its prompt."""
        ids = np.array([request])
        self.begun[request] = requests.emitted[request]
        self.turn[request] += 1
        at, sessions = int(self._at(ids)[0]), self.work.sessions
        self.seen[request] = sessions.kept_tokens[at]
        context = int(sessions.kept_tokens[at]) + int(sessions.input_tokens[at])
        requests.prompt_tokens[request] = context - requests.emitted[request]
        return int(sessions.input_tokens[at])

    def stopped(self, ids: Ints, requests: Requests) -> None:
        """Note that requests, [n], were taken from their workers, and what of them was computed."""
        begun = ids[requests.emitted[ids] > self.begun[ids]]
        self.seen[begun] = requests.prompt_tokens[begun] + requests.emitted[begun]

    def restart(self, ids: Ints, requests: Requests) -> None:
        """Put sessions, [n], back to their first prompts."""
        self.turn[ids] = self.begun[ids] = self.seen[ids] = 0
        self.tool_s[ids] = self.queue_s[ids] = 0.0
        requests.prompt_tokens[ids] = self.first_prompt(ids)

    def close(self, step: int, ids: Ints) -> None:
        """Keep what became of sessions, [n], that a step trained on."""
        columns = {"turns": self.turn[ids] + 1, "tool_s": self.tool_s[ids], "tool_queue_s": self.queue_s[ids]}
        self.rows.append(pd.DataFrame({"step": step, "request": ids, **columns}))
