"""Replays recorded lengths on live engines: all policies on the same requests, in turns on the same workers.

The order of the policies rotates from rollout to rollout, so that a machine that drifts favours none. Each
policy has its own clock and schedulers; a worker that dies is lost to all policies from then on. A policy
whose schedule never stops its rollouts runs all of them in one turn, and begins anew if it was stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tlt.realrun.config import RealConfig
from tlt.realrun.driver.clock import PolicyClock
from tlt.realrun.driver.cluster import Cluster
from tlt.realrun.driver.engine_record import EngineRecord
from tlt.realrun.driver.plan import PolicyPlan, StepTimesOf, plan_policies
from tlt.realrun.driver.start import LOGS, Progress, restored_cluster, warm_batches
from tlt.realrun.driver.step import Drafter, LiveStep
from tlt.realrun.engine.factory import MAKE_ENGINE
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.replay.parts import RunLog
from tlt.realrun.replay.source import Source, StepSource, StreamSource
from tlt.realrun.replay.workload import Workload, workload_of
from tlt.realrun.replay.write_run import write_run
from tlt.realrun.workers.executor import Executor, await_ready
from tlt.realrun.workers.local import LocalExecutor
from tlt.realrun.workers.messages import PolicySetup, Prepare
from tlt.realrun.workers.ray_executor import RayExecutor
from tlt.realrun.workers.split import SplitExecutor
from tltsched.errors import InputError
from tltsched.event_log import CLUSTER, RecordedCluster
from tltsched.events import StepBegan


def replay(
    config: RealConfig,
    policies: Sequence[str],
    out: Path,
    progress: Progress,
    step_times: StepTimesOf | None = None,
    factory: str = MAKE_ENGINE,
    on_ray: bool = False,
) -> None:
    """Run all rollouts of all policies and write the comparison folder `out`; the first is the baseline.

    A replay that was stopped goes on. `step_times` comes from a calibration; `factory` names the engine, as
    `module:function`; `on_ray` puts the workers on a Ray cluster instead of this machine. Raises InputError,
    and WorkerError if no worker is left.
    """
    plans = plan_policies(config, policies, step_times)
    workload = workload_of(config)
    log = RunLog(out, config, plans, workload)
    if log.complete:
        log.mend(workload)
        return
    for plan in plans:
        if plan.spec.overlaps and len(log.kept(plan.name)) < len(workload.rollouts):
            log.discard(plan.name)  # a write was interrupted: its rollouts are one turn
    dead = {loss.worker for loss in log.losses()}
    workers = tuple(worker for worker in range(config.workers.count) if worker not in dead)
    kinds = {plan.speculating for plan in plans}
    with _executor(config, workers, out / LOGS, kinds, on_ray) as executor:
        Replay(config, plans, workload, log, executor, workers, factory).run(progress)


def _executor(
    config: RealConfig, workers: tuple[int, ...], logs: Path, kinds: set[bool], on_ray: bool
) -> LocalExecutor | SplitExecutor | RayExecutor:
    """Return the processes of the workers; `kinds` says which engines are needed, by whether they draft."""
    if on_ray and config.engine.graphs == "stock":
        raise InputError("engine.graphs", "stock", "every_k with --executor ray", "leave one of them out")
    if on_ray:
        return RayExecutor(config, workers, logs)
    if config.engine.graphs == "stock":
        return SplitExecutor(config, workers, logs, kinds)
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
        self.sources: dict[str, Source] = {plan.name: self._source(plan) for plan in plans}

    def _source(self, plan: PolicyPlan) -> Source:
        if plan.spec.keeps_order:
            return StepSource(self.workload)
        return StreamSource(self.workload, plan.setup.seed, self.config.workers.count)

    def run(self, progress: Progress) -> None:
        """Warm the engines up, then run what is missing."""
        engine = self._prepare()
        progress("warm-up")
        clusters = {plan.name: self._cluster(plan) for plan in self.plans}
        known = {plan.name: self.log.known_deaths(plan.name) for plan in self.plans}
        for step in range(len(self.workload.rollouts)):
            for plan in (*self.plans[step % len(self.plans) :], *self.plans[: step % len(self.plans)]):
                if self.log.has(plan.name, step):
                    continue
                cluster = clusters[plan.name]
                for loss in self.log.losses():
                    if loss.worker not in known[plan.name]:
                        cluster.lose(loss.worker)
                for rollout in self._run(plan, cluster, step, progress):
                    self._check(plan, rollout)
                    self.log.keep(rollout)
                dead = {loss.worker for loss in self.log.losses()}
                known[plan.name] |= dead
            self._write(step + 1, engine)
        self.log.finish()

    def _run(self, plan: PolicyPlan, cluster: Cluster, step: int, progress: Progress) -> Sequence[LiveStep]:
        """Run one rollout, or all where they do not stop in between; returns what they have seen."""
        source = self.sources[plan.name]

        def told(done: int) -> None:
            progress(f"{plan.name}, rollout {done + 1}")

        if plan.spec.overlaps:
            return cluster.run_through(range(len(self.workload.rollouts)), source.draw, told)
        rollout = cluster.run(step, source.draw(step, cluster.scheduler.schedule))
        told(step)
        return (rollout,)

    def _prepare(self) -> EngineRecord:
        """Build and warm all engines; raises WorkerError with what a worker said if it cannot."""
        ks = tuple(sorted({0, *self.config.drafter.ks}))
        batches = warm_batches(self.config)
        for worker in self.workers:
            policies = {
                plan.name: PolicySetup(
                    plan.setup,
                    plan.speculating,
                    self.log.lines(plan.name, worker),
                    sessions=bool(self.config.sessions.file),
                )
                for plan in self.plans
            }
            self.executor.send(worker, Prepare(worker, self.config, self.factory, policies, batches, ks))
        return self.log.note_engine(*await_ready(self.executor, len(self.workers)))

    def _cluster(self, plan: PolicyPlan) -> Cluster:
        """Return the policy's cluster; its scheduler has seen what happened in rollouts that are kept."""

        def make_scheduler(sink: Callable[[bytes], object]) -> RecordedCluster:
            return restored_cluster(plan.setup, records, sink)

        records, kept = self.log.records(plan.name, CLUSTER), self.log.kept(plan.name)
        clock, drafter = PolicyClock(self.log.elapsed_s(plan.name)), Drafter(0 if plan.speculating else -1)
        generating = plan.setup.workers  # the others have a line in the books alone
        cluster = Cluster(
            plan.name, make_scheduler, self.executor,
            [worker for worker in self.workers if worker < generating], clock, drafter,
            waits_s=self.config.phases.waits_s(), trainers=range(generating, self.config.workers.count),
        )  # fmt: skip
        source = self.sources[plan.name]
        source.again(record.body for record in records if isinstance(record.body, StepBegan))
        carried = kept[-1].carried if kept else []
        cluster.requests.add([source.asked[each.request] for each in carried], carried)
        return cluster

    def _check(self, plan: PolicyPlan, rollout: LiveStep) -> None:
        """Make sure that each request was generated once, as long as asked or, of its own length, at most."""
        asked = self.sources[plan.name].asked
        done = {response.request: response.tokens for response in rollout.responses}
        fits = (done.keys() == asked.keys() or not plan.spec.keeps_order) and all(
            _fits(asked[each], done[each]) for each in done
        )
        if len(rollout.responses) != len(done) or not fits:
            raise RuntimeError(f"rollout {rollout.step} of {rollout.policy} lost, repeated or cut a response")

    def _write(self, rounds: int, engine: EngineRecord) -> None:
        for plan in self.plans:
            kept = self.log.kept(plan.name, rounds)
            source = self.sources[plan.name]
            write_run(
                self.log.out / plan.folder, self.config, plan, kept, self.log.losses(), self.workload,
                source.origin, engine,
            )  # fmt: skip
        self.log.compare()


def _fits(request: EngineRequest, tokens: int) -> bool:
    return tokens == request.response_tokens or (not request.forced and 0 < tokens < request.response_tokens)
