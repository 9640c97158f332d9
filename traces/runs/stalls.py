"""Workers that stood still: a process that was stopped, a machine that was paused, a file system that hung.

No policy is slow for that reason, but all time of a rollout is booked to its policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

TIMES_USUAL = 20.0  # so many times the usual longest pause of a rollout is no engine step
LEAST_S = 1.0
READ = ("step", "worker", "t_s", "seconds", "prompt_tokens", "compiled")


@dataclass(frozen=True, slots=True)
class Stall:
    """One worker in one rollout. `usual_s` is the longest pause of the median rollout of a worker."""

    step: int
    worker: int
    seconds: float
    usual_s: float

    def text(self) -> str:
        """Return it as a sentence without its end."""
        return (
            f"worker {self.worker} stood still for {self.seconds:.1f} s in rollout {self.step}, where "
            f"{self.usual_s:.2g} s is usual"
        )


def stalls(engine_steps: pd.DataFrame) -> list[Stall]:
    """Return the stalls of a run (READ of ENGINE_STEP_COLUMNS), in order of step and worker.

    A pause is an engine step, or the time to the next one of the same batch; compilations are told apart.
    """
    rows = engine_steps.sort_values(["step", "worker", "t_s"], kind="stable", ignore_index=True)
    if rows.empty:
        return []
    seconds, start_s = rows["seconds"].to_numpy(np.float64), rows["t_s"].to_numpy(np.float64)
    keys = rows[["step", "worker"]].to_numpy(np.int64)
    same = np.append((keys[1:] == keys[:-1]).all(axis=1) & (rows["prompt_tokens"].to_numpy()[1:] == 0), False)
    to_next = np.append(start_s[1:] - start_s[:-1], 0.0)
    pauses = np.where(same, np.maximum(seconds, to_next), seconds)
    pauses = np.where(rows["compiled"].to_numpy(bool), 0.0, pauses)
    longest = pd.Series(pauses).groupby([rows["step"], rows["worker"]]).max()
    usual_s = float(longest.median())
    found = longest[longest > max(LEAST_S, TIMES_USUAL * usual_s)]
    return [
        Stall(int(step), int(worker), float(value), usual_s)
        for (step, worker), value in zip(found.index.tolist(), found.tolist(), strict=True)
    ]
