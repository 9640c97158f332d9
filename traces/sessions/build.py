"""Sessions made of structs, or of columns that leave out what follows from the others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tlt.traces.common.arrays import Ints
from tlt.traces.lengths.schema import INT32_MAX, Origin
from tlt.traces.sessions.schema import Blocks, Sessions, bad_turn
from tlt.traces.sessions.turns import Session, SessionLimits, Turn, end_code
from tltsched.errors import InputError


def from_structs(
    sessions: Iterable[Session], origin: Origin, limits: SessionLimits | None = None, block_tokens: int = 0
) -> Sessions:
    """Return sessions given as structs, as arrays. `block_tokens` > 0 keeps the blocks of their turns.

    Raises InputError: none, a session without turns, some with an arrival and some without, or what Sessions
    refuses.
    """
    listed = list(sessions)
    turns = [turn for one in listed for turn in one.turns]
    empty = next((index for index, one in enumerate(listed) if not one.turns), None)
    if not listed or empty is not None:
        where = "sessions" if empty is None else f"turns of session {empty}"
        raise InputError(where, 0, "1 or more", "leave out what decoded nothing")
    arrivals = [one.arrived_s for one in listed if one.arrived_s is not None]
    if arrivals and len(arrivals) < len(listed):
        raise InputError(
            "arrived_s", f"{len(arrivals)} of {len(listed)}", "of all or none", "drop the column"
        )
    offsets = np.concatenate([[0], np.cumsum([len(one.turns) for one in listed])])
    inputs, responses = (
        _int32(name, [getattr(turn, name) for turn in turns]) for name in ("input_tokens", "response_tokens")
    )
    kept = [-1 if turn.kept_tokens is None else turn.kept_tokens for turn in turns]
    return Sessions(
        origin=origin,
        turn_offsets=offsets.astype(np.int64),
        step=_int32("step", [one.step for one in listed]),
        prompt_id=np.array([one.prompt_id for one in listed], np.int64),
        sample=_int32("sample", [one.sample for one in listed]),
        input_tokens=inputs,
        kept_tokens=fill_kept(_int32("kept_tokens", kept), inputs, responses, offsets),
        response_tokens=responses,
        wait_s=np.array([turn.wait_s for turn in turns], float),
        end=np.array([end_code(turn.end) for turn in turns], np.uint8),
        arrived_s=np.array(arrivals, float) if arrivals else None,
        blocks=_blocks(turns, block_tokens) if block_tokens else None,
        limits=limits or SessionLimits(),
    )


def fill_kept(
    kept: npt.NDArray[np.int32],
    inputs: npt.NDArray[np.int32],
    responses: npt.NDArray[np.int32],
    turn_offsets: Ints,
) -> npt.NDArray[np.int32]:
    """Return `kept` ([t]) with -1 replaced by the whole context before: prompts that only grow.

    Raises InputError for a context beyond 2^31 - 1 tokens.
    """
    added = np.cumsum(inputs.astype(np.int64) + responses)
    starts = np.asarray(turn_offsets[:-1])
    before = np.concatenate([[0], added[:-1]])  # of all turns before, in whichever session
    grown = before - np.repeat(before[starts], np.diff(turn_offsets))
    filled = np.where(kept < 0, grown, kept).astype(np.int64)
    for session in np.unique(np.searchsorted(turn_offsets, np.flatnonzero(kept >= 0), "right") - 1):
        context = 0  # some prompts of it are stated, so what follows them counts from there
        for turn in range(turn_offsets[session], turn_offsets[session + 1]):
            filled[turn] = context if kept[turn] < 0 else kept[turn]
            context = int(filled[turn]) + int(inputs[turn]) + int(responses[turn])
    if filled.max() > INT32_MAX:
        turn = int(np.argmax(filled))
        raise bad_turn("kept_tokens", int(filled[turn]), f"0 to {INT32_MAX}", turn_offsets, turn)
    return filled.astype(np.int32)


def _int32(name: str, values: list[int]) -> npt.NDArray[np.int32]:
    for index, value in enumerate(values):
        if not -1 <= value <= INT32_MAX:
            raise InputError(f"{name}[{index}]", value, f"0 to {INT32_MAX}", "correct or drop that session")
    return np.array(values, np.int32)


def _blocks(turns: list[Turn], block_tokens: int) -> Blocks:
    offsets = np.concatenate([[0], np.cumsum([len(turn.blocks) for turn in turns])])
    ids = np.array([block for turn in turns for block in turn.blocks], np.int64)
    return Blocks(block_tokens=block_tokens, offsets=offsets.astype(np.int64), ids=ids)
