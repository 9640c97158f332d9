"""Trains a model by GRPO under each drafting policy in turn, always from the same weights and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tlt.realrun.driver.clock import PolicyClock
from tlt.realrun.driver.cluster import Cluster
from tlt.realrun.driver.engine_record import EngineRecord, engine_record
from tlt.realrun.driver.plan import PolicyPlan, StepTimesOf
from tlt.realrun.driver.requests import Fresh
from tlt.realrun.driver.start import LOGS, Progress, restored_cluster, warm_batches
from tlt.realrun.driver.step import Drafter
from tlt.realrun.driver.update import Learning
from tlt.realrun.engine.factory import MAKE_ENGINE
from tlt.realrun.training.checkpoints import HEADS, PolicyLog
from tlt.realrun.training.plan import plan_training
from tlt.realrun.training.policy.collective import free_port
from tlt.realrun.training.requests import RequestSource
from tlt.realrun.training.service import TrainingService
from tlt.realrun.training.write_run import mend, write_run
from tlt.realrun.training_config import TrainConfig
from tlt.realrun.workers.executor import GOES_ON, Executor, Lost, WorkerError, await_ready
from tlt.realrun.workers.local import LocalExecutor
from tlt.realrun.workers.messages import PolicySetup, PrepareTraining, Save, Saved
from tlt.traces.common.manifest import sealed
from tlt.traces.runs.runfolder import Comparison, write_json
from tltsched.event_log import CLUSTER, RecordedCluster

HOST = "127.0.0.1"


def train(
    config: TrainConfig,
    policies: Sequence[str],
    out: Path,
    progress: Progress,
    step_times: StepTimesOf | None = None,
    factory: str = MAKE_ENGINE,
) -> None:
    """Train under all policies and write the comparison folder `out`; the first policy is the baseline.

    A run that was stopped goes on from its last checkpoint. Raises InputError, and WorkerError if a worker
    dies.
    """
    plans = plan_training(config, policies, step_times)
    source = RequestSource(config)
    for plan in plans:
        log = PolicyLog(out / plan.folder, config, plan)
        if log.complete:
            mend(log, config, plan, source.kinds)
        else:
            PolicyRun(config, plan, log, source, out, factory).run(progress)
    runs = tuple(plan.folder for plan in plans)
    with sealed(out):
        write_json(out / "comparison.json", Comparison(name=config.name, runs=runs))


class PolicyRun:
    """One policy from where it stands to its last step."""

    def __init__(
        self, config: TrainConfig, plan: PolicyPlan, log: PolicyLog, source: RequestSource, out: Path,
        factory: str,
    ) -> None:  # fmt: skip
        self.config = config
        self.plan = plan
        self.log = log
        self.source = source
        self.logs = out / LOGS
        self.factory = factory
        self.workers = tuple(range(config.workers.count))

    def run(self, progress: Progress) -> None:
        """Start the workers and run the steps that are missing."""
        progress(f"{self.plan.name}: starting engines and trainers")
        settings = self.config.engine_settings()
        with LocalExecutor(settings, self.workers, self.logs, TrainingService) as executor:
            engine = self._prepare(executor)
            cluster = self._cluster(executor)
            for step in range(len(self.log.steps), self.config.steps):
                self.log.keep(cluster.run(step, Fresh(self.source.requests(step))))
                last = step + 1 == self.config.steps
                every = self.config.checkpoint_every
                if every and ((step + 1) % every == 0 or last):
                    self.save(executor)
                write_run(self.log, self.config, self.plan, engine, self.source.kinds)
                progress(f"{self.plan.name}: step {step + 1}")
        self.log.finish()

    def _prepare(self, executor: Executor) -> EngineRecord:
        saved, port = self.log.checkpoint(), free_port()
        ks = tuple(sorted({0, *self.config.drafter.ks}))
        settings = self.config.engine_settings()
        batches = warm_batches(settings)
        for worker in self.workers:
            setup = PolicySetup(self.plan.setup, self.plan.speculating, self.log.lines(worker))
            order = PrepareTraining(
                worker=worker, config=self.config, factory=self.factory, policy=self.plan.name, setup=setup,
                train_head=self.plan.trains_head, batches=batches, ks=ks, ranks=self.workers,
                host=HOST, port=port, checkpoint=str(saved or ""), drafter_version=self._drafter().version,
                fallback=self.plan.setup.cluster.fallback.enabled, serving=self._drafter().kind,
            )  # fmt: skip
            executor.send(worker, order)
        info, warm_up_s = await_ready(executor, len(self.workers))
        return engine_record(info, warm_up_s, settings)

    def _cluster(self, executor: Executor) -> Cluster:
        """Return the policy's cluster; its scheduler has seen what happened in steps that are kept."""

        def make_scheduler(sink: Callable[[bytes], object]) -> RecordedCluster:
            return restored_cluster(self.plan.setup, self.log.records(CLUSTER), sink)

        learning = Learning(
            minibatches=self.config.update.minibatches,
            scale_advantages=self.config.update.scale_advantages,
            heads=str(self.log.folder / HEADS),
            most_drafts=max(self.config.drafter.ks),
        )
        clock = PolicyClock(self.log.elapsed_s())
        return Cluster(
            self.plan.name, make_scheduler, executor, self.workers, clock, self._drafter(), learning
        )

    def _drafter(self) -> Drafter:
        """Return what drafts in the next step; the scheduler says when that changes."""
        if self.log.steps:
            last = self.log.steps[-1]
            return Drafter(*last.serves_next, last.drafter_next)
        return Drafter(0 if self.plan.speculating else -1)

    def save(self, executor: Executor) -> None:
        """Have all workers write their part of a checkpoint; it counts once all are there."""
        place = self.log.new_checkpoint()
        for worker in self.workers:
            executor.send(worker, Save(str(place)))
        for _ in self.workers:
            worker, answer = executor.receive()
            if not isinstance(answer, Saved):
                why = answer.told if isinstance(answer, Lost) else f"it answered {type(answer).__name__}"
                raise WorkerError(
                    f"worker {worker} could not write its part of a checkpoint: {why}\n{GOES_ON}"
                )
        self.log.commit()
