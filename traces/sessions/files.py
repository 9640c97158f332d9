"""Session files: a row a turn, as parquet, CSV or JSONL. Read as lengths they are a response a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from tlt.traces.common.arrays import Ints
from tlt.traces.lengths.files import Progress, Sidecar, is_trace_file, read_stated, write_rows
from tlt.traces.lengths.read_blocks import iter_rows, suffix_of
from tlt.traces.lengths.schema import TURN, Origin
from tlt.traces.lengths.turns_as_trace import joined, session_starts
from tlt.traces.sessions.build import fill_kept
from tlt.traces.sessions.schema import Blocks, Sessions
from tlt.traces.sessions.turns import ENDS, NOT_KNOWN, SessionLimits, end_code
from tltsched.errors import InputError

DATA = Path(__file__).parent / "data"
SHIPPED = {"office-work": DATA / "office-work.csv.gz"}  # name -> recorded sessions; data/NOTICE.md
BLOCK_TOKENS = "block_tokens"  # stated beside the limits where turns have blocks


def sessions_path(name_or_path: str) -> Path:
    """Return the file of the shipped sessions of that name, else the path."""
    return SHIPPED.get(name_or_path, Path(name_or_path))


def is_session_file(path: Path) -> bool:
    """Return whether a trace file has turns; raises InputError if its beginning cannot be read."""
    return path.is_file() and is_trace_file(path) and TURN in next(iter_rows(path))[1]


def sessions_beside(path: Path) -> Path:
    """Return where the sessions behind a file of lengths are written: NAME.sessions and its ending."""
    suffix = suffix_of(path)
    return path.with_name(f"{path.name[: -len(suffix)]}.sessions{suffix}")


def read_sessions(path: Path, progress: Progress | None = None) -> Sessions:
    """Return the sessions of a file, all of them in memory.

    For columns that lack: each session is its own prompt of step 0, waits and ends are not known, and prompts
    only grow.
    Raises InputError that names file, row or session, field and value.
    """
    if not path.is_file():
        raise InputError("session file", str(path), "a file that exists", "check the path")
    stated = read_stated(path)
    blocks: list[pd.DataFrame] = []
    for _, block in iter_rows(path):
        if TURN not in block:
            allowed = "a column turn: a row a turn"
            raise InputError(f"columns of {path.name}", list(block), allowed, "this file holds responses")
        blocks.append(block)
        if progress:
            progress(len(block))
    rows = joined(blocks, path.name)
    starts = session_starts(rows, path.name)
    if stated.rows not in (-1, len(starts)):
        allowed = f"{stated.rows}, as stated beside it"
        raise InputError(f"sessions of {path.name}", len(starts), allowed, "the file was cut short or edited")
    return _of_rows(rows, starts, stated)


def write_sessions(sessions: Sessions, path: Path, force: bool = False) -> None:
    """Write sessions to `path`, whole or not at all. An existing file is replaced only with `force`."""
    text_lists = ".csv" in path.name.lower()
    facts: dict[str, int | None] = msgspec.structs.asdict(sessions.limits)
    if sessions.blocks is not None:
        facts[BLOCK_TOKENS] = sessions.blocks.block_tokens
    beside = Sidecar(rows=len(sessions), origin=sessions.origin, sessions=facts)
    write_rows(as_table(sessions, text_lists), beside, path, force)


def as_table(sessions: Sessions, text_lists: bool = False) -> pa.Table:
    """Return a row a turn with the columns of TURN_COLUMNS; blocks as texts where a format has no lists."""
    of = sessions.session_of
    turn = np.arange(len(of)) - sessions.turn_offsets[:-1][of]
    wait = pa.array(sessions.wait_s, mask=np.isnan(sessions.wait_s))
    columns: dict[str, pa.Array | npt.NDArray[np.generic]] = {
        "step": sessions.step[of],
        "prompt_id": sessions.prompt_id[of],
        "sample": sessions.sample[of],
        **({} if sessions.arrived_s is None else {"arrived_s": sessions.arrived_s[of]}),
        TURN: turn.astype(np.int32),
        "input_tokens": sessions.input_tokens,
        "kept_tokens": sessions.kept_tokens,
        "response_tokens": sessions.response_tokens,
        "wait_s": wait,
        "end": pa.array([ENDS[code] for code in sessions.end]),
    }
    if sessions.blocks is not None:
        ids, offsets = sessions.blocks.ids, sessions.blocks.offsets
        if text_lists:
            texts = [" ".join(map(str, part)) for part in np.split(ids, offsets[1:-1])]
            columns["blocks"] = pa.array(texts)
        else:
            columns["blocks"] = pa.LargeListArray.from_arrays(offsets, ids)
    return pa.table(columns)


def _of_rows(rows: pd.DataFrame, starts: Ints, stated: Sidecar) -> Sessions:
    facts = dict(stated.sessions or {})
    block_tokens = facts.pop(BLOCK_TOKENS, None)
    offsets = np.append(starts, len(rows)).astype(np.int64)
    count = len(rows)
    inputs, responses = (
        _column(rows, name, np.zeros(count, np.int32)) for name in ("input_tokens", "response_tokens")
    )
    kept = _column(rows, "kept_tokens", np.full(count, -1, np.int32))
    step = _column(rows, "step", np.zeros(count, np.int32))[starts]
    prompt_id = _column(rows, "prompt_id", np.cumsum(rows[TURN].to_numpy() == 0) - 1)[starts]
    return Sessions(
        origin=stated.origin,
        turn_offsets=offsets,
        step=step,
        prompt_id=prompt_id.astype(np.int64),
        sample=rows["sample"].to_numpy()[starts] if "sample" in rows else _samples(step, prompt_id),
        input_tokens=inputs,
        kept_tokens=fill_kept(kept, inputs, responses, offsets),
        response_tokens=responses,
        wait_s=_waits(rows, offsets),
        end=_ends(rows),
        arrived_s=rows["arrived_s"].to_numpy()[starts] if "arrived_s" in rows else None,
        blocks=_blocks(rows, block_tokens),
        limits=_limits(facts, stated.origin),
    )


def _column(rows: pd.DataFrame, name: str, otherwise: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return rows[name].to_numpy() if name in rows else otherwise


def _samples(step: npt.NDArray[np.generic], prompt_id: npt.NDArray[np.generic]) -> npt.NDArray[np.int32]:
    numbered = pd.DataFrame({"step": step, "prompt_id": prompt_id}).groupby(["step", "prompt_id"]).cumcount()
    return numbered.to_numpy().astype(np.int32)


def _waits(rows: pd.DataFrame, offsets: Ints) -> npt.NDArray[np.float64]:
    """Return waits; without the column none is known, but that nothing follows the last response."""
    if "wait_s" in rows:
        return rows["wait_s"].to_numpy().astype(float)
    waits = np.full(len(rows), np.nan)
    waits[offsets[1:] - 1] = 0.0
    return waits


def _ends(rows: pd.DataFrame) -> npt.NDArray[np.uint8]:
    if "end" not in rows:
        return np.full(len(rows), NOT_KNOWN, np.uint8)
    names, which = np.unique(rows["end"].to_numpy().astype(str), return_inverse=True)
    return np.array([end_code(str(name)) for name in names], np.uint8)[which]


def _blocks(rows: pd.DataFrame, block_tokens: int | None) -> Blocks | None:
    if "blocks" not in rows:
        return None
    if block_tokens is None:
        allowed = "the tokens of a block, stated in the file or beside it"
        raise InputError("block_tokens", "nothing", allowed, "drop the column blocks, or state it")
    parts = rows["blocks"].to_list()
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return Blocks(block_tokens=block_tokens, offsets=offsets, ids=np.concatenate(parts).astype(np.int64))


def _limits(facts: dict[str, int | None], origin: Origin) -> SessionLimits:
    try:
        return msgspec.convert(facts, SessionLimits)
    except msgspec.ValidationError as error:
        allowed = ", ".join(SessionLimits.__struct_fields__)
        raise InputError(f"limits of {origin.source}", str(error), allowed, "write the file again") from None
