"""Acceptance of the requests that run: each against its posterior, the population free of who is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, log, pi, sqrt
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tltsched.draft_config import DraftConfig, chain
from tltsched.events import DraftsByRequest
from tltsched.policies.base import Outcome
from tltsched.policies.estimators.acceptance import AcceptanceEstimate
from tltsched.policies.estimators.exponents import (
    WEIGHTS,
    Exponents,
    hazard_of,
    hazard_of_accepted,
    mean_accepted,
    mean_survival,
)
from tltsched.policies.estimators.requests import RequestEstimates
from tltsched.policies.estimators.running import FEWEST_ENGINE_STEPS, RunningAcceptance
from tltsched.written.draft_config import parse_draft_config

SURVIVAL = (0.6, 0.36, 0.24, 0.15)
HAZARDS = [-log(share) for share in SURVIVAL]
SPREAD = 0.5
TREE = parse_draft_config("8_4_48")
FOREVER = 1e12


def accepted_of(survival: Sequence[float], exponent: float, rng: Random) -> int:
    """Return how many drafts one engine step accepts."""
    draw = rng.random()
    return sum(draw < share**exponent for share in survival)


def history(x: float, engine_steps: int, seed: int, survival: Sequence[float] = SURVIVAL) -> list[int]:
    rng = Random(seed)  # noqa: S311
    return [accepted_of(survival, exp(x), rng) for _ in range(engine_steps)]


def posterior(accepted: Sequence[int], survival: Sequence[float] = SURVIVAL) -> tuple[float, float]:
    """Return mean and standard deviation of the log-exponent given every engine step, by quadrature."""
    bounds, counts = (1.0, *survival, 0.0), Counter(accepted)
    grid = [-4 + 0.02 * number for number in range(401)]
    logs = [
        sum(
            count * log(bounds[a] ** exp(x) - bounds[a + 1] ** exp(x) or 1e-300)
            for a, count in counts.items()
        )
        - x * x / (2 * SPREAD**2)
        for x in grid
    ]
    weights = [exp(value - max(logs)) for value in logs]
    mean = sum(w * x for w, x in zip(weights, grid, strict=True)) / sum(weights)
    square = sum(w * x * x for w, x in zip(weights, grid, strict=True)) / sum(weights)
    return mean, sqrt(square - mean * mean)


@pytest.mark.parametrize("x", [-0.8, -0.4, 0.0, 0.4, 0.8])
@pytest.mark.parametrize(("intervals", "engine_steps"), [(1, 1), (1, 4), (1, 16), (1, 64), (4, 16), (8, 64)])
def test_an_estimate_is_the_posterior_within_half_of_its_spread(
    x: float, intervals: int, engine_steps: int
) -> None:
    # The estimate knows the sum over an interval, the posterior every engine step: they differ by chance.
    misses = []
    for seed in range(20):
        estimates, steps = RequestEstimates(SPREAD, FOREVER), history(x, intervals * engine_steps, seed)
        for first in range(0, len(steps), engine_steps):
            part = steps[first : first + engine_steps]
            estimates.observe(((7, engine_steps, sum(part)),), (), HAZARDS)
        mean, spread = posterior(steps)
        estimate, variance = estimates.estimate(7)
        assert sqrt(variance) == pytest.approx(spread, rel=0.2)
        misses.append((estimate - mean) / spread)
    assert abs(sum(misses)) / 20 < 0.25
    assert sqrt(sum(miss * miss for miss in misses) / 20) < 0.5


def test_no_history_is_the_population() -> None:
    estimates = RequestEstimates(SPREAD, FOREVER)
    assert estimates.estimate(3) == (0.0, SPREAD**2)
    estimates.observe(((3, 0, 0),), (), HAZARDS)  # it runs, and had no drafts that tell anything
    assert estimates.estimate(3) == (0.0, SPREAD**2)
    assert len(estimates) == 1


@pytest.mark.parametrize("accepted", [0, 4 * 5000])
def test_a_request_that_accepts_none_or_all_is_pulled_no_further_than_its_history_goes(accepted: int) -> None:
    estimates = RequestEstimates(SPREAD, FOREVER)
    for _ in range(40):
        estimates.observe(((1, 5000, accepted),), (), HAZARDS)
        estimate, variance = estimates.estimate(1)
        assert abs(estimate) <= 3
        assert 0 < variance <= SPREAD**2
    assert abs(estimate) > 1.5
    assert (estimate > 0) == (accepted == 0)


def test_a_history_fades_by_the_engine_steps_of_the_request() -> None:
    # 693 = 1000 ln 2 engine steps later the worth of the first ones is half of what it was; they tell nothing
    # new where a request accepts what was expected of it.
    worth = []
    for later in (0, 693):
        estimates = RequestEstimates(SPREAD, 1000.0)
        estimates.observe(((1, 10, 10),), (), HAZARDS)
        if later:
            estimates.observe(((1, later, 0),), (), [0.0] * 4)  # certain drafts: no information
        worth.append(1 / estimates.estimate(1)[1] - 1 / SPREAD**2)
    assert worth[1] == pytest.approx(worth[0] / 2, rel=1e-3)


@given(survival=st.floats(1e-6, 1 - 1e-9), mean=st.floats(-2, 2), spread=st.floats(0, 1.5))
def test_a_hazard_has_the_mean_survival_that_it_was_made_of(
    survival: float, mean: float, spread: float
) -> None:
    nodes = Exponents(mean, spread**2).nodes()
    assert mean_survival(hazard_of(survival, nodes), nodes) == pytest.approx(survival, rel=1e-5, abs=1e-9)


@given(share=st.floats(0, 1), depth=st.integers(1, 16), mean=st.floats(-1.5, 1.5), spread=st.floats(0, 1))
def test_the_hazard_of_a_tree_has_its_length(share: float, depth: int, mean: float, spread: float) -> None:
    nodes, accepted = Exponents(mean, spread**2).nodes(), share * depth
    assert mean_accepted(hazard_of_accepted(accepted, depth, nodes), depth, nodes) == pytest.approx(
        accepted, abs=1e-3
    )


@given(
    accepted=st.floats(1e-3, 7.99), start=st.floats(0, 1e4), mean=st.floats(-1.5, 1.5), spread=st.floats(0, 1)
)
def test_a_hazard_does_not_depend_on_where_its_search_begins(
    accepted: float, start: float, mean: float, spread: float
) -> None:
    nodes = Exponents(mean, spread**2).nodes()
    for found, again in (
        (hazard_of_accepted(accepted, 8, nodes), hazard_of_accepted(accepted, 8, nodes, start)),
        (hazard_of(accepted / 8, nodes), hazard_of(accepted / 8, nodes, start)),
    ):
        assert again == pytest.approx(found, rel=1e-4)


def test_five_nodes_are_enough_for_the_mean_over_a_batch() -> None:
    # against a sum over a fine grid of the normal density
    grid = [-8 + 0.001 * number for number in range(16_001)]
    for hazard in (0.1, 0.5, 1.5):
        exact = 0.001 * sum(exp(-hazard * exp(0.3 + 0.6 * z) - z * z / 2) / sqrt(2 * pi) for z in grid)
        assert mean_survival(hazard, Exponents(0.3, 0.36).nodes()) == pytest.approx(exact, rel=3e-3)
    assert sum(WEIGHTS) == pytest.approx(1)


# --- with the population ----------------------------------------------------------------------------------


def running(memory: float = FOREVER, tree: float | None = None) -> RunningAcceptance:
    lengths = {} if tree is None else {TREE: tree}
    return RunningAcceptance(AcceptanceEstimate(SURVIVAL, lengths, memory), SPREAD, FOREVER)


def interval(
    exponents: dict[int, float], engine_steps: int, seed: int = 0, finished: tuple[int, ...] = ()
) -> Outcome:
    """Return a decision interval of four drafts in which requests of these log-exponents ran."""
    rng, by_position, rows = Random(seed), [0] * 4, []  # noqa: S311
    for request, x in exponents.items():
        gained = [accepted_of(SURVIVAL, exp(x), rng) for _ in range(engine_steps)]
        rows.append((request, engine_steps, sum(gained)))
        by_position = [count + sum(a > j for a in gained) for j, count in enumerate(by_position)]
    steps = engine_steps * len(exponents)
    return Outcome(chain(4), engine_steps, steps, 1.0, tuple(by_position), finished, tuple(rows))


def without_requests(outcome: Outcome) -> Outcome:
    return msgspec.structs.replace(outcome, by_request=())


def test_without_drafts_by_request_it_is_the_estimate_of_the_population_to_the_last_digit() -> None:
    ours, plain = running(2000.0, tree=6.0), AcceptanceEstimate(SURVIVAL, {TREE: 6.0}, 2000.0)
    for seed in range(5):
        told = without_requests(interval({1: 0.5, 2: -0.2}, 64, seed))
        if seed == 2:
            told = Outcome(TREE, 64, 128, 1.0, (100, 90, 80), (2,))
        ours.observe(told)
        plain.observe(told.draft_config, told.request_steps, told.shares())
        for draft_config in (chain(0), chain(1), chain(4), chain(8), TREE):
            assert ours.tokens_per_engine_step(draft_config, 2) == plain.tokens_per_engine_step(draft_config)


def test_the_last_requests_are_told_apart_from_the_average() -> None:
    hard, easy = dict.fromkeys(range(4), 0.9), dict.fromkeys(range(4, 20), -0.225)
    ours, plain = running(2000.0), running(2000.0)
    for seed in range(6):
        told = interval(hard | easy, 64, seed, tuple(easy) if seed == 5 else ())
        ours.observe(told)
        plain.observe(without_requests(told))
    true = 1 + sum(share ** exp(0.9) for share in SURVIVAL)
    assert ours.tokens_per_engine_step(chain(4), 4) == pytest.approx(true, rel=0.06)
    assert plain.tokens_per_engine_step(chain(4), 4) > 1.5 * true


def test_what_is_admitted_counts_as_the_population() -> None:
    ours = running()
    ours.observe(interval({1: 1.0}, 400))
    alone = ours.tokens_per_engine_step(chain(4), 1)
    population = ours.population.tokens_per_engine_step(chain(4))
    half = ours.tokens_per_engine_step(chain(4), 2)
    assert alone < half < population
    assert half == pytest.approx(2 / (1 / alone + 1 / population), rel=0.03)


def test_an_engine_step_is_judged_by_the_time_that_it_takes_requests_for_a_token() -> None:
    ours = running()
    for seed in range(20):
        ours.observe(interval({1: -0.7, 2: 0.7}, 64, seed))
    tokens = [1 + sum(share ** exp(x) for share in SURVIVAL) for x in (-0.7, 0.7)]  # 3.17 and 1.56
    mean, harmonic = sum(tokens) / 2, 2 / sum(1 / each for each in tokens)
    assert mean > 1.12 * harmonic
    # A batch is taken as normal, which makes 1.7 % of two requests; the rest is chance.
    assert ours.tokens_per_engine_step(chain(4), 2) == pytest.approx(harmonic, rel=0.05)


def test_the_population_does_not_learn_that_drafts_are_bad_from_those_that_are_left() -> None:
    # The population remembers 2,000 request-steps; the hard one is alone for 6,400.
    ours, plain = running(2000.0), running(2000.0)
    requests = {number: 1.0 if number == 0 else -1 / 31 for number in range(32)}
    for seed in range(8):
        told = interval(requests, 64, seed, tuple(range(1, 32)) if seed == 7 else ())
        ours.observe(told)
        plain.observe(without_requests(told))
    for seed in range(100):
        told = interval({0: 1.0}, 64, 100 + seed)
        ours.observe(told)
        plain.observe(without_requests(told))
    whole = 1 + sum(SURVIVAL)
    assert ours.population.tokens_per_engine_step(chain(4)) == pytest.approx(whole, rel=0.12)
    assert plain.population.tokens_per_engine_step(chain(4)) < 0.75 * whole


def test_a_change_of_the_drafter_is_learned_by_the_population() -> None:
    ours = running(2000.0)
    for seed in range(30):
        ours.begin_rollout()
        for part in range(4):  # all requests of these rollouts are hard by 0.6
            ours.observe(interval(dict.fromkeys(range(16), 0.6), 64, 10 * seed + part))
    true = 1 + sum(share ** exp(0.6) for share in SURVIVAL)
    assert ours.population.tokens_per_engine_step(chain(4)) == pytest.approx(true, rel=0.05)


def test_short_intervals_are_taken_in_together() -> None:
    parts = [interval({1: 0.8, 2: -0.8}, 4, seed) for seed in range(4)]
    apart, whole = running(2000.0), running(2000.0)
    for part in parts[:3]:
        apart.observe(part)
        assert len(apart.requests) == 0
    apart.observe(parts[3])
    rows = [
        (request, 16, sum(row[2] for part in parts for row in part.by_request if row[0] == request))
        for request in (1, 2)
    ]
    by_position = tuple(sum(part.accepted_by_position[j] for part in parts) for j in range(4))
    whole.observe(Outcome(chain(4), 16, 32, 4.0, by_position, (), tuple(rows)))
    for config in (chain(1), chain(4), chain(8)):
        assert apart.tokens_per_engine_step(config, 2) == whole.tokens_per_engine_step(config, 2)


def test_what_is_held_is_taken_in_where_another_draft_configuration_follows() -> None:
    ours = running(2000.0)
    ours.observe(interval({1: 0.8}, 4))
    ours.skip((1,))
    ours.observe(Outcome(chain(2), 64, 64, 1.0, (40, 20), (), ((2, 64, 60),)))
    assert set(ours.requests.known) == {2}  # 1 finished before what was held of it was taken in


def test_who_was_withdrawn_while_intervals_were_held_is_not_known() -> None:
    ours = running(2000.0)
    ours.observe(interval({1: 0.8, 2: 0.8}, 1))
    ours.observe(interval({2: 0.8}, 400))
    assert set(ours.requests.known) == {2}


def test_a_tree_is_scaled_as_chains_are() -> None:
    ours = running(tree=6.0)
    ours.observe(interval({1: 0.8}, 400))
    hard = ours.tokens_per_engine_step(TREE, 1)
    assert 3 < hard < 4.5
    ours.observe(Outcome(TREE, 4000, 4000, 1.0, (3000, 2000, 1500, 1500), (), ((1, 4000, 8000),)))
    assert ours.tokens_per_engine_step(TREE, 1) == pytest.approx(1 + 2, rel=0.05)
    assert ours.population.tokens_per_engine_step(TREE) == pytest.approx(6)


class Running(RuleBasedStateMachine):
    """Requests come, run with drafts or without, are told or not, finish, and are taken away."""

    @initialize(tree=st.booleans(), memory=st.sampled_from([50.0, 2000.0]))
    def build(self, tree: bool, memory: float) -> None:
        self.both = [running(memory, 6.0 if tree else None) for _ in range(2)]
        self.alive: list[int] = []
        self.known: set[int] = set()
        self.told: set[int] = set()
        self.finished: set[int] = set()
        self.next = 0
        self.sure = True

    @rule(count=st.integers(1, 40))
    def admit(self, count: int) -> None:
        self.alive += range(self.next, self.next + count)
        self.next += count

    @rule()
    def begin_rollout(self) -> None:
        for each in self.both:
            each.begin_rollout()
            assert not len(each.requests)
        self.known, self.told = set(), set()

    @rule(count=st.integers(1, 5))
    def withdraw(self, count: int) -> None:
        self.alive = self.alive[count:]

    @precondition(lambda self: self.alive)
    @rule(count=st.integers(0, 10))
    def run_off(self, count: int) -> None:
        done = self.finish(count)
        for each in self.both:
            each.skip(done)

    @precondition(lambda self: self.alive)
    @rule(
        config=st.sampled_from([chain(1), chain(4), chain(7), TREE]),
        engine_steps=st.integers(1, 70),
        rates=st.lists(st.floats(0, 1), min_size=1, max_size=5),
        count=st.integers(0, 10),
        told=st.booleans(),
    )
    def run(self, config: DraftConfig, engine_steps: int, rates: list[float], count: int, told: bool) -> None:
        ran = list(self.alive)
        rows: DraftsByRequest = tuple(
            (request, engine_steps, int(rates[request % len(rates)] * engine_steps * config.depth))
            for request in ran
        )
        total = sum(accepted for *_, accepted in rows)
        by_position = tuple(total // config.depth for _ in range(config.depth))
        done = self.finish(count)
        outcome = Outcome(
            config, engine_steps, engine_steps * len(ran), 1.0, by_position, done, rows if told else ()
        )
        for each in self.both:
            each.observe(outcome)
        self.told |= set(ran) if told else set()
        self.sure = told and engine_steps >= FEWEST_ENGINE_STEPS
        self.known = set(ran) - set(done) if self.sure else self.known

    def finish(self, count: int) -> tuple[int, ...]:
        done, self.alive = tuple(self.alive[:count]), self.alive[count:]
        self.known -= set(done)
        self.finished |= set(done)
        return done

    @invariant()
    def it_knows_those_that_were_told_and_are_not_done(self) -> None:
        if not hasattr(self, "both"):
            return
        known = set(self.both[0].requests.known)
        assert known <= self.told - self.finished
        if self.sure:  # what was held is taken in with it
            assert known == self.known

    @invariant()
    def tokens_are_what_an_engine_step_can_emit_and_the_same_each_time(self) -> None:
        for requests in (1, 300) if hasattr(self, "both") else ():
            tokens = [
                [each.tokens_per_engine_step(config, requests) for config in map(chain, range(9))]
                for each in self.both
            ]
            assert tokens[0] == tokens[1]
            assert tokens[0] == sorted(tokens[0])
            assert all(1 <= value <= 1 + depth + 1e-9 for depth, value in enumerate(tokens[0]))
            assert 1 <= self.both[0].tokens_per_engine_step(TREE, requests) <= 9 + 1e-9


Running.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestRunning = Running.TestCase
