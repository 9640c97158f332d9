"""Turns of responses, kept beside their lengths until all is read."""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd

from tlt.traces.common.arrays import Ints
from tlt.traces.importers.reading.items import Response
from tlt.traces.lengths.schema import INT32_MAX, MOST_TURN_ROWS, Origin
from tlt.traces.sessions.build import fill_kept
from tlt.traces.sessions.schema import Sessions
from tlt.traces.sessions.turns import MOST_TURNS, MOST_WAIT_S, Turn, end_code
from tltsched.errors import InputError

BLOCK = 1 << 16
COLUMNS: dict[str, type] = {
    "input_tokens": np.int32, "kept_tokens": np.int32, "response_tokens": np.int32, "wait_s": np.float64,
    "end": np.uint8,
}  # fmt: skip


class HeldTurns:
    """Takes responses in the order of the rows of their trace; memory: 21 bytes a turn, and one block."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.blocks: list[dict[str, np.ndarray]] = []
        self.held: list[tuple[int, int, int, float, int]] = []
        self.turns = 0

    def add(self, response: Response) -> None:
        """Keep the turns of a response that is a row; without any it has one."""
        turns = response.turns or (single_turn(response),)
        for turn in turns:
            kept = -1 if turn.kept_tokens is None else turn.kept_tokens
            self.held.append((turn.input_tokens, kept, turn.response_tokens, turn.wait_s, end_code(turn.end)))
        self.counts.append(len(turns))
        self.turns += len(turns)
        if self.turns > MOST_TURN_ROWS:
            raise InputError("turns", self.turns, f"at most {MOST_TURN_ROWS:,}", "import it in parts")
        if len(self.held) >= BLOCK:
            self._flush()

    def sessions(self, rows: pd.DataFrame, numbers: Ints, origin: Origin) -> Sessions | None:
        """Return the sessions of `rows` of the trace; `numbers` [s]: which of the responses each was.

        None if no response had more than one turn.
        """
        self._flush()
        counts = np.array(self.counts, np.int64)
        if not len(counts) or counts.max() < 2:
            return None
        keep = np.zeros(len(counts), bool)
        keep[numbers] = True
        of_turns = np.repeat(keep, counts)
        columns = {name: np.concatenate([block[name] for block in self.blocks])[of_turns] for name in COLUMNS}
        offsets = np.concatenate([[0], np.cumsum(counts[keep])]).astype(np.int64)
        inputs, responses = columns["input_tokens"], columns["response_tokens"]
        cap = origin.max_response_tokens
        decoded = np.add.reduceat(responses.astype(np.int64), offsets[:-1])
        if cap is not None and decoded.max() > cap:  # re-tokenised: a little longer than they were
            origin = msgspec.structs.replace(origin, max_response_tokens=None)
        return Sessions(
            origin=origin,
            turn_offsets=offsets,
            step=rows["step"].to_numpy(),
            prompt_id=rows["prompt_id"].to_numpy(),
            sample=rows["sample"].to_numpy(),
            arrived_s=rows["arrived_s"].to_numpy() if "arrived_s" in rows else None,
            input_tokens=inputs,
            kept_tokens=fill_kept(columns["kept_tokens"], inputs, responses, offsets),
            response_tokens=responses,
            wait_s=columns["wait_s"],
            end=columns["end"],
        )

    def _flush(self) -> None:
        if self.held:
            of_columns = zip(*self.held, strict=True)
            self.blocks.append(
                {
                    name: np.array(values, kind)
                    for (name, kind), values in zip(COLUMNS.items(), of_columns, strict=True)
                }
            )
            self.held = []


def single_turn(response: Response) -> Turn:
    """Return the one turn of a response that had no other."""
    return Turn(
        input_tokens=response.prompt_tokens,
        response_tokens=response.response_tokens,
        end=response.why_ended(),
    )


def unusable_turns(response: Response) -> str:
    """Return why the turns of a response cannot be kept, or ""."""
    if len(response.turns) > MOST_TURNS:
        return "more turns than a session can have"
    for turn in response.turns:
        if not 0 <= turn.input_tokens <= INT32_MAX or not 1 <= turn.response_tokens <= INT32_MAX:
            return "a turn whose tokens are out of range"
        if turn.wait_s == turn.wait_s and not 0 <= turn.wait_s <= MOST_WAIT_S:
            return "a wait out of range"
    return ""
