"""SGLang's throughput-aware draft length: expected tokens over the profiled time of an engine step.

Rule: score(K) = (1 + sum of p_k for k < K) / cost(batch, K). p_k is the mean, over the last `window` batches
that drafted position k, of the share of requests whose accepted drafts reach beyond k. Positions without data
go on geometrically from the known ones. The cost was profiled at start, at one context, for the batch sizes
that have a CUDA graph: a batch takes the next larger one, and the largest above them. Every
`update_interval` batches, if all positions in use have full windows, the best candidate replaces K when it
leads by more than the share `switch_margin`. When K falls, the windows of the positions past it are emptied.
Candidates are drafting lengths only: this rule never stops drafting.
Source: sgl-project/sglang, strategy `throughput_aware` (pull request 28045). Its first form re-scores every
10 batches, without a margin, at contexts of up to 2,048; a later one every 5, with a margin of 10 %, at 128.
"""

from __future__ import annotations

from typing import ClassVar

from tltsched.commands import ResumeCost
from tltsched.draft_config import DraftConfig, chain
from tltsched.policies.base import (
    Batch,
    Choice,
    Outcome,
    PolicyConfig,
    Rng,
    StepTimes,
    WhenOff,
    require_at_least,
    required_times,
)
from tltsched.policies.estimators.batch_ranges import (
    SGLANG_GRAPH_BATCHES,
    Slots,
    check_edges,
    check_graph_batches,
    check_ks,
)
from tltsched.policies.estimators.sliding_median import Window


class SglangThroughputConfig(PolicyConfig, tag="sglang_throughput", frozen=True):
    """Maximise tokens over profiled engine step time. Needs calibrated step times of each candidate."""

    needs_times: ClassVar[bool] = True

    candidates: tuple[tuple[int, tuple[int, ...]], ...] = ((1, (1, 3, 5, 7)),)
    """Pairs (smallest batch of the slot, draft lengths above 0), ascending from 1 (published default)."""
    initial_k: int = 3
    """Draft length to begin with if it is a candidate, else the middle one of the first slot (assumed)."""
    window: int = 20
    """Engine steps whose acceptance counts, a position."""
    update_interval: int = 10
    """Engine steps between two decisions."""
    switch_margin: float = 0.1
    """Relative lead that a change of K needs."""
    profile_context_tokens: int = 2048
    """Context of each request in the profile."""
    graph_batches: tuple[int, ...] = SGLANG_GRAPH_BATCHES
    """Batch sizes with a CUDA graph; none: batches are neither padded nor rounded."""

    def __post_init__(self) -> None:
        check_edges("candidates", [edge for edge, _ in self.candidates])
        for edge, ks in self.candidates:
            check_ks(f"candidates of batch {edge}", ks, 1)
        check_graph_batches(self.graph_batches)
        lows = {"window": 1, "update_interval": 1, "profile_context_tokens": 0, "switch_margin": 0}
        require_at_least(self, lows)

    def build(self, rng: Rng, times: StepTimes | None) -> SglangThroughputPolicy:  # noqa: ARG002 (no chance)
        """Return the policy; raises InputError if `times` is missing or lacks a draft configuration."""
        return SglangThroughputPolicy(self, times)


class SglangThroughputPolicy:
    """One draft length for all batches, scored anew every few engine steps."""

    def __init__(self, config: SglangThroughputConfig, times: StepTimes | None) -> None:
        self.when_off: WhenOff = "k0"
        self.resume_cost: ResumeCost = "none"
        ks = sorted({k for _, slot in config.candidates for k in slot})
        self.draft_configs: tuple[DraftConfig, ...] = tuple(chain(k) for k in ks)
        self._config = config
        self._times = required_times("sglang_throughput", times, self.draft_configs)
        self._slots = Slots([edge for edge, _ in config.candidates], config.graph_batches)
        first = config.candidates[0][1]
        self._k = config.initial_k if config.initial_k in ks else first[len(first) // 2]
        self._windows = [Window(config.window) for _ in range(ks[-1])]
        self._engine_steps = 0  # since the last decision was due

    def begin_rollout(self) -> None:
        """Nothing to forget: the server goes on with its windows."""

    def choose(self, batch: Batch) -> Choice:
        """Return the draft length, up to the next decision or until the batch leaves its slot."""
        slot = self._slots.slot_of(batch.requests)
        ks = self._config.candidates[slot][1]
        if self._k not in ks:
            best = self._best(ks, batch.requests)
            self._take(ks[len(ks) // 2] if best is None else best)
        interval = self._config.update_interval
        if self._engine_steps >= interval:
            self._decide(ks, batch.requests)
            self._engine_steps = 0
        return Choice(chain(self._k), interval - self._engine_steps, self._slots.lowest(slot))

    def observe(self, outcome: Outcome) -> None:
        """Add the share of requests that reached beyond each drafted position, once an engine step."""
        self._engine_steps += outcome.engine_steps
        accepted = outcome.accepted_by_position
        for position in range(min(outcome.draft_config.depth, len(self._windows))):
            count = accepted[position] if position < len(accepted) else 0
            self._windows[position].add(count / outcome.request_steps, outcome.engine_steps)

    def _decide(self, ks: tuple[int, ...], requests: int) -> None:
        if not all(window.is_full() for window in self._windows[: self._k]):
            return
        best = self._best(ks, requests)
        if best is None or best == self._k:
            return
        current = self._score(self._k, requests)
        challenger = self._score(best, requests)
        assert current is not None
        assert challenger is not None
        if challenger > current * (1 + self._config.switch_margin):
            self._take(best)

    def _take(self, k: int) -> None:
        for window in self._windows[k : self._k]:
            window.clear()
        self._k = k

    def _best(self, ks: tuple[int, ...], requests: int) -> int | None:
        """Return the candidate of the highest score, the first of equal ones; None before any data."""
        scores = [self._score(k, requests) for k in ks]
        known = [(score, -k) for score, k in zip(scores, ks, strict=True) if score is not None]
        return -max(known)[1] if known else None

    def _score(self, k: int, requests: int) -> float | None:
        """Return expected tokens of one request a second; None before any data."""
        rates = self._rates(k)
        if rates is None:
            return None
        graphs = self._slots.graph_batches
        batch = min(self._slots.padded(requests), graphs[-1]) if graphs else requests
        context = batch * self._config.profile_context_tokens
        return (1 + sum(rates)) / self._times.engine_step_s(chain(k), Batch(batch, context))

    def _rates(self, k: int) -> list[float] | None:
        """Return p_0 .. p_(k-1): window means, and geometric from the known ones where there is none."""
        rates: list[float] = []
        for window in self._windows[:k]:
            mean = window.mean()
            if mean is None and not rates:
                return None
            rates.append(_extrapolated(rates) if mean is None else mean)
        return rates


def _extrapolated(rates: list[float]) -> float:
    """Return the next term: the last one times the mean ratio, and never above the last one."""
    if len(rates) == 1:
        return rates[0]
    if rates[0] <= 0:
        return 0.0
    ratio: float = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1))
    return min(rates[-1], rates[-1] * ratio)
