"""One session in words: its turns, why each ended, and the caps under which sessions were made."""

from __future__ import annotations

import msgspec

from tlt.traces.lengths.schema import check_cap
from tltsched.errors import InputError, unknown_name

# Why a turn's response ended; the last turn's also says why the session did. Codes are the places here.
ENDS = ("not_known", "stop", "tool", "length", "turn_limit", "timeout", "aborted")
NOT_KNOWN, STOP, TOOL, LENGTH, TURN_LIMIT, TIMEOUT, ABORTED = range(len(ENDS))
END_MEANINGS = (
    "the file does not say",
    "the model ended it, and nothing was called; inside a session a user or an environment answers",
    "the model called a tool, whose wait follows",
    "cut at a cap on the response or on the context",
    "the session may have no further turn, though the model would have gone on",
    "a tool or the session ran out of its time",
    "stopped from outside, by a schedule or an error",
)
CUT_ENDS = (LENGTH, TURN_LIMIT, TIMEOUT, ABORTED)
MOST_TURNS = 1 << 16  # of one session
MOST_WAIT_S = 1e7  # as traces.common.bounds for seconds


class Turn(msgspec.Struct, kw_only=True, frozen=True):
    """One request to an engine.

    blocks: ids of the prompt's blocks, equal where two prompts begin with the same tokens.
    """

    input_tokens: int
    response_tokens: int
    wait_s: float = (
        0.0  # NaN: not known; from the response's end to the next turn, after the last: to the end
    )
    end: str = "not_known"
    kept_tokens: int | None = None  # None: all of the context before
    blocks: tuple[int, ...] = ()


class Session(msgspec.Struct, kw_only=True, frozen=True):
    """Turns of one request of a rollout (arrived_s None) or of a service, in order, one at a time."""

    turns: tuple[Turn, ...]
    step: int = 0  # RL step
    prompt_id: int = 0  # equal in all sessions of a group
    sample: int = 0  # index in its group
    arrived_s: float | None = None  # seconds since the first arrival; None: there when its step begins


class SessionLimits(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Caps under which sessions were made; None: not known.

    The cap on what a session decodes in all its turns is `max_response_tokens` of the origin, as in lengths.
    """

    max_turn_tokens: int | None = None  # of one response
    max_context_tokens: int | None = None  # of a prompt and its response
    max_turns: int | None = None

    def __post_init__(self) -> None:
        for field in ("max_turn_tokens", "max_context_tokens"):
            check_cap(getattr(self, field), field)
        if self.max_turns is not None and not 1 <= self.max_turns <= MOST_TURNS:
            raise InputError(
                "max_turns", self.max_turns, f"1 to {MOST_TURNS}", "state the most turns allowed"
            )


def end_code(name: str) -> int:
    """Return the place of an end reason in ENDS; raises InputError for another name."""
    if name not in ENDS:
        raise unknown_name("end", name, ENDS, "use one of these")
    return ENDS.index(name)
