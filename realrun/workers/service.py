"""A worker's process: builds its engines, keeps a scheduler a policy, and does what the driver orders.

RL training has a service of its own below this one (tlt.realrun.training.service).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from tlt.realrun.engine.factory import engine_factory, engine_name
from tlt.realrun.engine.protocol import Engine
from tlt.realrun.workers.machine import engine_info
from tlt.realrun.workers.messages import (
    Abandon,
    Answer,
    Close,
    Cut,
    Failed,
    Order,
    PolicySetup,
    Prepare,
    Ready,
    Reload,
    Reloaded,
    Report,
    Withdraw,
    Withdrawn,
    Work,
    decode_order,
    encode,
)
from tlt.realrun.workers.worker import Log, Worker
from tlt.traces.common.seeds import scheduler_rng
from tltsched.errors import InputError
from tltsched.event_log import RecordedWorker, Recorder, build_worker, read
from tltsched.events import WorkerEvent

PLAIN_OR_DRAFTING = ("plain", "drafting")  # engines, by whether speculation is configured


class Channel(Protocol):
    """The worker's end of the line to the driver."""

    def receive(self) -> bytes:
        """Return the next order; raises EOFError if the driver is gone."""

    def waiting(self) -> bool:
        """Return at once whether `receive` would not block."""

    def send(self, message: bytes) -> None:
        """Send an answer."""


class Service:
    """The engines and policies of one worker."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._engines: dict[str, Engine] = {}
        self._workers: dict[str, Worker] = {}
        self._lines: list[bytes] = []
        self._works = 0
        self._weights: Mapping[str, Any] = {}  # the policy's own, where they are to be loaded again

    def run(self) -> None:
        """Obey orders until Close."""
        while not isinstance(order := self._receive(), Close):
            self.obey(order)
        self.close()

    def obey(self, order: Order) -> None:
        """Carry out one order."""
        match order:
            case Prepare():
                self._prepare(order)
            case Work():
                self._work(order)
            case Withdraw():
                self._answer(Withdrawn(_since(order.origin_s), (), ()))  # all had finished
            case Reload():
                began_s = _since(order.origin_s)
                self._workers[order.policy].reload(order)
                now_s = _since(order.origin_s)
                self._answer(Reloaded(now_s, (("tail_idle", began_s), ("weight_sync", now_s))))
            case Abandon():
                pass  # there is nothing to drop
            case _:
                raise AssertionError(f"a replay has no such order: {order}")

    def close(self) -> None:
        """Free the engines."""
        for engine in self._engines.values():
            engine.close()

    def _receive(self) -> Order:
        order: Order = decode_order(self._channel.receive())
        return order

    def _answer(self, answer: Answer) -> None:
        self._channel.send(encode(answer))

    def _prepare(self, order: Prepare) -> None:
        start_s = perf_counter()
        make_engine = engine_factory(order.factory)
        for speculating in sorted({policy.speculating for policy in order.policies.values()}):
            engine = make_engine(order.config, speculating)
            engine.warm_up(order.batches, order.ks if speculating else (0,))
            self._engines[PLAIN_OR_DRAFTING[speculating]] = engine
            if order.config.phases.weight_sync and not self._weights:
                self._weights = engine.own_weights()
        for name, policy in order.policies.items():
            self._workers[name] = self._worker(
                order.worker, policy, self._engines[PLAIN_OR_DRAFTING[policy.speculating]]
            )
        kv_tokens, block_tokens = (
            min((int(getattr(engine, size, 0)) for engine in self._engines.values()), default=0)
            for size in ("kv_tokens", "block_tokens")
        )
        info = engine_info(engine_name(order.factory), order.config, kv_tokens, block_tokens)
        self._answer(Ready(info, perf_counter() - start_s))

    def _worker(self, index: int, policy: PolicySetup, engine: Engine) -> Worker:
        """Return a policy's worker, whose scheduler has seen what is on record."""
        scheduler = build_worker(policy.setup, index, partial(scheduler_rng, policy.setup.seed))
        for record in read(policy.past):
            if isinstance(record.body, WorkerEvent):
                scheduler.handle(record.body)
        recorded = RecordedWorker(scheduler, Recorder(self._lines.append))
        worker = Worker(recorded, engine, perf_counter, lambda _: None)
        worker.watched = policy.setup.cluster.schedule_spec().watches or policy.sessions
        worker.stays_open = policy.sessions
        worker.answer = self._answer
        worker.reload = lambda order: engine.load_policy(self._weights, order.version, order.kv_kept)
        return worker

    def _work(self, order: Work) -> None:
        self._works = 1
        worker = self._workers[order.policy]
        worker.clock = lambda: _since(order.origin_s)
        worker.report = lambda log: self._report(order, log)
        log = worker.rollout(order.step, order.requests, self._orders)
        self._report(order, log, over=True)

    def _orders(self, wait: bool) -> Sequence[Work | Cut]:
        """Return what the driver sent in the meantime; with `wait` there is an order at least."""
        orders: list[Work | Cut] = []
        while self._channel.waiting() or (wait and not orders):
            order = self._receive()
            if not isinstance(order, Work | Withdraw | Reload | Abandon):
                raise EOFError  # Close: nobody waits for this rollout
            self._works += isinstance(order, Work)
            orders.append(order)
        return orders

    def _report(self, order: Work, log: Log, over: bool = False) -> None:
        lines = tuple(self._lines)
        self._lines.clear()
        self._answer(
            Report(
                order.policy,
                order.step,
                _since(order.origin_s),
                tuple(log.finished),
                tuple(log.intervals),
                lines,
                tuple(log.engine_steps),
                over,
                self._works if over else 0,
                tuple(log.acceptance),
                log.context_tokens,
                tuple(log.found),
                log.resting,
            )
        )


def _since(origin_s: float) -> float:
    return perf_counter() - origin_s


MakeService = Callable[[Channel], Service]


def serve(channel: Channel, make_service: MakeService) -> None:
    """Run a service; an error of it goes to the driver as text, and then the worker ends."""
    try:
        make_service(channel).run()
    except EOFError:
        return
    except InputError as error:
        refused = (error.field, str(error.got), error.allowed, error.fix)
        channel.send(encode(Failed(str(error), refused)))
    except Exception:
        channel.send(encode(Failed(traceback.format_exc())))
