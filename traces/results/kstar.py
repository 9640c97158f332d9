"""The K* map: what to draft at which batch, context and acceptance, and from which acceptance it pays.

A folder of a map holds kstar.json (KStar: what it rests on), kstar.parquet (KSTAR_COLUMNS) and
breakeven.parquet (BREAKEVEN_COLUMNS). Gains are tokens per second over an engine without speculation
configured. Lengths count the bonus token.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pandas as pd

from tlt.traces.common.manifest import sealed
from tlt.traces.runs.runfolder import FORMAT_VERSION, read_struct, read_table, write_json, write_table
from tltsched.errors import InputError

KSTAR = "kstar.json"
CONFIGURED = -1.0  # `rate` of the rows under the configured law

KSTAR_COLUMNS = {
    "rate": "float64",  # chance that each further draft is accepted; CONFIGURED: the configured law
    "batch": "int32",
    "context_tokens": "float64",  # of one request
    "draft_config": "str",
    "gain": "float64",
    "gain_low": "float64",  # 95 % interval over the error of the step times
    "gain_high": "float64",
    "runner_up": "str",
    "runner_up_gain": "float64",
    "regret": "float64",  # mean share of time that the best loses to what is fastest in a draw; NaN: not told
    "regret_high": "float64",  # upper end of its 95 % interval
    "ties": "str",  # with a blank between: as good as the best, exactly or within 1 % at 95 %
    "near": "str",  # within 1 % of the best by the fit alone
    "extrapolated": "bool",  # outside the points that the step times were fitted to
    "length_with_bonus": "float64",  # tokens that the best emits in an engine step for one request
}
BREAKEVEN_COLUMNS = {
    "batch": "int32",
    "context_tokens": "float64",
    "draft_config": "str",
    "length_with_bonus": "float64",  # at which it is as fast as plain decode
    "most_with_bonus": "float64",  # that the draft configuration can emit: depth + 1
    "rate": "float64",  # of geometric acceptance that gives this length; NaN: none below 1, or a tree
    "pays_first": "bool",  # the draft configuration with the smallest rate of all at this batch and context
    "extrapolated": "bool",
}


class KStar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a map rests on, and its grid."""

    format_version: int = FORMAT_VERSION
    calibration: str  # its name, or "roofline"
    provenance: str  # measured, published or assumed
    engine: str
    engine_version: str
    device: str
    date: str  # of the step times; "" for a roofline
    model: str
    tp: int
    acceptance: str  # the configured law and what it rests on
    cost_error: float  # standard deviation of the step times, as a share
    cost_error_source: str
    draws: int
    seed: int
    tool_version: str
    draft_configs: tuple[str, ...]  # `off` is always among them
    batches: tuple[int, ...]
    contexts: tuple[float, ...]  # tokens
    rates: tuple[float, ...]  # empty for trees: their acceptance is not a rate
    batch_range: tuple[int, int] | None  # calibrated while drafting; None: a roofline
    context_range: tuple[float, float] | None

    def describe(self) -> str:
        """Return one line that says what the map rests on."""
        engine = " ".join(part for part in (self.engine, self.engine_version) if part)
        facts = (f"{self.provenance}: {engine}", self.device, self.date, f"{self.model}, TP {self.tp}")
        return f"{', '.join(fact for fact in facts if fact)} ({self.calibration})"


@dataclass(frozen=True, slots=True)
class KStarMap:
    """A map with its tables."""

    about: KStar
    best: pd.DataFrame  # KSTAR_COLUMNS
    breakeven: pd.DataFrame  # BREAKEVEN_COLUMNS


def write_kstar(folder: Path, found: KStarMap) -> None:
    """Write a map; the folder is made if it does not exist."""
    with sealed(folder):
        write_table(folder / "kstar.parquet", found.best, KSTAR_COLUMNS)
        write_table(folder / "breakeven.parquet", found.breakeven, BREAKEVEN_COLUMNS)
        write_json(folder / KSTAR, found.about)


def read_kstar(folder: Path) -> KStarMap:
    """Read a map; raises InputError if a file is missing or not of that form."""
    about = read_struct(folder / KSTAR, KStar)
    best = read_table(folder / "kstar.parquet", KSTAR_COLUMNS)
    cells = len(about.batches) * len(about.contexts)
    if len(best) != cells * (1 + len(about.rates)):
        raise InputError(
            "kstar.parquet", f"{len(best)} rows", f"{cells * (1 + len(about.rates))}", "make the map again"
        )
    return KStarMap(about, best, read_table(folder / "breakeven.parquet", BREAKEVEN_COLUMNS))
