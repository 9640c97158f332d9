"""Asynchronous rollouts under a bound: AReaL (arXiv 2505.24298), ROLL Flash, verl's fully_async, PipelineRL,
NeMo-RL's and verl's one-step-off, prime-rl and TRL, as settings of one rule.

Rollout workers never stop and other GPUs train. A step begins when the weights of the last one are out; its
batch is the first groups that are complete. Fresh groups are admitted while, if trained in the order of
admission, none would be staler than `staleness` policy updates: (staleness + 1) times the groups of a step
are under way at the start of each. With `sync_every` the batch is trained on in so many parts, as verl's
trigger_parameter_sync_step has it: a step is one part, it begins when the groups of the one before are
trained on, weights go out after the last part, and groups are admitted then.

Weights go out under running requests. `pause` says what becomes of those, as vLLM's pause_generation has it:
"keep" halts them while the weights are loaded, and they go on (tokens of several versions), their contexts
prefilled again under the new weights (AReaL) or, with `kv = "stale"`, from caches of the old ones
(PipelineRL); "wait" lets all that was handed to an engine run to its end first (NeMo-RL without in-flight
updates); "abort" takes them off and asks them again from their prompts, what they had being thrown away.
A client that sends the aborted ones again with what they have is "keep" with contexts prefilled again.

A response's lag is counted in policy updates, from the weights that began it to the batch that it is in.
Groups overtake one another, so lags may exceed `staleness` unless batches follow the order of admission
(`order`). With `max_lag` what would be staler is never trained on: it is dropped as soon as a step begins
that is too late for it (prime-rl, TRL), running ones at their ends, or at once with `cancel`.

Modelled: weights are sent to all workers at once; lent trainers take what is admitted while their batch is
not complete and hand it over, to be prefilled again, once it is. Not modelled: pools of unequal speed.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from tltsched.commands import Drop, Restart, TrainOn
from tltsched.errors import InputError
from tltsched.events import StepBegan
from tltsched.schedules.base import Move, Moves, OnPolicy, Schedule, ScheduleConfig
from tltsched.schedules.cluster_view import ClusterView, assigns
from tltsched.schedules.groups import Groups
from tltsched.schedules.lags import Lags

NO_BOUND = -1
ALL = 1.0


class BoundedAsyncConfig(ScheduleConfig, tag="bounded_async", frozen=True):
    """Rollouts that go on while the policy is trained on `trainer_share` of the GPUs."""

    keeps_order: ClassVar[bool] = False
    on_policy: ClassVar[OnPolicy] = "no"
    watches: ClassVar[bool] = True
    overlaps: ClassVar[bool] = True

    staleness: Annotated[
        float, Meta(description="policy updates by which responses may lag, in the order of admission; eta")
    ] = 1.0
    trainer_share: Annotated[
        float, Meta(description="share of the workers that train the policy instead of generating")
    ] = 0.25

    sync_every: Annotated[
        int, Meta(description="steps, parts of a batch, from one weight update of the rollouts to the next")
    ] = 1
    pause: Annotated[
        Literal["keep", "wait", "abort"],
        Meta(description="running requests when weights go out: kept, run to their ends, or asked again"),
    ] = "keep"
    kv: Annotated[
        Literal["recompute", "stale"],
        Meta(description="contexts of kept requests under new weights: prefilled again, or left"),
    ] = "recompute"
    order: Annotated[
        Literal["finish", "admission"],
        Meta(description="which groups a batch takes: the first complete, or the first admitted"),
    ] = "finish"
    max_lag: Annotated[
        int, Meta(description="policy updates beyond which a group is dropped, not trained on; -1: never")
    ] = NO_BOUND
    cancel: Annotated[
        bool, Meta(description="whether running groups beyond max_lag are taken off at once")
    ] = False
    inflight: Annotated[int, Meta(description="responses that generate at once; 0: all admitted")] = 0
    enough: Annotated[
        float, Meta(description="share of a batch that is trained on once it is there (stream training)")
    ] = ALL
    rewards: Annotated[
        Literal["phase", "overlapped"],
        Meta(description="rewards: a phase of the step, or made of each response while others generate"),
    ] = "phase"
    lend: Annotated[
        bool, Meta(description="whether trainers generate too while their batch is not complete")
    ] = False

    def __post_init__(self) -> None:
        if not 1 <= self.sync_every <= 1024:
            raise InputError("sync_every", self.sync_every, "1 to 1,024 steps", "1 updates after each step")
        if not 0.0 <= self.staleness <= 64.0:
            raise InputError("staleness", self.staleness, "0 to 64", "0 waits for each update")
        if not 0.0 < self.trainer_share < 1.0:
            raise InputError("trainer_share", self.trainer_share, "above 0, below 1", "give a share")
        if not NO_BOUND <= self.max_lag <= 1024:
            raise InputError("max_lag", self.max_lag, "-1 to 1,024 updates", "-1 drops nothing")
        if not 0 <= self.inflight <= 2**31:
            raise InputError("inflight", self.inflight, "0 or more responses", "0 sets no limit")
        if not 0.0 < self.enough <= ALL:
            raise InputError("enough", self.enough, "above 0, at most 1", "1 waits for the whole batch")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        if self.kv == "stale" and self.pause != "keep":
            raise InputError(
                "kv", self.kv, f"recompute, as pause = {self.pause!r} leaves no request to keep a cache of",
                "leave it out, or pause=keep",
            )  # fmt: skip
        if self.cancel and self.max_lag == NO_BOUND:
            raise InputError("cancel", True, "false without max_lag", "give max_lag, or leave it out")
        if self.order == "admission" and self.enough < ALL:
            raise InputError(
                "enough", self.enough, "1 with order = 'admission', whose batches are given", "order=finish"
            )

    @property
    def sessions(self) -> bool:  # type: ignore[override]
        """Sessions are between turns when a tool runs: they can be kept, and neither drained nor moved."""
        return self.pause == "keep" and not self.withdraws

    @property
    def withdraws(self) -> bool:  # type: ignore[override]
        """Whether a setting takes requests off their workers."""
        return self.pause == "abort" or self.cancel or self.lend

    def trainers(self, workers: int) -> int:
        """Return how many of `workers` train; at least one does and at least one generates.

        Raises InputError if there are too few.
        """
        if workers < 2:
            raise InputError("workers", workers, "2 or more", "one to generate and one to train")
        return min(max(1, round(self.trainer_share * workers)), workers - 1)

    def build(self, cluster_view: ClusterView) -> Schedule:
        """Return the schedule."""
        return BoundedAsync(cluster_view, self)


class BoundedAsync(Schedule):
    """Groups alive at the start of a step are under way, or complete and not yet trained on.

    The workers of the view generate. With `lend` the last of them are the trainers.
    """

    def __init__(self, cluster_view: ClusterView, config: BoundedAsyncConfig) -> None:
        super().__init__(cluster_view)
        self._config = config
        self._groups = Groups()  # that may be trained on
        self._lags = Lags()
        self._doomed = Groups()  # too stale for any batch to come, and not yet off their workers
        self._queue: deque[int] = deque()  # alive and on no worker
        self._goal = 0
        self._steps = 0  # that have ended: the policy's updates
        self._pausing = False
        self.keeps_kv = config.kv == "stale"
        self.scores_early = config.rewards == "overlapped"
        workers = len(cluster_view.placed)
        count = config.trainers(workers) if config.lend and workers > 1 else 0
        self._trainers = frozenset(range(workers - count, workers))
        self._lending = False

    # --- admission ------------------------------------------------------------------------------------

    def fresh_groups(self, groups: int) -> int:
        """Return how many groups the bound admits now: those of all parts until the next weight update.

        So many at least that a batch comes together, whatever is dropped.
        """
        stale = self._stale()
        usable = len(self._groups.members) - len(stale)
        short = max(0, groups - usable)
        if not self.syncs():
            return short
        running = [] if self._config.cancel else [group for group in stale if not self._off(group)]
        admitted = math.floor((self._config.staleness + 1.0) * groups * self._config.sync_every)
        return max(short, admitted - usable - len(running) - len(self._doomed.members))

    def syncs(self) -> bool:
        """Return whether all parts of a batch are trained on."""
        return self._steps % self._config.sync_every == 0

    def refuses(self, event: StepBegan) -> str:
        """A step waits for as many groups as it trains on: there must be so many."""
        alive = self._groups.members.keys() | {request.group for request in event.requests}
        usable = len(alive) - len(self._stale())
        if 1 <= event.groups <= usable:
            return ""
        return f"would wait for ever for {event.groups} groups of {usable}"

    def begin(self, event: StepBegan) -> Moves:
        """Drop what is too stale by now, and place fresh requests on the workers with the fewest."""
        if self.syncs():
            self._lags.version = self._steps
        moves = self._drop_stale()
        self._goal = event.groups
        self._groups.add(event.requests)
        self._queue.extend(request.id for request in event.requests)
        self._lending = bool(self._trainers) and not self._is_enough()
        return (*moves, *self._place())

    def _place(self) -> Moves:
        """Put queued requests on workers, as many as may generate at once."""
        if self._pausing or not self._queue:
            return ()
        count = len(self._queue)
        if self._config.inflight:
            count = min(count, max(0, self._config.inflight - self.cluster_view.under_way))
        chosen = [self._queue.popleft() for _ in range(count)]
        for request in chosen:
            self._lags.begin(request)
        spared = () if self._lending else self._trainers
        return assigns(self.cluster_view.deal(chosen, spared))

    # --- what workers report --------------------------------------------------------------------------

    def finished(self, worker: int, requests: tuple[int, ...]) -> Moves:
        """Fill free slots; count, unless rewards are to come."""
        del worker
        moves = () if self.scores_early else self.rewarded(requests)
        return (*moves, *self._place())

    def rewarded(self, requests: tuple[int, ...]) -> Moves:
        """Count; a doomed group goes once all that run of it are done."""
        doomed = [request for request in requests if self._doomed.has(request)]
        self._doomed.finish(doomed)
        self._groups.finish(request for request in requests if not self._doomed.has(request))
        return (*self._drop_doomed(), *self._give_back())

    def returned(self, worker: int, requests: tuple[int, ...]) -> Moves:
        """Queue what was taken off: aborted ones from their prompts, those of lent trainers as they are."""
        doomed = [request for request in requests if self._doomed.has(request)]
        rest = [request for request in requests if not self._doomed.has(request)]
        self._doomed.finish(doomed)
        moves: list[Move] = [*self._drop_doomed()]
        if worker in self._trainers and not self._pausing:
            moves += assigns(self.cluster_view.deal(rest, self._trainers))
        elif rest:
            self._lags.forget(rest)
            self._queue.extendleft(reversed(rest))
            moves.append(Restart(tuple(rest)))
        return (*moves, *self._place())

    def orphaned(self, requests: tuple[int, ...]) -> Moves:
        """What a lost worker had begins anew, at the head of the queue."""
        doomed = [request for request in requests if self._doomed.has(request)]
        rest = [request for request in requests if not self._doomed.has(request)]
        self._doomed.finish(doomed)
        self._lags.forget(request for request in rest if not self.cluster_view.generated[request])
        self._queue.extendleft(reversed(rest))
        return (*self._drop_doomed(), *self._place())

    # --- weights --------------------------------------------------------------------------------------

    def pause(self) -> Moves:
        """Stop what is to stop, and place nothing until the weights are there."""
        self._pausing = self._config.pause != "keep"
        return self.cluster_view.withdraw_all() if self._config.pause == "abort" else ()

    def paused(self) -> bool:
        """Return whether nothing runs that must not."""
        return self._config.pause == "keep" or not self.cluster_view.busy

    def resume(self) -> Moves:
        """Place what was held back; from now on requests begin under the new weights."""
        self._pausing = False
        self._lags.version = self._steps
        return self._place()

    # --- batches --------------------------------------------------------------------------------------

    def _is_enough(self) -> bool:
        complete = self._groups.complete
        if len(complete) < math.ceil(self._config.enough * self._goal):
            return False
        ordered = self._config.order == "admission"
        return not ordered or all(group in complete for group in islice(self._groups.members, self._goal))

    def over(self) -> bool:
        """Return whether a batch is complete, and no trainer generates any more."""
        lent = any(self.cluster_view.placed.get(worker) for worker in self._trainers)
        return not lent and self._is_enough()

    def end(self) -> Moves:
        """Train on the batch."""
        self._steps += 1
        ordered = self._config.order == "admission"
        chosen = list(self._groups.members if ordered else self._groups.complete)[: self._goal]
        trained = [request for group in chosen for request in self._groups.batch(group)]
        for group in chosen:
            self._groups.forget(group)
        self._lags.forget(trained)
        return (TrainOn(tuple(trained)),)

    def _give_back(self) -> Moves:
        """Take requests off the trainers that were lent, once the batch is complete."""
        if not self._lending or not self._is_enough():
            return ()
        self._lending = False
        placed = self.cluster_view.placed
        lent = [request for worker in self._trainers for request in placed.get(worker, ())]
        return self.cluster_view.withdraw(lent)

    # --- what is too stale ----------------------------------------------------------------------------

    def _stale(self) -> list[int]:
        """Return the groups that the next batch would train on too late."""
        if self._config.max_lag == NO_BOUND:
            return []
        oldest = self._steps - self._config.max_lag
        return [group for group, members in self._groups.members.items()
                if self._lags.began_before(members, oldest)]  # fmt: skip

    def _off(self, group: int) -> bool:
        """Return whether no member of a group is on a worker, or waits for its reward."""
        return group in self._groups.complete

    def _drop_stale(self) -> Moves:
        """Doom groups that are too stale; returns the drops, and withdrawals with `cancel`."""
        running: list[int] = []
        for group in self._stale():
            self._groups.move(group, self._doomed)
            running += self._doomed.members[group]
        queued = [request for request in self._queue if self._doomed.has(request)] if running else []
        if queued:
            self._queue = deque(request for request in self._queue if not self._doomed.has(request))
            self._doomed.finish(queued)
        moves = self._drop_doomed()
        return (*moves, *self.cluster_view.withdraw(running)) if self._config.cancel else moves

    def _drop_doomed(self) -> Moves:
        """Return the drop of doomed groups of which nothing runs any more."""
        gone = [request for group in list(self._doomed.complete) for request in self._doomed.forget(group)]
        self._lags.forget(gone)
        return (Drop(tuple(gone)),) if gone else ()
