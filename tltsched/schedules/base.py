"""What a rollout schedule sees and returns, whichever rule it follows.

A schedule decides which requests go where and when, which are taken off again, when the rollout of a step is
over, and what the step trains on. The ClusterScheduler does the rest: drafter training, hand-over, phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from tltsched.commands import Assign, Drop, Restart, TrainOn, Withdraw
from tltsched.events import StepBegan
from tltsched.schedules.cluster_view import ClusterView, assigns

Move = Assign | Withdraw | Restart | Drop | TrainOn
Moves = Sequence[Move]
# Whether the tokens that a step trains on come from the weights that it updates: all of them, or some
# (a response that went on under newer weights), or in general none.
OnPolicy = Literal["yes", "mixed", "no"]


class Schedule:
    """Base of all schedules: each step generates its own requests to the end.

    The cluster view is up to date when a method is called, and takes in what it returns afterwards.
    """

    chunk_tokens = 0  # after so many tokens a request leaves its worker; 0: when it is done
    closing = False  # whether the rollout is being ended early: idle workers need not start anything
    keeps_kv = False  # whether running requests keep their caches while new weights are loaded under them
    scores_early = False  # whether rewards are made while others generate: RewardsReady, no phase for it

    def __init__(self, cluster_view: ClusterView) -> None:
        self.cluster_view = cluster_view

    def fresh_groups(self, groups: int) -> int:
        """Return how many fresh prompt groups a step needs that is to train on `groups`."""
        return groups

    def samples(self, samples: int) -> int:
        """Return how many responses a fresh group needs of which `samples` are trained on."""
        return samples

    def refuses(self, event: StepBegan) -> str:
        """Return why a step cannot begin so, "" if it can; it changes nothing."""
        del event
        return ""

    def begin(self, event: StepBegan) -> Moves:
        """Place what the step begins with; the view has its requests already."""
        return assigns(self.cluster_view.spread(event.requests))

    def finished(self, worker: int, requests: tuple[int, ...]) -> Moves:
        """Return what follows from requests that are done."""
        del worker, requests
        return ()

    def returned(self, worker: int, requests: tuple[int, ...]) -> Moves:
        """Return what follows from requests that left a worker undone: withdrawn, or at a chunk's end."""
        del worker, requests
        return ()

    def orphaned(self, requests: tuple[int, ...]) -> Moves:
        """Return where the requests of a lost worker go; their tokens are lost."""
        return assigns(self.cluster_view.deal(requests))

    def syncs(self) -> bool:
        """Return whether the policy's weights go out to the rollout workers after the step that has ended."""
        return True

    def pause(self) -> Moves:
        """Return what becomes of running requests before new weights go out; asked once, then `paused`."""
        return ()

    def paused(self) -> bool:
        """Return whether the weights may go out now."""
        return True

    def resume(self) -> Moves:
        """Return what is placed once the new weights are in place."""
        return ()

    def rewarded(self, requests: tuple[int, ...]) -> Moves:
        """Return what follows from finished requests whose rewards are known (`scores_early`)."""
        del requests
        return ()

    def over(self) -> bool:
        """Return whether the rollout of the step is over."""
        return not self.cluster_view.busy

    def end(self) -> Moves:
        """Return what the step trains on, what is dropped and what starts anew, once the rollout is over."""
        return ()


class ScheduleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the settings of one schedule; a subclass documents its fields and builds the schedule."""

    # Whether each step trains on the responses to the prompts that it began with, so that the order of
    # samples is that of plain synchronous training.
    keeps_order: ClassVar[bool] = True
    on_policy: ClassVar[OnPolicy] = "yes"
    knows_lengths: ClassVar[bool] = False  # whether requests carry their lengths: nobody can run it
    # Whether it must hear of each finish when it happens, and places requests in mid-rollout.
    watches: ClassVar[bool] = False
    withdraws: ClassVar[bool] = False  # whether it uses Withdraw or chunks
    # Whether its requests may be sessions, which leave their workers for tools and come back.
    sessions: ClassVar[bool] = True
    overlaps: ClassVar[bool] = False  # whether rollouts go on while the policy is trained, elsewhere

    @property
    def moves_caches(self) -> bool:
        """Whether KV caches go from worker to worker with requests."""
        return False

    def trainers(self, workers: int) -> int:
        """Return how many of `workers` train the policy and generate nothing."""
        del workers
        return 0

    def build(self, cluster_view: ClusterView) -> Schedule:
        """Return a fresh schedule over a cluster view."""
        raise NotImplementedError
