"""Responses become the rows of a trace: checked, counted, in compact blocks.

Memory: one block of Python values, and 61 bytes a response, twice when the blocks are joined.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from tlt.traces.common.arrays import Ints
from tlt.traces.importers.base import Importer
from tlt.traces.importers.reading.items import Options, Response, Skip, Source
from tlt.traces.importers.reading.values import digest, excerpt_of
from tlt.traces.importers.report import Report, Staleness, Tally
from tlt.traces.importers.turns.held import HeldTurns, unusable_turns
from tlt.traces.importers.turns.requests import HeldRequests
from tlt.traces.lengths.schema import (
    ALL_COLUMNS,
    COLUMNS,
    INT32_MAX,
    INT64_MAX,
    OPTIONAL_COLUMNS,
    Trace,
)
from tlt.traces.lengths.validate import KEY
from tlt.traces.sessions.schema import Sessions
from tltsched.errors import InputError

BLOCK_ROWS = 1 << 16
MOST_ROWS = 100_000_000  # about 10 GB of memory
NOT_SAID = -1
EMPTY = "a response of 0 tokens"
# name -> dtype of what is kept of a response; `file` and `line` say where a repeat was found
KEPT = ALL_COLUMNS | {"file": "int32", "line": "int64"}
Block = dict[str, npt.NDArray[Any]]


class Collector:
    """Takes what a reader yields; `rows` gives the table when all is read."""

    def __init__(self, importer: Importer, options: Options, report: Report) -> None:
        self.importer, self.options, self.report = importer, options, report
        self.skipped = Tally()
        self.names: list[str] = []
        self.blocks: list[Block] = []
        self.held: list[tuple[Any, ...]] = []
        self.texts_are_groups = False
        self.several_turns = 0
        self.turns, self.requests = HeldTurns(), HeldRequests()
        self.kept: Ints = np.zeros(0, np.int64)  # which of the responses became rows
        self.lags = self.lag_sum = self.lag_max = self.spanning = 0

    def begin(self, source: Source) -> None:
        """Say which file the next responses come from."""
        self.names.append(source.name)

    def add(self, item: Response | Skip) -> None:
        """Take one thing that a reader yields."""
        if isinstance(item, Skip):
            self._skip(item.reason, item.line, item.excerpt)
            return
        step = self.options.step if item.step is None else item.step
        why = _unusable(item, step) or unusable_turns(item)
        if why:
            self._skip(why, item.line, f"{item.response_tokens} tokens, step {step}"[:200].encode())
            return
        self.several_turns += item.several_turns
        if self.importer.waits:
            self.turns.add(item) if item.request is None else self.requests.add(item)
        tokens, truncated = self._at_cap(item)
        sample = NOT_SAID if item.sample is None else item.sample
        optional = [np.nan if value is None else value for value in (item.arrived_s, item.reward)]
        if item.lag is not None and abs(item.lag) <= INT32_MAX:
            self._lag(item.lag)
        values = (step, self._group(item.group), sample, item.prompt_tokens, tokens, truncated)
        self.held.append((*values, *optional, item.text_hash, len(self.names) - 1, item.line))
        if len(self.held) >= BLOCK_ROWS:
            self._flush()

    def rows(self) -> pd.DataFrame:
        """Return the rows of a trace and fill the report; raises InputError if there is none."""
        self._flush()
        if not self.blocks:
            raise self._nothing()
        kept = {name: np.concatenate([block[name] for block in self.blocks]) for name in KEPT}
        self.blocks = []
        table = pd.DataFrame(kept, copy=False)
        if self.texts_are_groups:
            table["prompt_id"] = pd.factorize(table["prompt_id"])[0].astype(np.int64)
        if (table["sample"] == NOT_SAID).any():
            table["sample"] = table.groupby(["step", "prompt_id"], sort=False).cumcount().astype(np.int32)
        table = self._without_repeats(table)
        self._optional(table)
        self._facts(table)
        wanted = [*COLUMNS, *(name for name in OPTIONAL_COLUMNS if name in table)]
        self.kept = table.index.to_numpy().astype(np.int64)
        return table[wanted].reset_index(drop=True)

    def sessions(self, trace: Trace) -> Sessions | None:
        """Return the sessions behind the rows of `trace`, after `rows`; None if nothing had several turns."""
        if self.requests.held:
            unlimited = msgspec.structs.replace(trace.origin, max_response_tokens=None)
            made = self.requests.sessions(unlimited, self.options.step)
            self.report.notes += self.requests.notes if made else []
        else:
            made = self.turns.sessions(trace.rows, self.kept, trace.origin)
        if made is not None:
            self.report.sessions, self.report.turns = len(made), len(made.end)
            between = made.wait_s[~made.last]
            self.report.waits, self.report.waits_known = len(between), int(np.isfinite(between).sum())
        return made

    def _at_cap(self, item: Response) -> tuple[int, bool]:
        cap = self.options.max_response_tokens
        if cap is None or item.response_tokens < cap:
            return item.response_tokens, item.truncated
        if item.response_tokens > cap:
            if self.importer.lengths == "exact":
                where = f"response_tokens in {self.names[-1]}:{item.line}"
                allowed = f"at most the stated cap, {cap}"
                raise InputError(where, item.response_tokens, allowed, "give the cap that generation had")
            self.report.set_to_cap += 1
        return cap, True

    def _group(self, group: int | str) -> int:
        if isinstance(group, int) and -INT64_MAX <= group <= INT64_MAX:
            return group
        self.texts_are_groups = True
        text = str(group) if isinstance(group, str) else hex(group)
        return digest(text)

    def _lag(self, lag: int) -> None:
        self.lags += 1
        self.lag_sum += lag
        self.lag_max = max(self.lag_max, lag)
        self.spanning += lag > 0

    def _skip(self, reason: str, line: int, excerpt: bytes) -> None:
        self.skipped.add(reason, f"{self.names[-1]}:{line}", excerpt_of(excerpt))

    def _flush(self) -> None:
        if self.held:
            if len(self.blocks) * BLOCK_ROWS > MOST_ROWS:
                field = f"responses in {self.report.source}"
                raise InputError(field, f"over {MOST_ROWS:,}", f"{MOST_ROWS:,}", "import it in parts")
            columns = zip(*self.held, strict=True)
            self.blocks.append({n: np.array(c, d) for (n, d), c in zip(KEPT.items(), columns, strict=True)})
            self.held = []

    def _nothing(self) -> InputError:
        found = self.skipped.most_first()[:5]
        why = "; ".join(f"{one.count:,} x {one.reason} (first {one.first}: {one.excerpt})" for one in found)
        where = f"responses in {self.report.source}"
        return InputError(
            where, 0, "1 or more", f"read as {self.importer.name}: {why or 'the file is empty'}"
        )

    def _without_repeats(self, table: pd.DataFrame) -> pd.DataFrame:
        repeated = table.duplicated(KEY).to_numpy()
        if not repeated.any():
            return table
        first = table.iloc[int(np.argmax(repeated))]
        told = ", ".join(f"{name} {int(first[name])}" for name in KEY)
        place = f"{self.names[int(first['file'])]}:{int(first['line'])}"
        reason = "a repeated step, prompt and sample"
        self.skipped.add(reason, place, told)
        self.skipped.by_reason[reason].count = int(repeated.sum())
        return table[~repeated]

    def _optional(self, table: pd.DataFrame) -> None:
        """Let arrival times start at 0 in each step; drop what a response lacks, and hashes that all lack."""
        for column, words in (("arrived_s", "Arrival times"), ("reward", "Rewards")):
            unknown = int(table[column].isna().sum())
            if 0 < unknown < len(table):
                self.report.notes.append(f"{words} left out: {unknown:,} responses have none.")
            if unknown:
                del table[column]
        if "arrived_s" in table:
            table["arrived_s"] -= table.groupby("step")["arrived_s"].transform("min")
        if not table["text_hash"].any():
            del table["text_hash"]

    def _facts(self, table: pd.DataFrame) -> None:
        report = self.report
        report.files, report.rows = len(self.names), len(table)
        report.steps = int(table["step"].nunique())
        report.groups = int((~table.duplicated(["step", "prompt_id"])).sum())
        report.truncated = int(table["truncated"].sum())
        report.skipped = self.skipped.most_first()
        if self.several_turns:
            lost = " how long they waited for tools is not in the file, nor the lengths of single turns."
            kept = " the file of sessions has them one by one."
            told = kept if self.importer.waits else lost
            report.notes.append(f"{self.several_turns:,} responses have several turns:{told}")
        if self.lags:
            report.staleness = Staleness(
                responses=self.lags,
                mean=self.lag_sum / self.lags,
                max=self.lag_max,
                spanning_share=self.spanning / self.lags,
            )


def _unusable(item: Response, step: int) -> str:
    """Return why a response cannot be a row, or ""."""
    if item.response_tokens == 0:
        return EMPTY
    if not 0 < item.response_tokens <= INT32_MAX:
        return "a response length out of range"
    if not 0 <= item.prompt_tokens <= INT32_MAX:
        return "a prompt length out of range"
    if not 0 <= step <= INT32_MAX:
        return "a step out of range"
    if item.sample is not None and not 0 <= item.sample <= INT32_MAX:
        return "an index in its group out of range"
    return ""
