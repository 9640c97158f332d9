"""A run folder's responses.parquet as a trace: steps, prompt groups, lengths and where they come from.

Groups are numbered anew in each step, prompts of a trace are not: a prompt's number holds its step as well.
The origin is what summary.json and resolved_config.json beside the file say.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow.compute as pc

from tlt.traces.common.migrate import names_today
from tlt.traces.lengths.schema import Kind, Origin
from tlt.traces.runs.runfolder import RESPONSE_COLUMNS, RunFolder, read_struct

GROUPS_OF_A_STEP = 1 << 20  # prompt_id = step * this + group
TRAINING = "rewards.parquet"  # what only a training run leaves beside its responses


class RolloutSettings(msgspec.Struct, frozen=True):
    """The part of a training run's settings that bounds its lengths."""

    max_response_tokens: int | None = None


class RunSettings(msgspec.Struct, frozen=True):
    """The part of a resolved_config.json that is needed here."""

    rollout: RolloutSettings = RolloutSettings()


def is_responses(names: Iterable[str]) -> bool:
    """Return whether a table with these columns, of version 1 or 2, is the responses of a run folder."""
    return set(names_today(names, RESPONSE_COLUMNS)) == set(RESPONSE_COLUMNS)


def as_trace_columns(columns: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a trace (arrow arrays by name) from those of responses.

    The index in a group is left out: readers count it in the order of the rows.
    """
    step = columns["step"].cast("int64")
    kept = {name: columns[name] for name in ("step", "prompt_tokens", "response_tokens", "truncated")}
    return kept | {"prompt_id": pc.add(pc.multiply(step, GROUPS_OF_A_STEP), columns["group"].cast("int64"))}


def by_request(responses: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return these columns in order of step and request: equal tables mean that the same was rolled out."""
    return responses[list(columns)].sort_values(["step", "request"], kind="stable", ignore_index=True)


def origin_of_run(path: Path) -> Origin | None:
    """Return where the lengths of a responses.parquet come from; None if no summary lies beside it.

    Raises InputError if what lies beside it cannot be read.
    """
    folder = path.parent
    if not (folder / "summary.json").is_file():
        return None
    summary = RunFolder(folder).summary()
    trained = summary.kind == "measured" and (folder / TRAINING).is_file()
    kind: Kind = "rollout" if trained else "unstated"
    return Origin(
        source=f"{summary.kind} run {summary.name}, policy {summary.policy}",
        kind=kind,
        model=summary.model,
        max_response_tokens=_cap_tokens(folder / "resolved_config.json"),
        note=summary.lengths_source,
    )


def _cap_tokens(path: Path) -> int | None:
    return read_struct(path, RunSettings).rollout.max_response_tokens if path.is_file() else None
