"""Trains a model by GRPO under each drafting policy in turn, always from the same weights and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tlt.realrun.messages import PolicySetup, PrepareTraining, Save, Saved
from tlt.realrun.replay.parts import EngineRecord, engine_record
from tlt.realrun.replay.plan import StepTimesOf
from tlt.realrun.replay.replay import LOGS, Progress, make_executor, restored_cluster, warm_batches
from tlt.realrun.training.checkpoints import HEADS, PolicyLog
from tlt.realrun.training.cluster import TrainingCluster
from tlt.realrun.training.config import TrainConfig
from tlt.realrun.training.plan import TrainingPolicy, plan_training
from tlt.realrun.training.policy.collective import free_port
from tlt.realrun.training.requests import RequestSource
from tlt.realrun.training.write_run import write_run
from tlt.realrun.workers.local import Executor, WorkerError, await_ready
from tlt.realrun.workers.service import MAKE_ENGINE
from tlt.traces.runs.runfolder import Comparison, write_json
from tltsched.drafter_choice import Serving
from tltsched.errors import InputError
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
    if config.workers.executor != "local":
        raise InputError("workers.executor", config.workers.executor, "local", "training runs on one host")
    plans = plan_training(config, policies, step_times)
    source = RequestSource(config)
    for plan in plans:
        log = PolicyLog(out / plan.folder, config, plan)
        if not log.complete:
            PolicyRun(config, plan, log, source, out, factory).run(progress)
    runs = tuple(plan.folder for plan in plans)
    write_json(out / "comparison.json", Comparison(name=config.name, runs=runs))


class PolicyRun:
    """One policy from where it stands to its last step."""

    def __init__(
        self, config: TrainConfig, policy: TrainingPolicy, log: PolicyLog, source: RequestSource, out: Path,
        factory: str,
    ) -> None:  # fmt: skip
        self.config = config
        self.policy = policy
        self.log = log
        self.source = source
        self.logs = out / LOGS
        self.factory = factory
        self.workers = tuple(range(config.workers.count))

    def run(self, progress: Progress) -> None:
        """Start the workers and run the steps that are missing."""
        progress(f"{self.policy.name}: starting engines and trainers")
        with make_executor(self.config.engine_settings(), self.workers, self.logs) as executor:
            engine = self._prepare(executor)
            cluster = self._cluster(executor)
            for step in range(len(self.log.parts), self.config.steps):
                self.log.keep(cluster.run_step(step, self.source.requests(step)))
                last = step + 1 == self.config.steps
                every = self.config.checkpoint_every
                if every and ((step + 1) % every == 0 or last):
                    self._save(executor)
                write_run(self.log, self.config, self.policy, engine)
                progress(f"{self.policy.name}: step {step + 1}")
        self.log.finish()

    def _prepare(self, executor: Executor) -> EngineRecord:
        saved, port = self.log.checkpoint(), free_port()
        ks = tuple(sorted({0, *self.config.drafter.ks}))
        settings = self.config.engine_settings()
        batches = warm_batches(settings)
        for worker in self.workers:
            setup = PolicySetup(self.policy.setup, self.policy.speculating, self.log.lines(worker))
            order = PrepareTraining(
                worker=worker, config=self.config, factory=self.factory, policy=self.policy.name, setup=setup,
                train_head=self.policy.trains_head, batches=batches, ks=ks, ranks=self.workers,
                host=HOST, port=port, checkpoint=str(saved or ""), drafter_version=self._serving()[0],
                fallback=self.policy.setup.cluster.fallback.enabled, serving=self._drafter(),
            )  # fmt: skip
            executor.send(worker, order)
        info, warm_up_s = await_ready(executor, len(self.workers))
        return engine_record(info, warm_up_s, settings)

    def _cluster(self, executor: Executor) -> TrainingCluster:
        """Return the policy's cluster; its scheduler has seen what happened in steps that are kept."""

        def make_scheduler(sink: Callable[[bytes], object]) -> RecordedCluster:
            return restored_cluster(self.policy.setup, self.log.records(CLUSTER), sink)

        return TrainingCluster(
            self.policy.name,
            make_scheduler,
            executor,
            self.workers,
            self.log.elapsed_s(),
            samples=self.config.rollout.samples,
            minibatches=self.config.update.minibatches,
            scale_advantages=self.config.update.scale_advantages,
            heads=str(self.log.folder / HEADS),
            serving=self._serving(),
            drafter=self._drafter(),
            most_drafts=max(self.config.drafter.ks),
        )

    def _drafter(self) -> Serving:
        """Return what the engines draft with as they start; the scheduler says when that changes."""
        return self.log.parts[-1].drafter_next if self.log.parts else "head"

    def _serving(self) -> tuple[int, int]:
        """Return the version and the age of the drafter that serves the next step; version -1: none."""
        if self.log.parts:
            return self.log.parts[-1].serves_next
        return (0, 0) if self.policy.speculating else (-1, 0)

    def _save(self, executor: Executor) -> None:
        """Have all workers write their part of a checkpoint; it counts once all are there."""
        place = self.log.new_checkpoint()
        for worker in self.workers:
            executor.send(worker, Save(str(place)))
        for _ in self.workers:
            worker, answer = executor.receive()
            if not isinstance(answer, Saved):
                raise WorkerError(f"worker {worker} could not write its part of a checkpoint: {answer}")
        self.log.commit()
