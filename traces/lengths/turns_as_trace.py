"""Sessions read as lengths: a response each, of what all its turns decoded; waits are left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tlt.traces.common.arrays import Ints
from tlt.traces.lengths.schema import INT32_MAX, MOST_TURN_ROWS, TURN
from tltsched.errors import InputError

KEY = ("step", "prompt_id", "sample")
CUT = "length"  # the `end` of a turn that a cap cut


def session_starts(rows: pd.DataFrame, file: str) -> Ints:
    """Return the first row of each session of a table of turns; raises InputError if turns are out of order.

    A session's turns stand together and are numbered from 0.
    """
    turn = rows[TURN].to_numpy()
    first = turn == 0
    follows = np.concatenate([[False], turn[1:] == turn[:-1] + 1])
    for name in KEY:
        if name in rows:
            values = rows[name].to_numpy()
            follows[1:] &= values[1:] == values[:-1]
    wrong = ~(first | follows)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"turn in row {row + 1} of {file}", int(turn[row]),
            "0 where a session begins, then one more each", "sort by step, prompt_id, sample and turn",
        )  # fmt: skip
    return np.flatnonzero(first).astype(np.int64)


def as_responses(turns: Sequence[pd.DataFrame], file: str) -> pd.DataFrame:
    """Return a response a session from blocks of turns: all input is its prompt, all decoded its length.

    Raises InputError for turns out of order or too many, or a session beyond 2^31 - 1 tokens.
    """
    rows = joined(turns, file)
    starts = session_starts(rows, file)
    sums = {
        name: np.add.reduceat(rows[of].to_numpy().astype(np.int64), starts)
        for name, of in (("prompt_tokens", "input_tokens"), ("response_tokens", "response_tokens"))
        if of in rows
    }
    for name, values in sums.items():
        if values.max() > INT32_MAX:
            index = int(np.argmax(values))
            raise InputError(
                f"{name} of session {index}", int(values[index]), f"at most {INT32_MAX}", "drop it"
            )
    made = {name: values.astype(np.int32) for name, values in sums.items()}
    kept = {name: rows[name].to_numpy()[starts] for name in (*KEY, "arrived_s") if name in rows}
    if "end" in rows:
        lasts = np.append(starts[1:], len(rows)) - 1
        made["truncated"] = rows["end"].to_numpy()[lasts] == CUT
    return pd.DataFrame(kept | made)


def joined(turns: Sequence[pd.DataFrame], file: str) -> pd.DataFrame:
    """Return the blocks of a file as one table; raises InputError if there are too many turns."""
    count = sum(len(block) for block in turns)
    if count > MOST_TURN_ROWS:
        raise InputError(f"turns in {file}", count, f"at most {MOST_TURN_ROWS:,}", "split the file")
    return pd.concat(turns, ignore_index=True)
