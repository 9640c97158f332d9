"""The queue and batch of one worker under any order of admission, decoding and preemption."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.sim.small_world import submission
from tlt.sim.model.engines.running_batch import Limits, RequestPool

MOST_PER_ENGINE_STEP = 9


class PoolMachine(RuleBasedStateMachine):
    """Decodes in engine steps as the engines do: emit, retire, and preempt when the batch is crowded."""

    @initialize(
        lengths=st.lists(st.integers(1, 300), min_size=1, max_size=25),
        samples=st.integers(1, 4),
        prompt=st.integers(0, 60),
        max_running=st.integers(1, 12),
        spare=st.integers(0, 600),
        caching=st.booleans(),
    )
    def build(
        self, lengths: list[int], samples: int, prompt: int, max_running: int, spare: int, caching: bool
    ) -> None:
        self.count, self.prompt, self.caching = len(lengths), prompt, caching
        kv_tokens = max(lengths) + prompt + MOST_PER_ENGINE_STEP + spare
        self.limits = Limits(max_running, kv_tokens, caching, MOST_PER_ENGINE_STEP)
        group = [index // samples for index in range(self.count)]
        self.pool = RequestPool(submission(lengths, prompt, group), self.limits)
        self.done: list[int] = []
        self.seen_groups: set[int] = set()
        self.preemptions = 0
        self.left: dict[int, int] = {}  # tokens of each admitted context that are not computed

    @rule()
    def admit(self) -> None:
        pool, before = self.pool, [*self.pool.running.tolist(), *self.pool.prefilling.indices().tolist()]
        queue, emitted = list(pool.waiting), pool.emitted.copy()
        count = pool.admit()
        admitted = pool.prefilling.indices().tolist()[len(pool.prefilling) - count :]
        assert queue[:count] == admitted, "first come, first served"
        if not before and queue:
            assert admitted, "an empty worker stands still"
        for request in admitted:
            cached = 0
            if emitted[request] == 0:
                group = int(pool.requests.group[request])
                if self.caching and group in self.seen_groups:
                    cached = max(self.prompt - 1, 0) // 16 * 16  # all of its blocks but the last
                self.seen_groups.add(group)
            self.left[request] = max(self.prompt + int(emitted[request]), 1) - cached

    @precondition(lambda self: len(self.pool.prefilling) > 0)
    @rule(budget=st.integers(1, 200))
    def prefill(self, budget: int) -> None:
        pool = self.pool
        order, emitted = pool.prefilling.indices().tolist(), pool.emitted.copy()
        chunk, spent = pool.prefill(budget), budget
        for request in order:
            part = min(self.left[request], spent)
            self.left[request] -= part
            spent -= part
        assert chunk.tokens == budget - spent, "what fits is computed, first come, first served"
        whole = [request for request in order if self.left[request] == 0]
        assert chunk.done.tolist() == whole[: len(chunk.done)]
        assert [request for request in whole if request not in chunk.done] == [], "who is whole decodes"
        pool.join(chunk.done)
        for request in whole:
            assert pool.emitted[request] == (emitted[request] or 1), "a prefill emits the first token"
        self.done.extend(pool.retire().tolist())

    @precondition(lambda self: len(self.pool.running) > 0)
    @rule(tokens=st.integers(0, MOST_PER_ENGINE_STEP), data=st.data())
    def decode(self, tokens: int, data: st.DataObject) -> None:
        pool = self.pool
        cut = data.draw(st.integers(0, tokens))
        step = np.where(np.arange(len(pool.running)) % 2, tokens, cut)
        pool.emitted[pool.running] += np.minimum(step, pool.remaining())
        self.done.extend(pool.retire().tolist())
        if pool.context().sum() > pool.crowded_above_tokens():
            before, begun = pool.running.tolist(), pool.prefilling.indices().tolist()
            pool.preempt()
            self.preemptions += len(before) - len(pool.running) + len(begun) - len(pool.prefilling)
            assert pool.running.tolist() == before[: len(pool.running)], "the newest go first"
            assert pool.running.tolist() == before or not pool.prefilling, "the newest are in prefill"

    @invariant()
    def no_request_is_lost_or_held_twice(self) -> None:
        if hasattr(self, "pool"):
            everywhere = [*self.done, *self.order()]
            assert sorted(everywhere) == list(range(self.count))
            assert self.pool.pending() == (len(self.done) < self.count)
            assert self.pool.preemptions == self.preemptions

    @invariant()
    def older_requests_run_before_newer_ones(self) -> None:
        if hasattr(self, "pool"):
            assert self.order() == sorted(self.order())

    def order(self) -> list[int]:
        pool = self.pool
        return [*pool.running.tolist(), *pool.prefilling.indices().tolist(), *pool.waiting]

    @invariant()
    def the_batch_fits(self) -> None:
        if hasattr(self, "pool"):
            assert len(self.pool.running) + len(self.pool.prefilling) <= self.limits.max_running
            assert len(self.pool.running) <= 1 or self.pool.context().sum() <= self.limits.kv_tokens

    @invariant()
    def nobody_emits_more_than_its_length(self) -> None:
        if hasattr(self, "pool"):
            assert (self.pool.emitted <= self.pool.requests.length).all()
            assert (self.pool.emitted[self.done] == self.pool.requests.length[self.done]).all()


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_all_that_fits_is_admitted_and_preempted_only_when_the_cache_is_full() -> None:
    # A request of 10 prompt tokens needs 11 to begin, 8 for the rest of a block and 10 for two engine steps.
    pool = RequestPool(submission([50] * 4, prompt_tokens=10), Limits(8, 3 * 29.0, False, 5))
    assert pool.admit() == 3
    pool.join(pool.prefill(100).done)
    pool.preempt()
    assert len(pool.running) == 3
    assert pool.crowded_above_tokens() == 3 * 29 - 3 * 13, "another engine step fits, whatever it emits"
    pool.emitted[pool.running[0]] += 1
    pool.preempt()
    assert pool.running.tolist() == [0, 1]


def test_a_single_request_is_admitted_even_where_it_hardly_fits() -> None:
    pool = RequestPool(submission([50, 50], prompt_tokens=10), Limits(8, 61.0, False))
    assert pool.admit() == 1
    assert list(pool.waiting) == [1]
    pool.join(pool.prefill(10).done)
    pool.preempt()
    assert pool.running.tolist() == [0], "the last one is never preempted"
