"""The scheduler in the driver: an RL step from its requests to its end.

Two rules of this file. It holds no clock: time is what the last event said. It holds no worker: a decision is
the return value of `handle`, and the driver carries it out.

Theory of operation. A step is a rollout, a hand-over and phases.

    WAITING    --StepBegan-->                                   ROLLOUT
    ROLLOUT    --the last request finished-->                   HANDOVER (or on at once, if nobody trains)
    HANDOVER   --the last trainer stopped-->                    PHASE
    PHASE      --PhaseEnded, phases left-->                     PHASE
    PHASE      --PhaseEnded, none left-->                       WAITING

A request is outstanding from its Assign to its RequestsFinished. If its worker is lost it goes to the living
worker that has the fewest; if that one trains, the request is held until the trainer has stopped. The weights
of a drafter that was trained are published right before the policy's own, when all engines stand still.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tltsched.commands import (
    Assign,
    BeginPhase,
    ClusterCommand,
    EndStep,
    PublishDrafter,
    StartTraining,
    StopTraining,
)
from tltsched.dispatch import DISPATCH
from tltsched.errors import InputError, ProtocolError
from tltsched.events import (
    ClusterEvent,
    PhaseEnded,
    RequestsFinished,
    StepBegan,
    TrainingStopped,
    WorkerLost,
)
from tltsched.spot import SpotConfig, SpotState, SpotTrainer

PUBLISH_BEFORE_PHASE = "weight_sync"
Commands = tuple[ClusterCommand, ...]


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a step is laid out over workers and time."""

    dispatch: Annotated[
        str, Meta(description="Which worker gets which request; a name in tltsched.dispatch.DISPATCH.")
    ] = "contiguous"
    phases: Annotated[
        tuple[str, ...],
        Meta(description="What follows the rollout, in order; all workers take part in each."),
    ] = ("reward", "logprob", "policy_update", "weight_sync")
    spot: Annotated[SpotConfig, Meta(description="Drafter training on idle workers.")] = SpotConfig()

    def __post_init__(self) -> None:
        if self.dispatch not in DISPATCH:
            raise InputError("dispatch", self.dispatch, ", ".join(sorted(DISPATCH)), "choose one of these")
        if len(set(self.phases)) != len(self.phases) or "" in self.phases:
            raise InputError("phases", self.phases, "names, each once", "correct the list")


class ClusterState(Enum):
    """Where the cluster is in a step."""

    WAITING = "waiting"
    ROLLOUT = "rollout"
    HANDOVER = "handover"
    PHASE = "phase"


class ClusterScheduler:
    """Turns the events of a cluster into commands; raises ProtocolError if they come out of order."""

    def __init__(self, workers: int, config: ClusterConfig) -> None:
        if workers < 1:
            raise InputError("workers", workers, "1 or more", "give the number of rollout workers")
        self.config = config
        self.state = ClusterState.WAITING
        self.step = -1
        self.drafter_version = 0
        self._t_s = 0.0
        self._phase = -1
        self._trained_tokens = 0
        self._spot = SpotTrainer(workers, config.spot)
        # Of each living worker: its outstanding requests in order, held ones too (a dict as an ordered set).
        self._outstanding: dict[int, dict[int, None]] = {worker: {} for worker in range(workers)}
        self._held: dict[int, list[int]] = {}
        self._unfinished = 0

    def handle(self, event: ClusterEvent) -> Commands:
        """Take one event in; return what the driver has to do now, in this order."""
        if not event.t_s >= self._t_s:  # written so that NaN is refused too
            raise ProtocolError(f"time went back from {self._t_s} s to {event.t_s} s: {event}")
        handler = _TRANSITIONS.get((self.state, type(event)))
        if handler is None:
            raise ProtocolError(f"the cluster is in state {self.state.value} and cannot take {event}")
        commands = handler(self, event)
        self._t_s = event.t_s
        return commands

    def _begin_step(self, event: StepBegan) -> Commands:
        ids = {request.id for request in event.requests}
        if event.step <= self.step or len(ids) != len(event.requests):
            raise ProtocolError(f"after step {self.step} comes a later one with each request once: {event}")
        living = tuple(self._outstanding)
        placement = DISPATCH[self.config.dispatch](event.requests, len(living))
        assigns = []
        for worker, requests in zip(living, placement, strict=True):
            if requests:
                placed = tuple(request.id for request in requests)
                self._outstanding[worker] = dict.fromkeys(placed)
                assigns.append(Assign(worker, placed))
        self.step, self._phase, self._unfinished = event.step, -1, len(ids)
        self._spot.begin_step(event.step, [assign.worker for assign in assigns], event.t_s)
        self.state = ClusterState.ROLLOUT
        return (*assigns, *self._go_on())

    def _finish(self, event: RequestsFinished) -> Commands:
        outstanding = self._living(event.worker, event)
        held = self._held.get(event.worker, ())
        for request in event.requests:
            if request not in outstanding or request in held:
                raise ProtocolError(f"worker {event.worker} does not generate request {request}: {event}")
            del outstanding[request]
            self._unfinished -= 1
        if event.requests and not outstanding:
            self._spot.fall_idle(event.worker, event.t_s)
        return self._go_on()

    def _stopped(self, event: TrainingStopped) -> Commands:
        self._living(event.worker, event)
        if self._spot.states[event.worker] is not SpotState.STOPPING or event.trained_tokens < 0:
            raise ProtocolError(f"worker {event.worker} was not told to stop training: {event}")
        self._trained_tokens += event.trained_tokens
        self._spot.fall_idle(event.worker, event.t_s)
        held = self._held.pop(event.worker, None)
        if held:
            self._spot.become_busy(event.worker)
            return (Assign(event.worker, tuple(held)), *self._go_on())
        return self._go_on()

    def _end_phase(self, event: PhaseEnded) -> Commands:
        if event.phase != self.config.phases[self._phase]:
            raise ProtocolError(f"phase {self.config.phases[self._phase]} is running: {event}")
        return self._next_phase()

    def _lose(self, event: WorkerLost) -> Commands:
        orphans = tuple(self._living(event.worker, event))
        if len(self._outstanding) == 1:
            raise ProtocolError(f"no worker is left: {event}")
        del self._outstanding[event.worker]
        self._held.pop(event.worker, None)
        self._spot.lose(event.worker)
        return (*self._reassign(orphans), *self._go_on())

    def _living(self, worker: int, event: ClusterEvent) -> dict[int, None]:
        """Return the outstanding requests of a worker that is alive."""
        outstanding = self._outstanding.get(worker)
        if outstanding is None:
            raise ProtocolError(f"worker {worker} does not exist or was lost: {event}")
        return outstanding

    def _reassign(self, orphans: tuple[int, ...]) -> Commands:
        """Deal requests out to the workers with the fewest, and rather not to one that trains."""
        dealt: dict[int, list[int]] = {}
        states = self._spot.states
        for request in orphans:
            worker = min(
                self._outstanding,
                key=lambda worker: (
                    len(self._outstanding[worker]),
                    states[worker] in (SpotState.TRAINING, SpotState.STOPPING),
                    worker,
                ),
            )
            self._outstanding[worker][request] = None
            dealt.setdefault(worker, []).append(request)
        stopped = self._spot.stop(dealt)
        commands: list[ClusterCommand] = [StopTraining(stopped)] if stopped else []
        for worker, requests in sorted(dealt.items()):
            if states[worker] is SpotState.STOPPING:
                self._held.setdefault(worker, []).extend(requests)
            else:
                self._spot.become_busy(worker)
                commands.append(Assign(worker, tuple(requests)))
        return tuple(commands)

    def _go_on(self) -> Commands:
        """Return what follows from who is busy, idle and training now."""
        if self.state is ClusterState.ROLLOUT and self._unfinished:
            started = self._spot.start()
            return (StartTraining(started),) if started else ()
        stopped: tuple[int, ...] = ()
        if self.state is ClusterState.ROLLOUT:
            stopped = self._spot.stop(self._outstanding)
            self.state = ClusterState.HANDOVER
        if self.state is ClusterState.HANDOVER and not self._spot.stopping:
            return self._next_phase()
        return (StopTraining(stopped),) if stopped else ()

    def _next_phase(self) -> Commands:
        self._phase += 1
        if self._phase == len(self.config.phases):
            self.state = ClusterState.WAITING
            return (*self._publish(), EndStep(self.step))
        self.state = ClusterState.PHASE
        phase = self.config.phases[self._phase]
        return (*(self._publish() if phase == PUBLISH_BEFORE_PHASE else ()), BeginPhase(phase))

    def _publish(self) -> Commands:
        """Return the publication of what was trained since the last one, if anything was."""
        if self._trained_tokens == 0:
            return ()
        self.drafter_version += 1
        trained_tokens, self._trained_tokens = self._trained_tokens, 0
        return (PublishDrafter(self.drafter_version, trained_tokens),)


# (state, event) -> what happens; anything else is a broken protocol.
_TRANSITIONS: dict[tuple[ClusterState, type], Callable[[ClusterScheduler, Any], Commands]] = {
    (ClusterState.WAITING, StepBegan): ClusterScheduler._begin_step,
    (ClusterState.ROLLOUT, RequestsFinished): ClusterScheduler._finish,
    (ClusterState.ROLLOUT, TrainingStopped): ClusterScheduler._stopped,
    (ClusterState.HANDOVER, TrainingStopped): ClusterScheduler._stopped,
    (ClusterState.PHASE, PhaseEnded): ClusterScheduler._end_phase,
    **{(state, WorkerLost): ClusterScheduler._lose for state in ClusterState},
}
