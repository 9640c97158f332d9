"""SGLang's adaptive draft length: tiers that a moving average of the accepted drafts climbs and descends.

Rule, for each slot of batch sizes on its own: e <- (1 - smoothing) e + smoothing a in every batch, where a is
the mean number of accepted drafts a request, the bonus token left out; a batch that drafted nothing leaves e
as it is. After `warmup_batches`, and then in every `update_interval`-th batch:
    at K = 0        take the next tier, to see whether drafting pays again;
    otherwise       go down while e <= K_below - 0.5 + down (0.5 + down where K_below is 0),
                    or, if that did not happen, up while e > K - 0.5 + up.
A slot starts at `initial_k` if it has that tier, else at its middle one, and at e = K - 1. Step times play no
part. Every slot keeps its state while other slots are in use, and across rollouts.
Source: sgl-project/sglang, adaptive_spec_params.py (strategy `ema`) with its default tiers.
"""

from __future__ import annotations

import msgspec

from tltsched.commands import ResumeCost
from tltsched.draft_config import DraftConfig, chain
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, Outcome, PolicyConfig, Rng, StepTimes, WhenOff
from tltsched.policies.estimators.batch_ranges import (
    SGLANG_GRAPH_BATCHES,
    Slots,
    check_edges,
    check_graph_batches,
    check_ks,
)


class EmaSlot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tiers of one range of batch sizes."""

    batch: int
    """Smallest batch of the slot, after padding to a CUDA graph."""
    ks: tuple[int, ...]
    """Draft lengths to move between, rising; 0 is no drafting."""
    down_hysteresis: float = 0.0
    """Added to the thresholds of going down."""
    up_hysteresis: float = 0.0
    """Added to the thresholds of going up."""


SGLANG_SLOTS = (
    EmaSlot(batch=1, ks=(1, 3, 5, 7), down_hysteresis=-0.25),
    EmaSlot(batch=8, ks=(0, 1, 3)),
    EmaSlot(batch=32, ks=(0, 1)),
    EmaSlot(batch=64, ks=(0,)),
)


class SglangEmaConfig(PolicyConfig, tag="sglang_ema", frozen=True):
    """Follow the moving average of accepted drafts up and down the tiers of the batch's slot."""

    slots: tuple[EmaSlot, ...] = SGLANG_SLOTS
    """Slots by their smallest batch, ascending from 1 (published: SGLang's defaults)."""
    initial_k: int = 3
    """Draft length to begin with where a slot has it (SGLang: speculative_num_steps; assumed)."""
    smoothing: float = 0.2
    """Weight of a batch in the moving average."""
    warmup_batches: int = 10
    """Engine steps of a slot before it may move."""
    update_interval: int = 5
    """Engine steps of a slot between two decisions."""
    graph_batches: tuple[int, ...] = SGLANG_GRAPH_BATCHES
    """Batch sizes with a CUDA graph, to which a batch is padded before its slot is looked up."""
    when_off: WhenOff = "k0"
    """How the engine runs at K = 0 (assumed: the drafter is kept in step)."""
    resume_cost: ResumeCost = "none"
    """What drafting again costs (only with when_off `drafter_dropped`)."""

    def __post_init__(self) -> None:
        check_edges("slots", [slot.batch for slot in self.slots])
        for slot in self.slots:
            check_ks(f"slots of batch {slot.batch}", slot.ks, 0)
        check_graph_batches(self.graph_batches)
        if not 0 < self.smoothing <= 1:
            raise InputError("smoothing", self.smoothing, "above 0, up to 1", "give a weight")
        for field, low in (("warmup_batches", 0), ("update_interval", 1)):
            if getattr(self, field) < low:
                raise InputError(
                    field, getattr(self, field), f"{low} or more", "give a count of engine steps"
                )

    def build(self, rng: Rng, times: StepTimes | None) -> SglangEmaPolicy:  # noqa: ARG002 (it needs neither)
        """Return the policy."""
        return SglangEmaPolicy(self)


class SglangEmaPolicy:
    """A tier by slot; a decision interval lasts until the slot decides again or the batch leaves it."""

    def __init__(self, config: SglangEmaConfig) -> None:
        self.when_off: WhenOff = config.when_off
        self.resume_cost: ResumeCost = config.resume_cost
        self.draft_configs: tuple[DraftConfig, ...] = tuple(
            chain(k) for k in sorted({k for slot in config.slots for k in slot.ks})
        )
        self._slots = Slots([slot.batch for slot in config.slots], config.graph_batches)
        self._tiers = [Tiers(slot, config) for slot in config.slots]

    def begin_rollout(self) -> None:
        """Nothing to forget: the server goes on with its averages."""

    def choose(self, batch: Batch) -> Choice:
        """Return the tier of the batch's slot, up to the next decision of that slot."""
        slot = self._slots.slot_of(batch.requests)
        tiers = self._tiers[slot]
        engine_steps = tiers.engine_steps_to_decision() if len(tiers.ks) > 1 else None
        return Choice(chain(tiers.k), engine_steps, self._slots.lowest(slot))

    def observe(self, outcome: Outcome) -> None:
        """Update the slot as that many equal batches would."""
        requests = round(outcome.request_steps / outcome.engine_steps)
        drafted = outcome.draft_config.depth > 0
        accepted = sum(outcome.accepted_by_position) / outcome.request_steps if drafted else None
        self._tiers[self._slots.slot_of(requests)].observe(accepted, outcome.engine_steps)


class Tiers:
    """Where one slot stands: its draft length `k` and its average `accepted`, without the bonus token."""

    def __init__(self, slot: EmaSlot, config: SglangEmaConfig) -> None:
        self.ks = slot.ks
        self.k = config.initial_k if config.initial_k in slot.ks else slot.ks[len(slot.ks) // 2]
        self.accepted = self.k - 1.0
        self._slot, self._config = slot, config
        self._batches = 0

    def engine_steps_to_decision(self) -> int:
        """Return after how many more batches this slot decides."""
        warmup, interval = self._config.warmup_batches, self._config.update_interval
        if self._batches < warmup:
            return warmup + interval - self._batches
        return interval - (self._batches - warmup) % interval

    def observe(self, accepted: float | None, engine_steps: int) -> None:
        """Take in `engine_steps` batches of this mean; None: nothing was drafted."""
        if len(self.ks) == 1:
            return
        while engine_steps > 0:
            due = self.engine_steps_to_decision()
            count = min(engine_steps, due)
            if accepted is not None:
                keep = (1 - self._config.smoothing) ** count
                self.accepted = accepted + (self.accepted - accepted) * keep
            self._batches += count
            engine_steps -= count
            if count == due:
                self._decide()

    def _decide(self) -> None:
        ks, index = self.ks, self.ks.index(self.k)
        if self.k == 0:
            self.k = ks[min(index + 1, len(ks) - 1)]
            if self.accepted < 0:  # nothing was ever drafted here: begin at the neutral value
                self.accepted = self.k - 1.0
            return
        while index > 0 and self.accepted <= self._down_threshold(ks[index - 1]):
            index -= 1
        if ks[index] == self.k:
            while index < len(ks) - 1 and self.accepted > ks[index] - 0.5 + self._slot.up_hysteresis:
                index += 1
        self.k = ks[index]

    def _down_threshold(self, below: int) -> float:
        return (0.5 if below == 0 else below - 0.5) + self._slot.down_hysteresis
