"""What a comparison says beside its runs: step times under drawn costs, and advice by batch size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from tlt.traces.common.arrays import Floats
from tlt.traces.results.cost_draws import COST_DRAWS, CostDraws
from tlt.traces.runs.runfolder import COST_DRAW_COLUMNS, Advice, file_of, read_struct, read_table
from tltsched.errors import InputError

_SAME = 1e-9  # relative: the run and draw 0 are the same simulation


class StepTimeError(msgspec.Struct, frozen=True):
    """The error within which step times were drawn."""

    share: float  # standard deviation, as a share
    source: str
    linear: bool  # whether draws follow from the linear response of the steps, not from simulations


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The advice, its rows in order of batch, and each run's step times by the name of its folder.

    A run's times are seconds with shape (1 + draws, steps); row 0 is the run itself. `advice` is None if the
    comparison was not made to recommend.
    """

    advice: Advice | None
    error: StepTimeError
    step_s: dict[str, Floats]

    def draws(self) -> int:
        """Return how many sets of step-time coefficients were drawn."""
        return len(next(iter(self.step_s.values()))) - 1


def read_recommendation(path: Path, step_s: dict[str, pd.Series[float]]) -> Recommendation | None:
    """Read advice.json or cost_error.json, and cost_draws.parquet; None if the folder has none of them.

    `step_s` holds the step times of the runs by folder name, indexed by RL step. Raises InputError if one of
    the files is missing or malformed, or belongs to another comparison than the runs.
    """
    draws_path = path / "cost_draws.parquet"
    advice, error = _read_advice(path / "advice.json"), _read_cost_draws(file_of(path / COST_DRAWS))
    if advice is None and error is None and not draws_path.is_file():
        return None
    if advice is not None and error is None:
        error = StepTimeError(advice.cost_error, advice.cost_error_source, False)
    if error is None:
        raise InputError("step times", str(path), f"advice.json or {COST_DRAWS}", "compare again")
    frame = _read_draws(draws_path)
    drawn = set(frame["run"])
    if drawn != set(step_s):
        raise _stale("run", ", ".join(sorted(drawn)), ", ".join(step_s))
    times_s = {name: _times_s(frame, name, times) for name, times in step_s.items()}
    return Recommendation(advice, error, times_s)


def _read_advice(path: Path) -> Advice | None:
    """Return the advice with its rows in order of batch."""
    if not path.is_file():
        return None
    advice = read_struct(path, Advice)
    fewest = min((row.requests for row in advice.rows), default=1)
    if fewest < 1:
        raise InputError("requests in advice.json", fewest, "1 or more", f"check {path}")
    rows = tuple(sorted(advice.rows, key=lambda row: row.requests))
    return msgspec.structs.replace(advice, rows=rows)


def _read_cost_draws(path: Path) -> StepTimeError | None:
    if not path.is_file():
        return None
    found = read_struct(path, CostDraws)
    return StepTimeError(found.cost_error, found.cost_error_source, True)


def _read_draws(path: Path) -> pd.DataFrame:
    frame = read_table(path, COST_DRAW_COLUMNS)
    times_s = frame["step_s"].to_numpy()
    if not (np.isfinite(times_s) & (times_s >= 0)).all() or frame.duplicated(["draw", "run", "step"]).any():
        raise InputError(path.name, "odd rows", "each draw, run and step once, in seconds", f"check {path}")
    return frame


def _times_s(frame: pd.DataFrame, name: str, fit_s: pd.Series[float]) -> Floats:
    """Return the times of one run, shape (1 + draws, steps)."""
    table = frame[frame["run"] == name].pivot(index="draw", columns="step", values="step_s")
    draws, steps = 1 + int(frame["draw"].max()), list(fit_s.index)
    if list(table.index) != list(range(draws)) or list(table.columns) != steps or table.isna().any(axis=None):
        raise _stale(
            f"draws of {name}",
            f"{len(table)} draws of {len(table.columns)} steps",
            f"{draws} of {len(steps)}, each complete",
        )
    times_s = table.to_numpy(dtype=np.float64)
    if not np.allclose(times_s[0], fit_s.to_numpy(), rtol=_SAME, atol=0):
        got, allowed = f"{times_s[0].sum():.9g} s in all", f"{fit_s.sum():.9g} s as its run"
        raise _stale(f"draw 0 of {name}", got, allowed)
    return times_s


def _stale(field: str, got: str, allowed: str) -> InputError:
    return InputError(
        f"{field} in cost_draws.parquet",
        got,
        allowed,
        "the runs were made anew since: compare again, or delete advice.json, cost_error.json and "
        "cost_draws.parquet",
    )
