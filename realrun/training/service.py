"""A worker's process in RL training: one engine, one trainer, and one order at a time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter

import msgspec

from tlt.realrun.config import RealConfig
from tlt.realrun.engine.factory import engine_factory, engine_name
from tlt.realrun.training.trainer import Trainer
from tlt.realrun.workers.machine import engine_info
from tlt.realrun.workers.messages import (
    HeadStep,
    Order,
    Phase,
    PhaseDone,
    PrepareTraining,
    Probe,
    Publish,
    Ready,
    Save,
    Saved,
    Serve,
    StopTrain,
    Train,
    Trained,
    Work,
)
from tlt.realrun.workers.service import Service
from tltsched.drafter_choice import Serving


class TrainingService(Service):
    """The engine and the trainer of one worker."""

    def obey(self, order: Order) -> None:
        """Carry out one order."""
        match order:
            case PrepareTraining():
                self._prepare_training(order)
            case Work():
                self._trainer.begin_step(order.step)
                self._work(order)
            case Train():
                self._train(order)
            case Publish():
                self._publish(order)
            case Serve():
                self._serve(order)
            case Phase():
                self._phase(order)
            case Save():
                start_s = perf_counter()
                self._trainer.save(Path(order.folder))
                self._answer(Saved(perf_counter() - start_s))
            case _:
                super().obey(order)

    def close(self) -> None:
        """Free the engine and leave the group of workers."""
        super().close()
        self._trainer.close()

    def _prepare_training(self, order: PrepareTraining) -> None:
        start_s = perf_counter()
        config, policy = order.config.engine_settings(), order.setup
        drafters: dict[Serving, RealConfig] = {"head": config}
        if order.fallback:
            drafters["model_free"] = without_model(config)
        for drafter, settings in drafters.items():
            engine = engine_factory(order.factory)(settings, policy.speculating)
            engine.warm_up(order.batches, order.ks if policy.speculating else (0,))
            self._engines[drafter] = engine
        self._engine = self._engines[order.serving]
        self._trainer = Trainer(order)
        self._trainer.warm_up()
        self._trainer.serve(self._engine, self._engines["head"])
        worker = self._worker(order.worker, policy, self._engine)
        worker.keep = self._trainer.keep
        worker.drafter_version = order.drafter_version
        self._workers[order.policy] = worker
        self._rollout_worker = worker
        self._intervals: list[tuple[str, float]] = []
        self._facts: dict[str, float] = {}
        info = engine_info(engine_name(order.factory), config)
        self._answer(Ready(info, perf_counter() - start_s))

    def _serve(self, order: Serve) -> None:
        self._engine = self._engines[order.drafter]
        self._rollout_worker.engine = self._engine

    def _train(self, order: Train) -> None:
        """Use idle time until told to stop: log-probabilities that are due anyway, probes, then the head.

        Each round is short: whoever stops it waits for one at most.
        """
        trainer, clock = self._trainer, partial(_since, order.origin_s)
        trainer.begin_step(order.step)  # a worker without a request of its own trains as well
        intervals: list[tuple[str, float]] = [("drafter_activation", clock())]
        scored, steps = 0, list[HeadStep]()
        while not self._channel.waiting():
            if count := trainer.score_early():
                scored += count
                intervals.append(("logprob", clock()))
            elif trainer.probe():
                intervals.append(("drafter_training", clock()))
            elif step := trainer.train_head():
                steps.append(step)
                intervals.append(("drafter_training", clock()))
            else:
                break  # nothing of its own to learn from: rest until told
        stopped = self._receive()
        assert isinstance(stopped, StopTrain), stopped
        read_s = clock()
        intervals.append(("drafter_training" if steps else "tail_idle", read_s))
        trainer.settle()
        intervals.append(("drafter_stop", clock()))
        self._answer(
            Trained(order.step, clock(), tuple(intervals), tuple(steps), scored, stop_s=clock() - read_s)
        )

    def _publish(self, order: Publish) -> None:
        seconds = self._trainer.publish(order, self._engines["head"])
        self._rollout_worker.drafter_version = order.version
        self._facts["publish_s"] = seconds / self._trainer.collective.size  # they add up over workers
        self._intervals.append(("drafter_publish", _since(order.origin_s)))

    def _phase(self, order: Phase) -> None:
        trainer, rewards, probes = self._trainer, dict[int, float](), tuple[Probe, ...]()
        if order.phase == "reward":
            rewards = trainer.rewards()
        elif order.phase == "logprob":
            trainer.log_probs()
            chooses = len(self._engines) > 1  # by probes, which drafter serves
            probes = trainer.probes(needed=chooses)
        elif order.phase == "policy_update":
            self._facts |= trainer.update_policy(order)
        else:
            assert order.phase == "weight_sync", order.phase
            trainer.sync(self._engine)
        now_s = _since(order.origin_s)
        intervals, facts = (*self._intervals, (order.phase, now_s)), self._facts
        self._intervals, self._facts = [], {}
        self._answer(PhaseDone(order.phase, now_s, intervals, rewards, facts, probes))


def without_model(config: RealConfig) -> RealConfig:
    """Return the settings of an engine that drafts from the prompt, the response and, on CPU, the group."""
    drafter = msgspec.structs.replace(config.drafter, kind="ngram", folder="", random_weights=False)
    return msgspec.structs.replace(config, drafter=drafter)


def _since(origin_s: float) -> float:
    return perf_counter() - origin_s
