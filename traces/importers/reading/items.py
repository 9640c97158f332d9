"""What the readers of a file are told, and what they yield."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tlt.traces.sessions.turns import Turn

Tokenise = Callable[[Sequence[str]], list[int]]
"""Counts the tokens of texts."""


class Request(msgspec.Struct, gc=False):
    """What a file says of a response that is one request of a session; times are seconds of one clock.

    after: ids of requests that have to have ended first, in this session or another; None: the one before.
    wait_s: from their end to this request, if it is stated.
    blocks: of the whole prompt, equal where all tokens up to there are; `local_blocks`: in this session.
    """

    session: str
    id: str = ""
    after: tuple[str, ...] | None = None
    started_s: float | None = None
    ended_s: float | None = None
    wait_s: float | None = None
    blocks: tuple[int | str, ...] = ()
    block_tokens: int | None = None
    local_blocks: bool = False


class Response(msgspec.Struct, gc=False):
    """One response as a file states it.

    group: what all responses to one prompt share; a number is kept, a text is numbered when all is read.
    step, sample: None where the file does not say.
    prompt_tokens: 0 is not known.
    several_turns: something else was said within it, by a tool or a user, which is no part of its tokens.
    reward: None where the file does not say; text_hash: as digest of tlt.traces.importers.reading.values.
    lag: policy updates between the first and the last token; None where the file does not say.
    end: why it ended, one of ENDS of tlt.traces.sessions.turns; `truncated` says more.
    turns: of a response with several, all of them; request: of a response that is a turn of a session.
    line: line or row of the file, from 1.
    """

    line: int
    group: int | str
    response_tokens: int
    prompt_tokens: int = 0
    truncated: bool = False
    step: int | None = None
    sample: int | None = None
    arrived_s: float | None = None
    reward: float | None = None
    text_hash: int = 0
    lag: int | None = None
    several_turns: bool = False
    end: str = "not_known"
    turns: tuple[Turn, ...] = ()
    request: Request | None = None

    def why_ended(self) -> str:
        """Return why its last turn ended: as it is stated, else by whether it was cut."""
        return "length" if self.truncated and self.end == "not_known" else self.end


class Skip(msgspec.Struct, gc=False):
    """Something of a file that gave no response. `reason` is one of few texts: it is counted by."""

    line: int
    reason: str
    excerpt: bytes = b""


class UnusableError(Exception):
    """A record that gives no response, and why. Readers turn it into a Skip; no user sees it."""


@dataclass(frozen=True)
class Source:
    """One file to read. `name` is what a user is shown; `step` is what the name says, if it does."""

    path: Path
    name: str
    step: int | None = None


@dataclass(frozen=True)
class Options:
    """What a user states. max_response_tokens: longest response allowed. seed: of generated lengths.

    responses: of a step, for metrics that do not say it. columns: FIELD=COLUMN of rows in no known format.
    """

    max_response_tokens: int | None = None
    step: int = 0
    tokenise: Tokenise | None = None
    seed: int = 0
    responses: int | None = None
    columns: tuple[str, ...] = ()


Reader = Callable[[Source, Options], Iterator[Response | Skip]]
