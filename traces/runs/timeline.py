"""Where each worker's time went: intervals of one cause that tile the run."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tlt.traces.common.arrays import Floats
from tlt.traces.runs.runfolder import CAUSES


class Timeline:
    """Books the time of one worker; each booking starts where the last one ended, so there are no gaps."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.booked_s = 0.0
        self.causes: list[str] = []
        self.steps: list[int] = []
        self.ends_s: list[float] = []

    def book(self, cause: str, step: int, until_s: float) -> None:
        """Book the time since the last booking to `cause`; an interval of the same cause and step grows."""
        if until_s <= self.booked_s:
            return
        self.booked_s = until_s
        if self.causes and self.causes[-1] == cause and self.steps[-1] == step:
            self.ends_s[-1] = until_s
            return
        self.causes.append(cause)
        self.steps.append(step)
        self.ends_s.append(until_s)


def intervals(timelines: list[Timeline]) -> pd.DataFrame:
    """Return the table of tlt.traces.runs.runfolder.INTERVAL_COLUMNS."""
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "worker": timeline.worker,
                    "cause": timeline.causes,
                    "step": timeline.steps,
                    "start_s": [0.0, *timeline.ends_s[:-1]] if timeline.ends_s else [],
                    "end_s": timeline.ends_s,
                }
            )
            for timeline in timelines
        ],
        ignore_index=True,
    )


def booked_seconds(
    frame: pd.DataFrame, steps: pd.DataFrame, from_s: Floats, to_s: Floats
) -> dict[str, Floats]:
    """Return seconds of every cause inside the window [from_s, to_s] of each step, shape (steps,).

    They are summed over workers. frame: INTERVAL_COLUMNS; steps: STEP_COLUMNS. The windows are seconds since
    the run began, one a step, in the order of `steps`.
    """
    row = pd.Index(steps["step"].to_numpy()).get_indexer(pd.Index(frame["step"]))
    known = row >= 0
    at = row[known]
    starts = np.clip(frame["start_s"].to_numpy(np.float64)[known], from_s[at], to_s[at])
    ends = np.clip(frame["end_s"].to_numpy(np.float64)[known], from_s[at], to_s[at])
    names = frame["cause"].astype(str).to_numpy()[known]
    booked = {}
    for cause in CAUSES:
        mine = names == cause
        sums = np.bincount(at[mine], weights=(ends - starts)[mine], minlength=len(steps))
        booked[cause] = np.asarray(sums, dtype=np.float64)
    return booked
