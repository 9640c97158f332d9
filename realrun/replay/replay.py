"""Replays recorded lengths on live engines: all policies on the same requests, in turns on the same workers.

The order of the policies rotates from rollout to rollout, so that a machine that drifts favours none. Each
policy has its own clock and schedulers; a worker that dies is lost to all policies from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tlt.realrun.config import RealConfig
from tlt.realrun.messages import PolicySetup, Prepare
from tlt.realrun.replay.cluster import Cluster, check_schedule
from tlt.realrun.replay.parts import EngineRecord, Rollout, RunLog
from tlt.realrun.replay.plan import PolicyPlan, StepTimesOf, plan_policies
from tlt.realrun.replay.workload import Workload
from tlt.realrun.replay.write_run import write_run
from tlt.realrun.workers.local import Executor, LocalExecutor, await_ready
from tlt.realrun.workers.service import MAKE_ENGINE
from tltsched.event_log import CLUSTER, Record, RecordedCluster, Recorder, SchedulerSetup, build_cluster
from tltsched.events import ClusterEvent

LOGS = "logs"
Progress = Callable[[str], None]
"""Is called with what was just done, once before the clock runs and once a rollout."""


def replay(
    config: RealConfig,
    policies: Sequence[str],
    out: Path,
    progress: Progress,
    step_times: StepTimesOf | None = None,
    factory: str = MAKE_ENGINE,
) -> None:
    """Run all rollouts of all policies and write the comparison folder `out`; the first is the baseline.

    A replay that was stopped goes on. `step_times` comes from a calibration; `factory` names the engine, as
    `module:function`. Raises InputError, and WorkerError if no worker is left.
    """
    plans = plan_policies(config, policies, step_times)
    workload = Workload(config)
    log = RunLog(out, config, plans, workload)
    if log.complete:
        return
    dead = {loss.worker for loss in log.losses()}
    workers = tuple(worker for worker in range(config.workers.count) if worker not in dead)
    with make_executor(config, workers, out / LOGS) as executor:
        Replay(config, plans, workload, log, executor, workers, factory).run(progress)


def make_executor(
    config: RealConfig, workers: tuple[int, ...], logs: Path
) -> AbstractContextManager[Executor]:
    """Return the executor that the configuration names; workers of this machine print to files in `logs`."""
    if config.workers.executor == "ray":
        from tlt.realrun.workers.ray import RayExecutor

        return RayExecutor(config, workers)
    return LocalExecutor(config, workers, logs)


class Replay:
    """One call of `replay`."""

    def __init__(
        self, config: RealConfig, plans: Sequence[PolicyPlan], workload: Workload, log: RunLog,
        executor: Executor, workers: tuple[int, ...], factory: str,
    ) -> None:  # fmt: skip
        self.config = config
        self.plans = plans
        self.workload = workload
        self.log = log
        self.executor = executor
        self.workers = workers
        self.factory = factory

    def run(self, progress: Progress) -> None:
        """Warm the engines up, then run what is missing."""
        engine = self._prepare()
        progress("warm-up")
        clusters = {plan.name: self._cluster(plan) for plan in self.plans}
        told = {plan.name: self.log.told(plan.name) for plan in self.plans}
        for step, requests in enumerate(self.workload.rollouts):
            for plan in (*self.plans[step % len(self.plans) :], *self.plans[: step % len(self.plans)]):
                if self.log.has(plan.name, step):
                    continue
                cluster = clusters[plan.name]
                for loss in self.log.losses():
                    if loss.worker not in told[plan.name]:
                        cluster.lose(loss)
                rollout = cluster.rollout(step, requests)
                self._check(rollout)
                self.log.keep(rollout)
                dead = {loss.worker for loss in self.log.losses()}
                told[plan.name] |= dead
                progress(f"{plan.name}, rollout {step + 1}")
            self._write(step + 1, engine)
        self.log.finish()

    def _prepare(self) -> EngineRecord:
        """Build and warm all engines; raises WorkerError with what a worker said if it cannot."""
        ks = tuple(sorted({0, *self.config.drafter.ks}))
        batches = warm_batches(self.config)
        for worker in self.workers:
            policies = {
                plan.name: PolicySetup(plan.setup, plan.speculating, self.log.lines(plan.name, worker))
                for plan in self.plans
            }
            self.executor.send(worker, Prepare(worker, self.config, self.factory, policies, batches, ks))
        return self.log.note_engine(*await_ready(self.executor, len(self.workers)))

    def _cluster(self, plan: PolicyPlan) -> Cluster:
        """Return the policy's cluster; its scheduler has seen what happened in rollouts that are kept."""

        def make_scheduler(sink: Callable[[bytes], object]) -> RecordedCluster:
            return restored_cluster(plan.setup, self.log.records(plan.name, CLUSTER), sink)

        return Cluster(plan.name, make_scheduler, self.executor, self.workers, self.log.elapsed_s(plan.name))

    def _check(self, rollout: Rollout) -> None:
        """Make sure that each request was generated once, as long as asked."""
        asked = {request.id: request.response_tokens for request in self.workload.rollouts[rollout.step]}
        done = {response.request: response.tokens for response in rollout.responses}
        if len(rollout.responses) != len(done) or done != asked:
            raise RuntimeError(f"rollout {rollout.step} of {rollout.policy} lost, repeated or cut a response")

    def _write(self, rounds: int, engine: EngineRecord) -> None:
        for plan in self.plans:
            kept = self.log.kept(plan.name, rounds)
            write_run(
                self.log.out / plan.folder, self.config, plan, kept, self.log.losses(), self.workload, engine
            )
        self.log.compare()


def warm_batches(config: RealConfig) -> tuple[int, ...]:
    """Return the batches to warm up: powers of two and the largest that a worker can meet."""
    largest = min(config.engine.max_running, config.workload.requests)
    sizes = [1 << power for power in range(largest.bit_length()) if 1 << power < largest]
    return (*sizes, largest)


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
