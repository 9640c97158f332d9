"""Spot training: the drafter is trained on workers that wait for the longest responses.

Control law. In a step that is a multiple of `interval_steps`, training starts as soon as `min_idle_workers`
have nothing to decode. With `grow`, all idle workers take part then and later ones join as they fall idle, up
to `max_trainers`; without it, the first `min_idle_workers` train alone to the end of the rollout. A trainer
stops when the rollout has ended everywhere, or as soon as requests of a lost worker come to it.

    BUSY -> IDLE        its last request finished
    IDLE -> TRAINING    the law above
    TRAINING -> STOPPING    rollout over, or requests are waiting for it
    STOPPING -> IDLE or BUSY    it has stopped (BUSY: to decode what was waiting)
    IDLE -> BUSY        requests of a lost worker

A worker never decodes while it is TRAINING or STOPPING.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tltsched.errors import InputError


class SpotState(Enum):
    """What a living worker does during a rollout."""

    BUSY = "busy"
    IDLE = "idle"
    TRAINING = "training"
    STOPPING = "stopping"


class SpotConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When idle workers train the drafter, and which of them."""

    enabled: Annotated[
        bool, Meta(description="Whether the drafter is trained at all; the released TLT ships with this off.")
    ] = False
    min_idle_workers: Annotated[
        int,
        Meta(
            description="Idle workers that training waits for; 1 starts at once (the released TLT), "
            "more save short starts."
        ),
    ] = 1
    max_trainers: Annotated[
        int,
        Meta(
            description="Most workers that train at once; 0: no limit. A cap bounds what a late stop "
            "can delay."
        ),
    ] = 0
    grow: Annotated[
        bool,
        Meta(
            description="Whether workers that fall idle later join. The released TLT fixes the set when "
            "training starts."
        ),
    ] = True
    order: Annotated[
        Literal["longest_idle", "lowest_rank"],
        Meta(description="Who goes first when not all may train. The released TLT takes the lowest ranks."),
    ] = "longest_idle"
    interval_steps: Annotated[
        int,
        Meta(
            description="Train in every n-th RL step; the released TLT uses 10, since a good drafter "
            "serves many steps."
        ),
    ] = 1

    def __post_init__(self) -> None:
        for field, low in (("min_idle_workers", 1), ("max_trainers", 0), ("interval_steps", 1)):
            value = getattr(self, field)
            if value < low:
                raise InputError(field, value, f"{low} or more", "give a larger number")
        if 0 < self.max_trainers < self.min_idle_workers and not self.grow:
            raise InputError(
                "max_trainers",
                self.max_trainers,
                f"0 or at least min_idle_workers = {self.min_idle_workers}",
                "raise it, or let the set grow",
            )


class SpotTrainer:
    """The state of every living worker of a rollout, and who may start training now."""

    def __init__(self, workers: int, config: SpotConfig) -> None:
        self.states = dict.fromkeys(range(workers), SpotState.IDLE)
        self._in: dict[SpotState, set[int]] = {state: set() for state in SpotState}
        self._in[SpotState.IDLE].update(self.states)
        self._config = config
        self._idle_since_s = dict.fromkeys(range(workers), 0.0)
        self._due = False
        self._started = False

    def begin_step(self, step: int, busy: Collection[int], t_s: float) -> None:
        """Start a rollout in which the workers `busy` have requests and all others are idle."""
        for worker in self.states:
            self._become(worker, SpotState.BUSY if worker in busy else SpotState.IDLE)
            self._idle_since_s[worker] = t_s
        self._due = self._config.enabled and step % self._config.interval_steps == 0
        self._started = False

    def fall_idle(self, worker: int, t_s: float) -> None:
        """Note that a worker has nothing to decode since `t_s`."""
        self._become(worker, SpotState.IDLE)
        self._idle_since_s[worker] = t_s

    def become_busy(self, worker: int) -> None:
        """Note that a worker which does not train got requests."""
        assert self.states[worker] in (SpotState.IDLE, SpotState.BUSY)
        self._become(worker, SpotState.BUSY)

    def start(self) -> tuple[int, ...]:
        """Return the idle workers that start training now, marked as training."""
        if not self._due or (self._started and not self._config.grow):
            return ()
        idle = self._in_state(SpotState.IDLE)
        if not self._started and len(idle) < self._config.min_idle_workers:
            return ()
        if self._config.order == "longest_idle":
            idle.sort(key=lambda worker: (self._idle_since_s[worker], worker))
        limit = len(idle)
        if self._config.max_trainers:
            limit = max(0, self._config.max_trainers - len(self._in[SpotState.TRAINING]))
        if not self._config.grow:
            limit = self._config.min_idle_workers
        chosen = tuple(idle[:limit])
        for worker in chosen:
            self._become(worker, SpotState.TRAINING)
        self._started = self._started or bool(chosen)
        return chosen

    def stop(self, workers: Collection[int]) -> tuple[int, ...]:
        """Return those of `workers` that train, marked as stopping."""
        chosen = tuple(worker for worker in self._in_state(SpotState.TRAINING) if worker in workers)
        for worker in chosen:
            self._become(worker, SpotState.STOPPING)
        return chosen

    def trains(self, worker: int) -> bool:
        """Return whether a worker is in training or still leaving it."""
        return self.states[worker] in (SpotState.TRAINING, SpotState.STOPPING)

    @property
    def stopping(self) -> bool:
        """Whether a worker has still to leave training."""
        return bool(self._in[SpotState.STOPPING])

    def lose(self, worker: int) -> None:
        """Forget a worker that died."""
        self._in[self.states.pop(worker)].remove(worker)
        del self._idle_since_s[worker]

    def _become(self, worker: int, state: SpotState) -> None:
        self._in[self.states[worker]].remove(worker)
        self._in[state].add(worker)
        self.states[worker] = state

    def _in_state(self, state: SpotState) -> list[int]:
        """Return the workers in a state, lowest first."""
        return sorted(self._in[state])
