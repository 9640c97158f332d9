"""What sessions are: turns, each some new input tokens, a decoded response, and a wait until the next turn.

A turn is one request to an engine. Its prompt is what it keeps of the context before (`kept_tokens`, a prefix
of the previous prompt and response) and what is new (`input_tokens`: the prompt in turn 0, then what a tool,
an environment or a user said, with the marks of the template). Input is prefilled and never decoded, so that
it is counted apart. What is not known is NaN in seconds, `not_known` in `end`, None for
a whole column; never zero, except the tokens of a first prompt, where 0 means not known as in lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tlt.traces.common.arrays import Bools, Floats, Ints
from tlt.traces.lengths.schema import INT32_MAX, LIMITS, Origin
from tlt.traces.sessions.turns import ENDS, MOST_TURNS, MOST_WAIT_S, Session, SessionLimits, Turn
from tltsched.errors import InputError

UNLIMITED = SessionLimits()


@dataclass(frozen=True)
class Blocks:
    """Which blocks of how many tokens each prompt is made of, the last one perhaps in part.

    ids of turn t: `ids[offsets[t]:offsets[t + 1]]`. Equal ids: equal tokens in the block and all before it.
    """

    block_tokens: int
    offsets: Ints  # [turns + 1]
    ids: Ints  # [offsets[-1]]

    def chosen(self, turns: Bools) -> Blocks:
        """Return those of some of the turns, [t] bools."""
        counts = np.diff(self.offsets)
        offsets = np.concatenate([[0], counts[turns].cumsum()]).astype(np.int64)
        return Blocks(self.block_tokens, offsets, self.ids[np.repeat(turns, counts)])


@dataclass(frozen=True)
class Sessions:
    """Sessions as arrays; s counts sessions, t turns of all of them in order.

    Turns of s: t from `turn_offsets[s]` to `turn_offsets[s + 1]`, at least one. The constructor raises
    InputError for values that no session can have, and for a kept prefix longer than what was there to keep.
    """

    origin: Origin
    turn_offsets: Ints  # [s + 1]
    step: npt.NDArray[np.int32]  # [s]
    prompt_id: Ints  # [s]
    sample: npt.NDArray[np.int32]  # [s]; (step, prompt_id, sample) is unique
    input_tokens: npt.NDArray[np.int32]  # [t] 0 or more; 0 in a first turn: not known
    kept_tokens: npt.NDArray[np.int32]  # [t] of the previous prompt and response, 0 in first turns
    response_tokens: npt.NDArray[np.int32]  # [t] 1 or more
    wait_s: Floats  # [t] until the next turn is there; NaN: not known
    end: npt.NDArray[np.uint8]  # [t] place in ENDS
    arrived_s: Floats | None = None  # [s]; None: all there when their step begins
    blocks: Blocks | None = None
    limits: SessionLimits = UNLIMITED

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_values(self)
        _check_order(self)
        if self.blocks is not None:
            _check_blocks(self, self.blocks)

    def __len__(self) -> int:
        return len(self.step)

    @property
    def turns(self) -> Ints:
        """Return the turns of each session, [s]."""
        return np.diff(self.turn_offsets)

    @property
    def first(self) -> Bools:
        """Return which turns are the first of their session, [t]."""
        return _marked(self.turn_offsets[:-1], len(self.response_tokens))

    @property
    def last(self) -> Bools:
        """Return which turns are the last of their session, [t]."""
        return _marked(self.turn_offsets[1:] - 1, len(self.response_tokens))

    @property
    def session_of(self) -> Ints:
        """Return the session of each turn, [t]."""
        return np.repeat(np.arange(len(self)), self.turns)

    @property
    def prompt_tokens(self) -> Ints:
        """Return the whole prompt of each turn, kept and new, [t]."""
        return self.kept_tokens.astype(np.int64) + self.input_tokens

    @property
    def context_tokens(self) -> Ints:
        """Return the context at the end of each turn, prompt and response, [t]."""
        return self.prompt_tokens + self.response_tokens

    def per_session(self, of_turns: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the sum over the turns of each session, [s], of values [t]."""
        return np.add.reduceat(of_turns, self.turn_offsets[:-1])

    def chosen(self, which: Bools) -> Sessions:
        """Return some of the sessions, [s] bools, one at least."""
        turns, counts = which[self.session_of], self.turns[which]
        of_turns = ("input_tokens", "kept_tokens", "response_tokens", "wait_s", "end")
        return replace(
            self,
            turn_offsets=np.concatenate([[0], counts.cumsum()]).astype(np.int64),
            **{name: getattr(self, name)[which] for name in ("step", "prompt_id", "sample")},
            **{name: getattr(self, name)[turns] for name in of_turns},
            arrived_s=None if self.arrived_s is None else self.arrived_s[which],
            blocks=None if self.blocks is None else self.blocks.chosen(turns),
        )

    def session(self, index: int) -> Session:
        """Return session `index` (0-based) as a struct."""
        turns = range(int(self.turn_offsets[index]), int(self.turn_offsets[index + 1]))
        return Session(
            turns=tuple(self._turn(turn) for turn in turns),
            step=int(self.step[index]),
            prompt_id=int(self.prompt_id[index]),
            sample=int(self.sample[index]),
            arrived_s=None if self.arrived_s is None else float(self.arrived_s[index]),
        )

    def __iter__(self) -> Iterator[Session]:
        return (self.session(index) for index in range(len(self)))

    def _turn(self, turn: int) -> Turn:
        blocks = self.blocks
        ids = [] if blocks is None else blocks.ids[blocks.offsets[turn] : blocks.offsets[turn + 1]].tolist()
        return Turn(
            input_tokens=int(self.input_tokens[turn]),
            response_tokens=int(self.response_tokens[turn]),
            wait_s=float(self.wait_s[turn]),
            end=ENDS[self.end[turn]],
            kept_tokens=int(self.kept_tokens[turn]),
            blocks=tuple(ids),
        )


def _marked(places: Ints, size: int) -> Bools:
    marked = np.zeros(size, bool)
    marked[places] = True
    return marked


def bad_turn(field: str, got: object, allowed: str, turn_offsets: Ints, turn: int) -> InputError:
    """Return the error of a value in a turn, which it names by session and turn."""
    session = int(np.searchsorted(turn_offsets, turn, "right")) - 1
    where = f"{field} in turn {turn - int(turn_offsets[session])} of session {session}"
    return InputError(where, got, allowed, "correct or drop that session")


def _check_sizes(sessions: Sessions) -> None:
    """Raise InputError unless the arrays belong together."""
    offsets, count = sessions.turn_offsets, len(sessions.step)
    turns = len(sessions.response_tokens)
    if not count:
        raise InputError(f"sessions of {sessions.origin.source}", 0, "1 or more", "check that it is whole")
    if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != turns or np.any(np.diff(offsets) < 1):
        raise InputError(
            "turn_offsets",
            f"{len(offsets)} numbers for {count} sessions and {turns} turns",
            "0, then one more or above for each session, the number of turns last",
            "build it with tlt.traces.sessions.build.from_structs",
        )
    if int(np.diff(offsets).max()) > MOST_TURNS:
        got = int(np.diff(offsets).max())
        raise InputError("turns of a session", got, f"at most {MOST_TURNS:,}", "split the session")
    lengths = {
        **{name: (len(getattr(sessions, name)), count) for name in ("prompt_id", "sample")},
        **{name: (len(getattr(sessions, name)), turns) for name in ("input_tokens", "kept_tokens")},
        **{name: (len(getattr(sessions, name)), turns) for name in ("wait_s", "end")},
    }
    if sessions.arrived_s is not None:
        lengths["arrived_s"] = len(sessions.arrived_s), count
    for name, (got, wanted) in lengths.items():
        if got != wanted:
            raise InputError(f"values of {name}", got, f"{wanted}", "give one for each session or turn")


def _check_values(sessions: Sessions) -> None:
    """Raise InputError for the first value that its field cannot have."""
    for name, low in (("input_tokens", 0), ("kept_tokens", 0), ("response_tokens", 1)):
        values = getattr(sessions, name)
        _require(sessions, name, values, values >= low, f"{low} to {INT32_MAX}")
    wait = sessions.wait_s
    fits = np.isnan(wait) | ((wait >= 0) & (wait <= MOST_WAIT_S))
    _require(sessions, "wait_s", wait, fits, f"0 to {MOST_WAIT_S:g} seconds, or not known")
    _require(sessions, "end", sessions.end, sessions.end < len(ENDS), ", ".join(ENDS))
    for name in ("step", "prompt_id", "sample"):
        low, high = LIMITS[name]
        values = getattr(sessions, name)
        if values.min() < low:
            raise InputError(name, int(values.min()), f"{low} to {high}", "number from 0")
    if sessions.arrived_s is not None and not np.all(
        (sessions.arrived_s >= 0) & (sessions.arrived_s <= MOST_WAIT_S)
    ):
        index = int(np.argmin((sessions.arrived_s >= 0) & (sessions.arrived_s <= MOST_WAIT_S)))
        got = float(sessions.arrived_s[index])
        raise InputError(
            f"arrived_s of session {index}", got, f"0 to {MOST_WAIT_S:g} s", "count from the first"
        )
    keys = np.stack([sessions.step, sessions.prompt_id, sessions.sample], axis=1)
    if len(np.unique(keys, axis=0)) < len(keys):
        seen: set[tuple[int, ...]] = set()
        for row in keys.tolist():
            if tuple(row) in seen:
                raise InputError("(step, prompt_id, sample)", row, "each once", "renumber the sample")
            seen.add(tuple(row))


def _check_order(sessions: Sessions) -> None:
    """Raise InputError where a prompt keeps more than there was, or a cap that is stated was passed."""
    kept, context = sessions.kept_tokens, sessions.context_tokens
    before = np.where(sessions.first, 0, np.concatenate([[0], context[:-1]]))
    _require(
        sessions, "kept_tokens", kept, kept <= before, "at most the prompt and response of the turn before"
    )
    limits, responses = sessions.limits, sessions.response_tokens
    for field, values, cap in (
        ("context", context, limits.max_context_tokens),
        ("response_tokens", responses, limits.max_turn_tokens),
    ):
        most = cap or INT32_MAX
        _require(sessions, field, values, values <= most, f"at most the cap, {most}")
    cap = sessions.origin.max_response_tokens or INT32_MAX
    decoded = sessions.per_session(responses.astype(np.int64))
    if decoded.max() > cap:
        index = int(np.argmax(decoded))
        where = f"response_tokens of session {index}, all turns"
        raise InputError(
            where, int(decoded[index]), f"at most the cap, {cap}", "correct the tokens or the cap"
        )
    limit, turns = limits.max_turns, sessions.turns
    if limit is not None and turns.max() > limit:
        index = int(np.argmax(turns))
        raise InputError(
            f"turns of session {index}", int(turns[index]), f"at most {limit}", "correct max_turns"
        )


def _check_blocks(sessions: Sessions, blocks: Blocks) -> None:
    """Raise InputError unless each prompt has as many blocks as it needs, or none."""
    if not 1 <= blocks.block_tokens <= INT32_MAX:
        raise InputError(
            "block_tokens", blocks.block_tokens, f"1 to {INT32_MAX}", "state the tokens of a block"
        )
    counts = np.diff(blocks.offsets)
    if len(counts) != len(sessions.response_tokens) or blocks.offsets[-1] != len(blocks.ids):
        raise InputError(
            "blocks", f"of {len(counts)} turns", f"{len(sessions.response_tokens)}", "give all turns"
        )
    needed = -(-sessions.prompt_tokens // blocks.block_tokens)
    fits = (counts == 0) | (counts == needed) | (counts == sessions.prompt_tokens // blocks.block_tokens)
    allowed = f"as many as the prompt has, of {blocks.block_tokens} tokens, or none"
    _require(sessions, "blocks", counts, fits, allowed)


def _require(
    sessions: Sessions, field: str, values: npt.NDArray[Any], fits: npt.NDArray[np.bool_], allowed: str
) -> None:
    if not fits.all():
        turn = int(np.argmin(fits))
        raise bad_turn(field, values[turn].item(), allowed, sessions.turn_offsets, turn)
