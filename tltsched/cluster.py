"""The scheduler in the driver: an RL step from its requests to its end.

Two rules of this file. It holds no clock: time is what the last event said. It holds no worker: a decision is
the return value of `handle`, and the driver carries it out.

Theory of operation. A step is a rollout, a hand-over and phases.

    WAITING    --StepBegan-->                                   ROLLOUT
    ROLLOUT    --the last request finished-->                   HANDOVER (or on at once, if nobody trains)
    HANDOVER   --the last trainer stopped-->                    PHASE
    PHASE      --PhaseEnded, phases left-->                     PHASE
    PHASE      --PhaseEnded, none left-->                       WAITING
    PHASE      --PhaseEnded, weight sync next, requests run-->  PAUSE, if the schedule stops them first
    PAUSE      --the last of those has left its worker-->       PHASE

What is generated where, and when a rollout is over, is up to the schedule (tltsched.schedules): this file
carries its moves out. A request that is put on a worker that trains is held until the trainer has stopped.
The weights of a drafter that was trained are published right before the policy's own, when all engines
stand still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from tltsched.cluster_config import ClusterConfig
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
from tltsched.drafter_choice import Fallback, Serving
from tltsched.errors import InputError
from tltsched.event_checks import (
    check_chunks,
    check_drafters,
    check_finished,
    check_generated,
    check_left,
    check_lost,
    check_phase,
    check_rewards,
    check_step,
    check_tools,
    check_turns,
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
    RewardsReady,
    StepBegan,
    ToolsReturned,
    TrainingStopped,
    TurnsEnded,
    WorkerLost,
)
from tltsched.schedules.base import Move, Moves
from tltsched.schedules.cluster_view import UNLIMITED, Capacity, ClusterView, assigns
from tltsched.sessions.tools import Tools
from tltsched.spot import SpotState, SpotTrainer

PUBLISH_BEFORE_PHASE = "weight_sync"
SCORING = "reward"
Commands = tuple[ClusterCommand, ...]
Leaving = RequestsFinished | RequestsWithdrawn | ChunksEnded | TurnsEnded


class ClusterState(StrEnum):
    """Where the cluster is in a step."""

    WAITING = "waiting"
    ROLLOUT = "rollout"
    HANDOVER = "handover"
    PHASE = "phase"
    PAUSE = "pause"


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
        routing = config.routing_config()
        self.cluster_view = ClusterView(workers, config.dispatch, capacity, self._spot.trains, routing)
        self.tools = Tools(config.tools_at_once)
        self._spec = config.schedule_spec()
        self.schedule = self._spec.build(self.cluster_view)
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
            case TurnsEnded():
                return self._left(event) or check_turns(event, self.cluster_view, self._spec.sessions)
            case ToolsReturned():
                return check_tools(event, self.tools.running)
            case StepBegan():
                return check_step(event, self.step, self.cluster_view, self.schedule)
            case TrainingStopped():
                told = self._spot.states.get(event.worker) is SpotState.STOPPING
                told = told and counts((event.trained_tokens,))
                return "" if told else f"did not tell worker {event.worker} to stop training so many tokens"
            case PhaseEnded():
                return check_phase(event, self._phases[self._phase])
            case RewardsReady():
                return check_rewards(event, self.cluster_view.unscored)
            case DraftersMeasured():
                return check_drafters(event)
            case WorkerLost():
                return check_lost(event, self.cluster_view)

    def _left(self, event: Leaving) -> str:
        held = [request for assign in self._held.get(event.worker, ()) for request in assign.requests]
        return check_left(event, self.cluster_view, held)

    def _check_withdrawn(self, event: RequestsWithdrawn) -> str:
        """The oldest order is answered, with all of it that has not finished since."""
        asked, placed = self._withdrawing.get(event.worker), self.cluster_view.placed[event.worker]
        if not asked or {request for request in asked[0] if request in placed} != set(event.requests):
            return f"did not tell worker {event.worker} to let go of these requests"
        return check_generated(event, self.cluster_view.generated)

    def _begin_step(self, event: StepBegan) -> Commands:
        view = self.cluster_view
        view.add(event.requests)
        view.away.welcome()
        if not self._spec.overlaps:
            view.flush()
        moves = self.schedule.begin(event)
        busy = {worker for worker in view.placed if not view.idle(worker)}
        busy.update(move.worker for move in moves if isinstance(move, Assign))
        self.step, self._phase = event.step, -1
        self._spot.begin_step(event.step, busy, event.t_s)
        self.state = ClusterState.ROLLOUT
        return (*self._serve(), *self._move(moves), *self._go_on())

    def _finish(self, event: RequestsFinished) -> Commands:
        self.cluster_view.take_off(event.worker, event.requests)
        self.cluster_view.finish(event.requests, self.schedule.scores_early)
        self.cluster_view.context_tokens[event.worker] = event.context_tokens
        return self._after(event, self.schedule.finished(event.worker, event.requests))

    def _score(self, event: RewardsReady) -> Commands:
        self.cluster_view.score(event.requests)
        return (*self._move(self.schedule.rewarded(event.requests)), *self._go_on())

    def _withdraw(self, event: RequestsWithdrawn) -> Commands:
        self._withdrawing[event.worker].popleft()
        return self._return(event)

    def _return(self, event: RequestsWithdrawn | ChunksEnded) -> Commands:
        """Take back requests that are not done."""
        self.cluster_view.take_off(event.worker, event.requests)
        self.cluster_view.generated.update(zip(event.requests, event.generated_tokens, strict=True))
        return self._after(event, self.schedule.returned(event.worker, event.requests))

    def _end_turns(self, event: TurnsEnded) -> Commands:
        """Let sessions go to their tools."""
        view = self.cluster_view
        recalled = [request in view.leaving for request in event.requests]
        view.take_off(event.worker, event.requests)
        for row in zip(event.requests, event.generated_tokens, recalled, strict=True):
            view.leave_for_tool(event.worker, *row)
        return (*self.tools.ask(event.requests), *self._after(event, ()))

    def _return_from_tools(self, event: ToolsReturned) -> Commands:
        """Finish sessions that have ended at their tools, and begin the next turns of the others."""
        view, ended = self.cluster_view, set(event.ended)
        calls = self.tools.over(event.requests)
        commands: list[ClusterCommand] = []
        turns: list[tuple[int, int]] = []
        # Whoever has ended comes first: it may end the rollout, so that no further turn begins.
        rows = sorted(
            zip(event.requests, event.observed_tokens, strict=True), key=lambda row: row[0] not in ended
        )
        for request, tokens in rows:
            worker, waited_for = view.return_from_tool(request, tokens)
            if request in ended:
                view.finish((request,), self.schedule.scores_early)
                commands += self._move(self.schedule.finished(worker, (request,)))
            elif waited_for:
                turns.append((request, worker))
            if worker in view.placed and view.idle(worker) and not self._spot.trains(worker):
                self._spot.fall_idle(worker, event.t_s)
        commands += self._move(assigns(view.route(turns)))
        return (*calls, *commands, *self._go_on())

    def _after(self, event: Leaving, moves: Moves) -> Commands:
        """Carry out what follows from requests that left their worker, which may be idle now."""
        if event.requests and self.cluster_view.idle(event.worker):
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
            if isinstance(move, Restart | Drop):
                commands += self.tools.over(move.requests)
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
        held = self._held.pop(event.worker, ())
        if held:
            self._spot.become_busy(event.worker)
        return (*held, *self._go_on())

    def _measured(self, event: DraftersMeasured) -> Commands:
        self._fallback.measured(event.head_length, event.model_free_length)
        return ()

    def _end_phase(self, event: PhaseEnded) -> Commands:
        if event.phase != PUBLISH_BEFORE_PHASE:
            return self._next_phase()
        if not self.schedule.keeps_kv:
            self.cluster_view.flush()
        return (*self._move(self.schedule.resume()), *self._next_phase())

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
        elif self.state is ClusterState.PAUSE:
            commands += self._begin_if_paused()
        return tuple(commands)

    def _phases_of_step(self) -> tuple[str, ...]:
        """Return the phases of the step whose rollout has ended: weights may stay where they are."""
        left_out = {PUBLISH_BEFORE_PHASE: not self.schedule.syncs(), SCORING: self.schedule.scores_early}
        return tuple(phase for phase in self.config.phases if not left_out.get(phase))

    def _next_phase(self) -> Commands:
        self._phase += 1
        if self._phase == len(self._phases):
            self.state = ClusterState.WAITING
            return (*self._publish(), *self._serve(), EndStep(self.step))
        phase = self._phases[self._phase]
        if phase == PUBLISH_BEFORE_PHASE:
            self.state = ClusterState.PAUSE
            return (*self._move(self.schedule.pause()), *self._begin_if_paused())
        self.state = ClusterState.PHASE
        return (BeginPhase(phase),)

    def _begin_if_paused(self) -> Commands:
        """Send the weights out, once the schedule has stopped what is to stop."""
        if any(self._withdrawing.values()) or not self.schedule.paused():
            return ()
        self.state = ClusterState.PHASE
        kept = self.schedule.keeps_kv
        return (*self._publish(), *self._serve(), BeginPhase(PUBLISH_BEFORE_PHASE, kv_kept=kept))

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
    **{(state, TurnsEnded): ClusterScheduler._end_turns for state in ClusterState},
    **{(state, ToolsReturned): ClusterScheduler._return_from_tools for state in ClusterState},
    **{(state, RewardsReady): ClusterScheduler._score for state in ClusterState},
    **{(state, WorkerLost): ClusterScheduler._lose for state in ClusterState},
}
