"""Turns made of tokens that were put in and tokens that were decoded, in turn."""

from __future__ import annotations

import msgspec

from tlt.traces.sessions.turns import Turn


def turns_of(said_and_own: list[tuple[int, int]], end: str) -> tuple[Turn, ...]:
    """Return turns from tokens (put in, decoded) in order; waits between them are not known.

    A part that decoded nothing goes into the next turn's input; what follows the last response is left out.
    """
    turns: list[Turn] = []
    waiting = 0
    for said, own in said_and_own:
        waiting += said
        if own:
            turns.append(Turn(input_tokens=waiting, response_tokens=own, wait_s=float("nan"), end="tool"))
            waiting = 0
    if turns:
        turns[-1] = msgspec.structs.replace(turns[-1], wait_s=0.0, end=end)
    return tuple(turns)
