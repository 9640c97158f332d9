"""What a replay and RL training begin with: checks, batches to warm up, and schedulers that know the past."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tlt.realrun.config import RealConfig
from tltsched.cluster_config import ClusterConfig
from tltsched.errors import InputError
from tltsched.event_log import Record, RecordedCluster, Recorder, SchedulerSetup, build_cluster
from tltsched.events import ClusterEvent
from tltsched.schedules import schedule_name

LOGS = "logs"
Progress = Callable[[str], None]
"""Is called with what was just done, once before the clock runs and once a step."""


def check_schedule(config: ClusterConfig) -> None:
    """Raise InputError for a rollout schedule that needs more of live workers than a step's requests."""
    spec = config.schedule_spec()
    if spec.watches or spec.withdraws or spec.knows_lengths or not spec.keeps_order:
        raise InputError(
            "cluster.schedule", schedule_name(spec), "synchronous",
            "live workers take requests when a step begins and let none go: simulate this schedule instead",
        )  # fmt: skip


def restored_cluster(
    setup: SchedulerSetup, records: Sequence[Record], sink: Callable[[bytes], object]
) -> RecordedCluster:
    """Return a policy's scheduler that has seen what is on record; what comes next goes to `sink`."""
    check_schedule(setup.cluster)
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
