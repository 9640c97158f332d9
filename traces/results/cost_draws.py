"""Where the drawn step times of a comparison come from that was not made to recommend, cost_error.json."""

from __future__ import annotations

import msgspec

from tlt.traces.runs.runfolder import FORMAT_VERSION

COST_DRAWS = "cost_error.json"


class CostDraws(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What cost_draws.parquet rests on."""

    format_version: int = FORMAT_VERSION
    cost_error: float  # standard deviation of the step times, as a share
    cost_error_source: str
    probe_steps: int  # RL steps over which the response to each factor was simulated
