"""The scheduler in the driver: an RL step from its requests to its end.

Two rules of this file. It holds no clock: time is what the last event said. It holds no worker: a decision is
the return value of `handle`, and the driver carries it out.

Theory of operation. A step is a rollout, a hand-over and phases.

    WAITING    --StepBegan-->                                   ROLLOUT
    ROLLOUT    --the last request finished-->                   HANDOVER (or on at once, if nobody trains)
    HANDOVER   --the last trainer stopped-->                    PHASE
    PHASE      --PhaseEnded, phases left-->                     PHASE
    PHASE      --PhaseEnded, none left-->                       WAITING

What is generated where, and when a rollout is over, is up to the schedule (tltsched.schedules): this file
carries its moves out. A request that is put on a worker that trains is held until the trainer has stopped.
The weights of a drafter that was trained are published right before the policy's own, when all engines
stand still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tltsched.commands import (
    Assign,
    BeginPhase,
    ClusterCommand,
    Drop,
    EndStep,
    PublishDrafter,
    Restart,
    ServeDrafter,
    StartTraining,
    StopTraining,
    TrainOn,
    Withdraw,
)
from tltsched.dispatch import DISPATCH
from tltsched.drafter_choice import Fallback, FallbackConfig, Serving
from tltsched.errors import InputError
from tltsched.event_checks import (
    check_chunks,
    check_drafters,
    check_finished,
    check_generated,
    check_left,
    check_step,
    counts,
    refusal,
    require,
)
from tltsched.events import (
    ChunksEnded,
    ClusterEvent,
    DraftersMeasured,
    PhaseEnded,
    RequestsFinished,
    RequestsWithdrawn,
    StepBegan,
    TrainingStopped,
    WorkerLost,
)
from tltsched.schedules import ScheduleSpec, parse_schedule
from tltsched.schedules.base import Move, Moves
from tltsched.schedules.cluster_view import UNLIMITED, Capacity, ClusterView
from tltsched.spot import SpotConfig, SpotState, SpotTrainer

PUBLISH_BEFORE_PHASE = "weight_sync"
Commands = tuple[ClusterCommand, ...]


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a step is laid out over workers and time."""

    dispatch: Annotated[
        str, Meta(description="Which worker gets which request; a name in tltsched.dispatch.DISPATCH.")
    ] = "contiguous"
    schedule: Annotated[
        str | ScheduleSpec,
        Meta(
            description="Which requests are generated when; a name in tltsched.schedules.PRESETS, or a table "
            "with `kind`."
        ),
    ] = "synchronous"
    phases: Annotated[
        tuple[str, ...],
        Meta(description="What follows the rollout, in order; all workers take part in each."),
    ] = ("reward", "logprob", "policy_update", "weight_sync")
    spot: Annotated[SpotConfig, Meta(description="Drafter training on idle workers.")] = SpotConfig()
    fallback: Annotated[
        FallbackConfig, Meta(description="Drafts without a model until the head is better (live engines).")
    ] = FallbackConfig()

    def __post_init__(self) -> None:
        if self.dispatch not in DISPATCH:
            raise InputError("dispatch", self.dispatch, ", ".join(sorted(DISPATCH)), "choose one of these")
        spec = self.schedule_spec()
        if spec.overlaps and self.spot.enabled:
            raise InputError(
                "spot.enabled", True, "false under a schedule whose rollouts never end",
                "no worker falls idle: leave drafter training out",
            )  # fmt: skip
        if len(set(self.phases)) != len(self.phases) or "" in self.phases:
            raise InputError("phases", self.phases, "names, each once", "correct the list")

    def schedule_spec(self) -> ScheduleSpec:
        """Return the settings of the schedule; raises InputError for an unknown name."""
        return parse_schedule(self.schedule) if isinstance(self.schedule, str) else self.schedule

    def knows_lengths(self) -> bool:
        """Return whether requests are placed by lengths known in advance, which nobody has."""
        return self.schedule_spec().knows_lengths or self.dispatch == "longest_first"


class ClusterState(Enum):
    """Where the cluster is in a step."""

    WAITING = "waiting"
    ROLLOUT = "rollout"
    HANDOVER = "handover"
    PHASE = "phase"


class ClusterScheduler:
    """Turns the events of a cluster into commands; raises ProtocolError if they come out of order."""

    def __init__(self, workers: int, config: ClusterConfig, capacity: Capacity = UNLIMITED) -> None:
        if workers < 1:
            raise InputError("workers", workers, "1 or more", "give the number of rollout workers")
        self.config = config
        self.who = "the cluster"
        self.state = ClusterState.WAITING
        self.step = -1
        self.drafter_version = 0
        self._t_s = 0.0
        self._phase = -1
        self._phases = config.phases  # of this step
        self._trained_tokens = 0
        self._fallback = Fallback(config.fallback)
        self._told: Serving = "head"  # what serves unless the driver was told otherwise
        self._spot = SpotTrainer(workers, config.spot)
        self.cluster_view = ClusterView(workers, config.dispatch, capacity, self._spot.trains)
        self.schedule = config.schedule_spec().build(self.cluster_view)
        self._held: dict[int, list[Assign]] = {}
        # Of each worker: what it was told to let go of and has not answered for, the oldest order first.
        self._withdrawing: dict[int, deque[tuple[int, ...]]] = {}

    def handle(self, event: ClusterEvent) -> Commands:
        """Take one event in; return what the driver has to do now, in this order."""
        handler = _TRANSITIONS.get((self.state, type(event)))
        if handler is None:
            raise refusal(self.who, f"it is in state {self.state.value} and cannot take this", event)
        require(self, ClusterScheduler._check, event, self._t_s)
        commands = handler(self, event)
        self._t_s = event.t_s
        return commands

    def _check(self, event: ClusterEvent) -> str:
        """Return what is wrong with an event, "" if nothing is."""
        match event:
            case RequestsFinished():
                return self._left(event) or check_finished(event)
            case ChunksEnded():
                return self._left(event) or check_chunks(event, self.cluster_view, self.schedule.chunk_tokens)
            case RequestsWithdrawn():
                return self._left(event) or self._check_withdrawn(event)
            case StepBegan():
                return check_step(event, self.step, self.cluster_view, self.schedule)
            case TrainingStopped():
                told = self._spot.states.get(event.worker) is SpotState.STOPPING
                told = told and counts((event.trained_tokens,))
                return "" if told else f"did not tell worker {event.worker} to stop training so many tokens"
            case PhaseEnded():
                phase = self._phases[self._phase]
                return "" if event.phase == phase else f"is in phase {phase}"
            case DraftersMeasured():
                return check_drafters(event)
            case WorkerLost():
                if event.worker not in self.cluster_view.placed:
                    return f"has no worker {event.worker}, or lost it"
                return "" if len(self.cluster_view.placed) > 1 else "would have no worker left"

    def _left(self, event: RequestsFinished | RequestsWithdrawn | ChunksEnded) -> str:
        held = [request for assign in self._held.get(event.worker, ()) for request in assign.requests]
        return check_left(event, self.cluster_view, held)

    def _check_withdrawn(self, event: RequestsWithdrawn) -> str:
        """The oldest order is answered, with all of it that has not finished since."""
        asked, placed = self._withdrawing.get(event.worker), self.cluster_view.placed[event.worker]
        if not asked or {request for request in asked[0] if request in placed} != set(event.requests):
            return f"did not tell worker {event.worker} to let go of these requests"
        return check_generated(event, self.cluster_view.generated)

    def _begin_step(self, event: StepBegan) -> Commands:
        self.cluster_view.add(event.requests)
        moves = self.schedule.begin(event)
        busy = {worker for worker, placed in self.cluster_view.placed.items() if placed}
        busy.update(move.worker for move in moves if isinstance(move, Assign))
        self.step, self._phase = event.step, -1
        self._spot.begin_step(event.step, busy, event.t_s)
        self.state = ClusterState.ROLLOUT
        return (*self._serve(), *self._move(moves), *self._go_on())

    def _finish(self, event: RequestsFinished) -> Commands:
        self._take_off(event, event.requests)
        self.cluster_view.finished.update(dict.fromkeys(event.requests))
        self.cluster_view.context_tokens[event.worker] = event.context_tokens
        return self._after(event, self.schedule.finished(event.worker, event.requests))

    def _withdraw(self, event: RequestsWithdrawn) -> Commands:
        self._withdrawing[event.worker].popleft()
        return self._return(event)

    def _return(self, event: RequestsWithdrawn | ChunksEnded) -> Commands:
        """Take back requests that are not done."""
        self._take_off(event, event.requests)
        self.cluster_view.generated.update(zip(event.requests, event.generated_tokens, strict=True))
        return self._after(event, self.schedule.returned(event.worker, event.requests))

    def _take_off(
        self, event: RequestsFinished | RequestsWithdrawn | ChunksEnded, requests: tuple[int, ...]
    ) -> None:
        """Note that requests have left their worker."""
        self.cluster_view.take_off(event.worker, requests)

    def _after(self, event: RequestsFinished | RequestsWithdrawn | ChunksEnded, moves: Moves) -> Commands:
        """Carry out what follows from requests that left their worker, which may be idle now."""
        if event.requests and not self.cluster_view.placed[event.worker]:
            self._spot.fall_idle(event.worker, event.t_s)
        return (*self._move(moves), *self._go_on())

    def _move(self, moves: Moves) -> Commands:
        """Carry out what the schedule decided; trainers are stopped before they get requests."""
        if not moves:  # as after most finishes
            return ()
        stopped = self._spot.stop([move.worker for move in moves if isinstance(move, Assign)])
        commands: list[ClusterCommand] = [StopTraining(stopped)] if stopped else []
        for each in moves:
            move: Move = each
            match move:
                case Assign():
                    self.cluster_view.place(move.worker, move.requests)
                    if self._spot.states[move.worker] is SpotState.STOPPING:
                        self._held.setdefault(move.worker, []).append(move)
                        continue
                    self._spot.become_busy(move.worker)
                case Withdraw():
                    held = self._release(move)
                    if held:
                        commands += self._move(self.schedule.returned(move.worker, held))
                        move = Withdraw(move.worker, tuple(r for r in move.requests if r not in held))
                    if not move.requests:
                        continue
                    self._withdrawing.setdefault(move.worker, deque()).append(move.requests)
                    self.cluster_view.leaving.update(dict.fromkeys(move.requests))
                case Restart():
                    self.cluster_view.restart(move.requests)
                case Drop() | TrainOn():
                    self.cluster_view.forget(move.requests)
            commands.append(move)
        return tuple(commands)

    def _release(self, order: Withdraw) -> tuple[int, ...]:
        """Take what is held for a trainer off it at once; returns those requests."""
        kept, released = [], []
        for assign in self._held.pop(order.worker, []):
            chosen = [request for request in assign.requests if request in order.requests]
            rest = tuple(request for request in assign.requests if request not in chosen)
            released += chosen
            kept += [msgspec.structs.replace(assign, requests=rest)] if rest else []
        if kept:
            self._held[order.worker] = kept
        self.cluster_view.take_off(order.worker, released)
        return tuple(released)

    def _stopped(self, event: TrainingStopped) -> Commands:
        self._trained_tokens += event.trained_tokens
        self._spot.fall_idle(event.worker, event.t_s)
        held = self._held.pop(event.worker, None)
        if held:
            self._spot.become_busy(event.worker)
            return (*held, *self._go_on())
        return self._go_on()

    def _measured(self, event: DraftersMeasured) -> Commands:
        self._fallback.measured(event.head_length, event.model_free_length)
        return ()

    def _end_phase(self, event: PhaseEnded) -> Commands:  # noqa: ARG002 (the table passes the event)
        return self._next_phase()

    def _lose(self, event: WorkerLost) -> Commands:
        orphans = tuple(self.cluster_view.placed[event.worker])
        self.cluster_view.lose(event.worker)
        self._held.pop(event.worker, None)
        self._withdrawing.pop(event.worker, None)
        self._spot.lose(event.worker)
        return (*self._move(self.schedule.orphaned(orphans)), *self._go_on())

    def _go_on(self) -> Commands:
        """Return what follows from who is busy, idle and training now."""
        commands: list[ClusterCommand] = []
        if self.state is ClusterState.ROLLOUT:
            over = self.schedule.over()
            # An empty answer to a Withdraw may be due after the last finish.
            if not over or any(self._withdrawing.values()):
                started = () if over or self.schedule.closing else self._spot.start()
                return (StartTraining(started),) if started else ()
            moves = self.schedule.end()
            self._phases = self._phases_of_step()
            commands += self._move(moves)
            if not any(isinstance(move, TrainOn) for move in moves):
                self.cluster_view.forget(tuple(self.cluster_view.finished))
            stopped = self._spot.stop(self.cluster_view.placed)
            commands += [StopTraining(stopped)] if stopped else []
            self.state = ClusterState.HANDOVER
        if self.state is ClusterState.HANDOVER and not self._spot.stopping:
            commands += self._next_phase()
        return tuple(commands)

    def _phases_of_step(self) -> tuple[str, ...]:
        """Return the phases of the step whose rollout has ended: weights may stay where they are."""
        if self.schedule.syncs():
            return self.config.phases
        return tuple(phase for phase in self.config.phases if phase != PUBLISH_BEFORE_PHASE)

    def _next_phase(self) -> Commands:
        self._phase += 1
        if self._phase == len(self._phases):
            self.state = ClusterState.WAITING
            return (*self._publish(), *self._serve(), EndStep(self.step))
        self.state = ClusterState.PHASE
        phase = self._phases[self._phase]
        new = (*self._publish(), *self._serve()) if phase == PUBLISH_BEFORE_PHASE else ()
        return (*new, BeginPhase(phase))

    def _serve(self) -> Commands:
        """Return the order to draft with another drafter, if another one is chosen."""
        chosen = self._fallback.choose()
        if chosen == self._told:
            return ()
        self._told = chosen
        return (ServeDrafter(chosen),)

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
    (ClusterState.ROLLOUT, TrainingStopped): ClusterScheduler._stopped,
    (ClusterState.HANDOVER, TrainingStopped): ClusterScheduler._stopped,
    (ClusterState.PHASE, DraftersMeasured): ClusterScheduler._measured,
    (ClusterState.PHASE, PhaseEnded): ClusterScheduler._end_phase,
    **{(state, RequestsFinished): ClusterScheduler._finish for state in ClusterState},
    **{(state, RequestsWithdrawn): ClusterScheduler._withdraw for state in ClusterState},
    **{(state, ChunksEnded): ClusterScheduler._return for state in ClusterState},
    **{(state, WorkerLost): ClusterScheduler._lose for state in ClusterState},
}
