"""What a replay and RL training begin with: checks, batches to warm up, and schedulers that know the past."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tlt.realrun.config import RealConfig
from tltsched.event_log import Record, RecordedCluster, Recorder, SchedulerSetup, build_cluster
from tltsched.events import ClusterEvent

LOGS = "logs"
Progress = Callable[[str], None]
"""Is called with what was just done, once before the clock runs and once a step."""


def restored_cluster(
    setup: SchedulerSetup, records: Sequence[Record], sink: Callable[[bytes], object]
) -> RecordedCluster:
    """Return a policy's scheduler that has seen what is on record; what comes next goes to `sink`."""
    scheduler = build_cluster(setup)
    for record in records:
        if isinstance(record.body, ClusterEvent):
            scheduler.handle(record.body)
    return RecordedCluster(scheduler, Recorder(sink))


def warm_batches(config: RealConfig) -> tuple[int, ...]:
    """Return the batches to warm up: powers of two and the largest that a worker can meet."""
    largest = min(config.engine.max_running, config.workload.requests)
    sizes = [1 << power for power in range(largest.bit_length()) if 1 << power < largest]
    return (*sizes, largest)
