"""What a trace is: a table of responses, and a statement of where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import pandas as pd

from tltsched.errors import InputError

Kind = Literal["rollout", "serving", "generated", "unstated"]

# Shown wherever lengths are shown: a reader must not take serving traffic for RL rollouts.
KIND_LABELS: dict[Kind, str] = {
    "rollout": "RL rollout lengths",
    "serving": "serving lengths, not RL rollouts",
    "generated": "generated lengths, not a recorded run",
    "unstated": "lengths of unstated kind (the file says nothing about their origin)",
}

COLUMNS: dict[str, str] = {
    "step": "int32",  # RL step
    "prompt_id": "int64",  # equal in all responses of a group
    "sample": "int32",  # index in its group
    "prompt_tokens": "int32",  # 0: not known
    "response_tokens": "int32",  # >= 1
    "truncated": "bool",  # generation was cut at the cap, so the full length is not known
}
OPTIONAL_COLUMNS: dict[str, str] = {
    "arrived_s": "float64",  # seconds since the first request
    "reward": "float64",  # as the trainer scored the response
    "text_hash": "int64",  # equal for equal texts; 0: not known
}
ALL_COLUMNS = COLUMNS | OPTIONAL_COLUMNS
# A file of sessions has a row a turn and the column `turn`: those of its session, then what is of the turn.
# Read as lengths it is a response a session (tlt.traces.sessions reads it whole).
TURN = "turn"
TURN_COLUMNS: dict[str, str] = {
    "step": "int32",
    "prompt_id": "int64",
    "sample": "int32",
    "arrived_s": "float64",
    TURN: "int32",  # from 0, in order
    "input_tokens": "int32",  # new in the prompt; 0 in a first turn: not known
    "kept_tokens": "int32",  # of the context before
    "response_tokens": "int32",
    "wait_s": "float64?",  # until the next turn; no value: not known
    "end": "text",
    "blocks": "list",  # ids of the prompt's blocks
}
REQUIRED_COLUMN = "response_tokens"

MOST_TURN_ROWS = 50_000_000  # of a file of sessions, about 3 GB of memory
INT32_MAX = int(np.iinfo(np.int32).max)
INT64_MAX = int(np.iinfo(np.int64).max)

# column -> smallest and largest value allowed
LIMITS: dict[str, tuple[int, int]] = {
    "step": (0, INT32_MAX),
    "prompt_id": (-INT64_MAX - 1, INT64_MAX),
    "sample": (0, INT32_MAX),
    "prompt_tokens": (0, INT32_MAX),
    "response_tokens": (1, INT32_MAX),
    "text_hash": (-INT64_MAX - 1, INT64_MAX),
    TURN: (0, INT32_MAX),
    "input_tokens": (0, INT32_MAX),
    "kept_tokens": (0, INT32_MAX),
}


class Origin(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Where the lengths of a trace come from. `note` says what was modelled and what was recorded.

    drafted: what the same files say of drafts that the run made; empty: nothing.
    """

    source: str
    kind: Kind
    model: str = "not stated"
    tokenizer: str = "not stated"
    max_response_tokens: int | None = None  # longest response that generation allowed; None: not known
    licence: str = "not stated"
    note: str = ""
    drafted: str = ""

    def __post_init__(self) -> None:
        check_cap(self.max_response_tokens)

    def text(self) -> str:
        """Return one line for people: source, model, cap, kind and note."""
        cap = (
            "cap not known"
            if self.max_response_tokens is None
            else f"cap {self.max_response_tokens:,} tokens"
        )
        line = f"{self.source} (model: {self.model}; {cap}): {KIND_LABELS[self.kind]}"
        return f"{line}. {self.note}" if self.note else line


@dataclass(frozen=True)
class Trace:
    """Responses and their origin.

    rows: one row a response; columns and dtypes of COLUMNS, in that order, then any of OPTIONAL_COLUMNS.
    The constructor checks names and dtypes alone; `traces.lengths.validate.to_trace` checks the values as
    well.
    """

    rows: pd.DataFrame
    origin: Origin

    def __post_init__(self) -> None:
        dtypes = {name: str(dtype) for name, dtype in self.rows.dtypes.items()}
        wanted = COLUMNS | {name: kind for name, kind in OPTIONAL_COLUMNS.items() if name in dtypes}
        if dtypes != wanted:
            raise InputError(
                "columns of a trace", dtypes, str(wanted), "build it with tlt.traces.lengths.validate"
            )
        if self.rows.empty:
            raise empty_trace(self.origin.source)


def check_cap(cap: int | None, field: str = "max_response_tokens") -> None:
    """Raise InputError for `field` unless `cap` is None or a positive int32."""
    if cap is not None and not 1 <= cap <= INT32_MAX:
        raise InputError(field, cap, f"1 to {INT32_MAX}", "state the longest response allowed")


def empty_trace(name: str) -> InputError:
    """Return the error of a trace without responses."""
    return InputError(f"rows of {name}", 0, "1 or more responses", "check that the file was written in full")
