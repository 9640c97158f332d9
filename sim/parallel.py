"""Many simulations at once, in processes of their own; the order of the results is that of the jobs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from tlt.sim.config import Config
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.law import Coefficients
from tlt.traces.common.arrays import Floats
from tlt.traces.lengths.schema import Trace


@dataclass(frozen=True, slots=True)
class Job:
    """What to simulate; `coefficients` replaces the fitted ones."""

    config: Config
    trace: Trace
    coefficients: Coefficients | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds and trained response tokens of each RL step, [steps]."""

    step_s: Floats
    tokens: Floats

    def s_per_token(self) -> float:
        """Return the seconds of RL steps for each trained token."""
        return float(self.step_s.sum() / max(self.tokens.sum(), 1.0))


def simulate(job: Job) -> Timing:
    """Simulate one job."""
    cluster = Simulation(job.config, job.trace, job.coefficients).run()
    return Timing(
        np.array([row["end_s"] - row["start_s"] for row in cluster.log.step_rows]),
        np.array([row["response_tokens"] for row in cluster.log.schedule_rows], np.float64),
    )


def simulate_all(jobs: Sequence[Job], processes: int, progress: Callable[[], None]) -> list[Timing]:
    """Simulate all jobs; `progress` is called after each."""
    found = []
    if processes <= 1 or len(jobs) <= 1:
        for job in jobs:
            found.append(simulate(job))
            progress()
        return found
    # spawn: a fork would inherit threads of the libraries in mid-work
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=context) as pool:
        for timing in pool.map(simulate, jobs):
            found.append(timing)
            progress()
    return found
