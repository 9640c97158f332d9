"""Response lengths for a study: shipped ones, a file, a framework's log, or numbers in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from tlt.api.temporary import TemporaryFolder
from tlt.traces.importers.detect import UnknownFormatError
from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.reading.head import holds_trace
from tlt.traces.importers.reading.items import Options
from tlt.traces.lengths.describe import Description, describe
from tlt.traces.lengths.files import is_trace_file, write_trace
from tlt.traces.lengths.histogram import LengthHistogram, histogram_of
from tlt.traces.lengths.schema import Origin, Trace
from tlt.traces.lengths.shipped import SHIPPED
from tlt.traces.lengths.shipped import load as load_recorded
from tlt.traces.lengths.validate import to_trace

Source = str | Path | pd.DataFrame | Iterable[int]


@dataclass(frozen=True)
class Lengths:
    """Response lengths that studies can be made of.

    source: what `workload.lengths` of a configuration is set to: a shipped name or a trace file.
    recorded: the responses in order, or counts where only these were recorded.
    """

    source: str
    recorded: Trace | LengthHistogram
    _kept: TemporaryFolder | None = field(default=None, repr=False)

    def __len__(self) -> int:
        """Return the number of responses."""
        return self.histogram.rows

    @property
    def origin(self) -> Origin:
        """Where they were recorded, and what they are."""
        return self.recorded.origin

    @property
    def histogram(self) -> LengthHistogram:
        """The lengths as counts."""
        return histogram_of(self.recorded) if isinstance(self.recorded, Trace) else self.recorded

    def describe(self) -> Description:
        """Return what the lengths look like: percentiles, the longest of a batch, the share that was cut."""
        return describe(self.histogram)

    def to_pandas(self) -> pd.DataFrame:
        """Return a row a response (traces.lengths.schema.COLUMNS), or a row a length where those were
        counted.
        """
        if isinstance(self.recorded, Trace):
            return self.recorded.rows.copy()
        return pd.DataFrame({"response_tokens": self.recorded.values, "responses": self.recorded.counts})

    def _repr_html_(self) -> str:
        """Show the percentiles in a notebook."""
        from tlt.analysis.drawing.html import page

        seen = self.describe()
        headers = ("Responses", "Mean", "Median", "p90", "p99", "Longest", "At the cap")
        lengths = (seen.rows, seen.mean, seen.p50, seen.p90, seen.p99, seen.max)
        row = (*(f"{value:,.0f}" for value in lengths), f"{seen.share_at_cap:.1%}")
        table = {"headers": headers, "rows": [row], "names": ()}
        return page("drawing/notebook_table.html", title=self.origin.text(), table=table)


def load(
    source: Source,
    *,
    name: str = "given from Python",
    max_response_tokens: int | None = None,
    responses: int | None = None,
    columns: dict[str, str] | None = None,
    format: str | None = None,  # noqa: A002 -- the word of `tlt trace import --format`
) -> Lengths:
    """Return response lengths to simulate.

    source: a shipped name (`r1-client35`), a trace file (CSV, JSONL, parquet with a column response_tokens),
    a file or folder as a framework wrote it (its format is found out unless `format` names it), a data frame
    with a column response_tokens, or lengths in tokens. `name` says where numbers in memory come from,
    `max_response_tokens` at which length responses were cut there, and `responses` how many a step has, for
    metrics that do not say it; `columns` names those of a file in no known format, as `--columns` does.
    Raises InputError.
    """
    if isinstance(source, (str, Path)):
        text, path = str(source), Path(source)
        named = tuple(f"{field}={column}" for field, column in (columns or {}).items())
        if text in SHIPPED or not path.exists() or (holds_trace(path) and not named and format is None):
            return Lengths(text, load_recorded(text))
        options = Options(max_response_tokens=max_response_tokens, responses=responses, columns=named)
        try:
            return _kept(import_trace(path, options, format)[0])
        except UnknownFormatError:
            if not is_trace_file(path):
                raise
            return Lengths(text, load_recorded(text))  # which says what of a trace is wrong
    frame = source if isinstance(source, pd.DataFrame) else pd.DataFrame({"response_tokens": list(source)})
    origin = Origin(source=name, kind="unstated", max_response_tokens=max_response_tokens)
    return _kept(to_trace(frame, origin))


def _kept(trace: Trace) -> Lengths:
    """Write a trace where studies find it for as long as the lengths are held."""
    folder = TemporaryFolder()
    path = folder.path / "lengths.parquet"
    write_trace(trace, path)
    return Lengths(str(path), trace, folder)
