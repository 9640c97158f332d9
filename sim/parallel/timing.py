"""The seconds of many simulations; results are in the order given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tlt.sim.model.cluster import Cluster
from tlt.sim.parallel.executors import Executor
from tlt.sim.parallel.lengths import Lengths
from tlt.sim.simulation import Simulation
from tlt.traces.common.arrays import Floats
from tlt.traces.results.answer import LEFT_BEHIND


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds and trained response tokens of each RL step, [steps]."""

    step_s: Floats
    tokens: Floats
    left_share: float = 0.0  # responses put off or under way at the end, of those trained on
    rollout_s: Floats = field(default_factory=lambda: np.empty(0))  # up to the end of the rollout

    @property
    def unsettled(self) -> bool:
        """Whether so much is left behind that the design cannot be ranked."""
        return self.left_share > LEFT_BEHIND

    def s_per_token(self) -> float:
        """Return the seconds of RL steps for each trained token."""
        return float(self.step_s.sum() / max(self.tokens.sum(), 1.0))


@dataclass(frozen=True, slots=True)
class Job:
    """A simulation without its lengths, and these."""

    simulation: Simulation
    lengths: Lengths


def left_share(cluster: Cluster) -> float:
    """Return how many responses are put off or under way at the end, of those trained on.

    Where rollouts never stop it is 0: what is under way was paid for and is not counted.
    """
    rows = cluster.log.schedule_rows
    left = 0 if cluster.spec.overlaps else rows[-1]["carried_responses"]
    return float(left / max(sum(row["trained_responses"] for row in rows), 1))


def simulate(job: Job) -> Timing:
    """Run one simulation."""
    cluster = job.simulation.on(job.lengths.get()).run()
    steps, rows = cluster.log.step_rows, cluster.log.schedule_rows
    return Timing(
        step_s=np.array([row["end_s"] - row["start_s"] for row in steps]),
        tokens=np.array([row["response_tokens"] for row in rows], np.float64),
        left_share=left_share(cluster),
        rollout_s=np.array([row["rollout_end_s"] - row["start_s"] for row in steps]),
    )


def simulate_all(
    simulations: Sequence[Simulation], executor: Executor, progress: Callable[[], None] = lambda: None
) -> list[Timing]:
    """Run all of them; `progress` is called after each."""
    shared: dict[int, Lengths] = {}
    for simulation in simulations:
        if id(simulation.trace) not in shared:
            shared[id(simulation.trace)] = executor.share(simulation.trace)
    jobs = [Job(each.without_lengths(), shared[id(each.trace)]) for each in simulations]
    timings: dict[int, Timing] = {}
    for number, timing in executor.run(simulate, jobs):
        timings[number] = timing
        progress()
    return [timings[number] for number in range(len(jobs))]
