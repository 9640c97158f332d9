"""Many simulations at once, in processes of their own; results are in the order given."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from tlt.sim.simulation import Simulation
from tlt.traces.common.arrays import Floats
from tlt.traces.results.answer import LEFT_BEHIND


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds and trained response tokens of each RL step, [steps]."""

    step_s: Floats
    tokens: Floats
    left_share: float = 0.0  # responses put off or under way at the end, of those trained on

    @property
    def unsettled(self) -> bool:
        """Whether so much is left behind that the design cannot be ranked."""
        return self.left_share > LEFT_BEHIND

    def s_per_token(self) -> float:
        """Return the seconds of RL steps for each trained token."""
        return float(self.step_s.sum() / max(self.tokens.sum(), 1.0))


def simulate(simulation: Simulation) -> Timing:
    """Run one simulation."""
    cluster = simulation.run()
    rows = cluster.log.schedule_rows
    left = 0 if simulation.config.cluster.schedule_spec().overlaps else rows[-1]["carried_responses"]
    return Timing(
        np.array([row["end_s"] - row["start_s"] for row in cluster.log.step_rows]),
        np.array([row["response_tokens"] for row in rows], np.float64),
        left / max(sum(row["trained_responses"] for row in rows), 1),
    )


def simulate_all(
    simulations: Sequence[Simulation], processes: int, progress: Callable[[], None]
) -> list[Timing]:
    """Run all of them; `progress` is called after each."""
    timings = []
    if processes <= 1 or len(simulations) <= 1:
        for simulation in simulations:
            timings.append(simulate(simulation))
            progress()
        return timings
    # spawn: a fork would inherit threads of the libraries in mid-work
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(simulations)), mp_context=context) as pool:
        for timing in pool.map(simulate, simulations):
            timings.append(timing)
            progress()
    return timings
