"""The goodput policy in compiled code: what it learns of an interval, and its scores.

Its own functions of numbers are compiled as they stand, and put together here as in RunningAcceptance and
GoodputPolicy. What is known of the population is lent to compiled code for a rollout; what is known of the
requests that run lives and dies there. An interval too short to be taken in by itself can only be the last
one of a rollout: the policy is told of it in Python.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import exp
from typing import NamedTuple

import numpy as np

from tlt.sim.model.engines.compiled import memory as at
from tlt.sim.model.engines.compiled.cache import compiled
from tlt.sim.model.engines.compiled.policies import MADE
from tlt.sim.model.engines.compiled.rollout import CONFIG, FINISHED, LEAST, MOST, roll_with
from tlt.sim.model.engines.engine import DecisionInterval
from tlt.traces.common.arrays import Floats, Ints
from tltsched.draft_config import DraftConfig
from tltsched.policies.base import Outcome, Policy
from tltsched.policies.estimators.histories import GONE, NEW, ROW
from tltsched.policies.estimators.running import FEWEST_ENGINE_STEPS
from tltsched.policies.goodput import GoodputPolicy
from tltsched.step_times import StepTimeTable

FEWEST = FEWEST_ENGINE_STEPS

fade, rate_at, fixed_of = MADE["fade"], MADE["rate_at"], MADE["fixed_of"]
weigh, learn, normal_of, nodes_of = MADE["weigh"], MADE["learn"], MADE["normal_of"], MADE["nodes_of"]
hazard_of, hazard_of_accepted = MADE["hazard_of"], MADE["hazard_of_accepted"]
mean_survival, mean_accepted = MADE["mean_survival"], MADE["mean_accepted"]
tokens_of_chains, tokens_of_trees = MADE["tokens_of_chains"], MADE["tokens_of_trees"]


class Rules(NamedTuple):
    """What does not change in a run. Draft configurations go by their order in the policy, [configs]."""

    places: Ints  # of each in the engine
    configs: Ints  # of each place of the engine
    depths: Ints
    chains: np.ndarray  # whether each is one
    fixed_s: Floats  # [configs, batch sizes], as far as each is known
    sizes: Ints  # how many are known
    kv_s: Floats
    average: tuple[float, ...]  # nodes of the population
    # Request-steps and engine steps of a request to forget over, variance of the population, switch_s,
    # hysteresis, engine steps of a decision.
    numbers: Floats


class Believed(NamedTuple):
    """What the policy has learned of the population, by position and by draft configuration, [configs]."""

    accepted: Floats  # room for the deepest; POSITIONS of them are known
    reached: Floats
    chain_hazards: Floats  # up to the deepest that goes by position
    is_tree: np.ndarray  # a tree with a length of its own, that length, its hazard, and what that is for
    lengths: Floats
    hazards: Floats
    solved: Floats


class Known(NamedTuple):
    """What is known of requests by index into the submission, [n], and what that sums to."""

    rows: Floats  # [n * ROW]
    has: np.ndarray
    sums: Floats
    # How many are known; positions known, seen; how many chain hazards are; whether the last interval is not
    # told.
    counts: Ints


class Goodput(NamedTuple):
    """The policy as compiled code takes it."""

    rules: Rules
    believed: Believed
    known: Known


MEMORY, REQUEST_MEMORY, PRIOR, SWITCH_S, HYSTERESIS, DECISION = range(6)
FIRST, SECOND = range(2)
RUNNING, POSITIONS, SEEN, HAZARDS, UNTOLD = range(5)


@compiled
def rate(believed, counts, position):
    """AcceptanceEstimate._rate."""
    n = counts[POSITIONS]
    return rate_at(believed.accepted[:n], believed.reached[:n], counts[SEEN], position)


@compiled
def chain_length(believed, counts, depth):
    """AcceptanceEstimate.tokens_per_engine_step of what goes by position."""
    survival, tokens = 1.0, 1.0
    for position in range(depth):
        survival *= rate(believed, counts, position)
        tokens += survival
    return tokens


@compiled
def tree_hazard(rules, believed, config):
    """RunningAcceptance._tree_hazard."""
    now = believed.lengths[config] - 1.0
    if believed.solved[config] != now:
        believed.hazards[config] = hazard_of_accepted(
            now, rules.depths[config], rules.average, believed.hazards[config]
        )
        believed.solved[config] = now
    return believed.hazards[config]


@compiled
def chain_hazards(rules, believed, counts, depth):
    """RunningAcceptance._chain_hazards_to: those up to a depth are there afterwards."""
    if counts[HAZARDS] >= depth:
        return
    survival = 1.0
    for position in range(depth):
        survival *= rate(believed, counts, position)
        if position >= counts[HAZARDS]:
            believed.chain_hazards[position] = hazard_of(survival, rules.average, 0.0)
    counts[HAZARDS] = depth


@compiled
def observe_tree(rules, believed, counts, config, share, nodes, keep):
    """RunningAcceptance._observe_population of a tree."""
    depth, before, start = rules.depths[config], believed.lengths[config], 0.0
    if believed.is_tree[config]:
        start = tree_hazard(rules, believed, config)
    else:
        before = chain_length(believed, counts, depth)
    if nodes != rules.average:
        hazard = hazard_of_accepted(share, depth, nodes, start)
        share = mean_accepted(hazard, depth, rules.average)
    believed.lengths[config] = keep * before + (1 - keep) * (1 + share)
    believed.is_tree[config] = True


@compiled
def observe_chain(rules, believed, counts, shares, nodes, keep):
    """RunningAcceptance._observe_population of a chain."""
    depth, accepted, reached = len(shares), believed.accepted, believed.reached
    if nodes != rules.average:
        chain_hazards(rules, believed, counts, depth)
        for position in range(depth):
            hazard = hazard_of(shares[position], nodes, believed.chain_hazards[position])
            shares[position] = mean_survival(hazard, rules.average)
    for position in range(counts[POSITIONS], depth):
        here = rate(believed, counts, position)
        reached[position] = accepted[position - 1]
        accepted[position] = accepted[position - 1] * here
        counts[POSITIONS] = position + 1
    fade(accepted, reached, keep, shares)
    counts[SEEN] = max(counts[SEEN], depth)


@compiled
def forget(known, row):
    """RequestEstimates.drop of one request."""
    if known.has[row]:
        known.has[row] = False
        estimate, variance = known.rows[row * ROW], known.rows[row * ROW + 1]
        known.sums[FIRST] -= estimate
        known.sums[SECOND] -= estimate * estimate + variance
        known.counts[RUNNING] -= 1


@compiled
def observe(policy, whole, _batch, tables, steps, request_steps, _decode_s, done):
    """GoodputPolicy.observe of an interval in which `done` have finished."""
    rules, believed, known = policy.rules, policy.believed, policy.known
    config, first, ints, counts = (
        rules.configs[whole[CONFIG]],
        whole[FINISHED] - done,
        tables.ints,
        known.counts,
    )
    order, depth = at.order_of(ints)[first : ints[at.PLANNED]], rules.depths[config]
    if not steps:
        return
    if not depth:
        for row in order[:done]:
            forget(known, row)
        return
    if steps < FEWEST:
        counts[UNTOLD] = True
        return
    n, numbers, shares = len(order), rules.numbers, at.shares_of(ints)
    rows, engine_steps, accepted = np.empty(n, np.int64), shares[0, :n], shares[1, :n]
    for i in range(n):
        rows[i] = order[i] if known.has[order[i]] else NEW
    middle, variance = normal_of(*weigh(rows, engine_steps, known.rows), numbers[PRIOR])
    nodes = nodes_of(middle, variance)
    keep, drawn = exp(-request_steps / numbers[MEMORY]), ints[at.ACCEPTED : at.ACCEPTED + depth]
    if rules.chains[config]:
        observe_chain(rules, believed, counts, drawn / request_steps, nodes, keep)
    else:
        observe_tree(rules, believed, counts, config, drawn.sum() / request_steps, nodes, keep)
    counts[HAZARDS] = 0
    hazards = np.empty(depth)
    if rules.chains[config]:
        chain_hazards(rules, believed, counts, depth)
        hazards[:] = believed.chain_hazards[:depth]
    else:
        hazard = tree_hazard(rules, believed, config)
        for position in range(depth):
            hazards[position] = hazard * (position + 1)
    rows[:done] = GONE
    after = np.empty((n - done) * ROW)
    known.sums[FIRST], known.sums[SECOND] = learn(
        rows, engine_steps, accepted, known.rows, after, hazards, numbers[REQUEST_MEMORY], numbers[PRIOR]
    )
    known.has[:] = False
    for i in range(n - done):
        row = order[done + i]
        known.has[row] = True
        known.rows[row * ROW : (row + 1) * ROW] = after[i * ROW : (i + 1) * ROW]
    counts[RUNNING] = n - done


@compiled
def tokens_of(rules, believed, known, requests, tokens):
    """RunningAcceptance.tokens_per_engine_steps, into `tokens`, [configs]."""
    depths, counts, deepest = rules.depths, known.counts, 0
    if not counts[RUNNING]:
        for config in range(len(depths)):
            own = believed.is_tree[config]
            tokens[config] = (
                believed.lengths[config] if own else chain_length(believed, counts, depths[config])
            )
        return
    middle, variance = normal_of(
        known.sums[FIRST],
        known.sums[SECOND],
        counts[RUNNING],
        requests - counts[RUNNING],
        rules.numbers[PRIOR],
    )
    nodes = nodes_of(middle, variance)
    for config in range(len(depths)):
        if believed.is_tree[config]:
            tree_hazard(rules, believed, config)
        else:
            deepest = max(deepest, depths[config])
    tokens_of_trees(believed.hazards, depths, nodes, tokens)
    chain_hazards(rules, believed, counts, deepest)
    of_chain = np.empty(deepest)
    tokens_of_chains(believed.chain_hazards[:deepest], nodes, of_chain)
    for config in range(len(depths)):
        if not believed.is_tree[config]:
            tokens[config] = of_chain[depths[config] - 1] if depths[config] else 1.0


@compiled
def choose(policy, whole, requests, context):
    """GoodputPolicy.choose."""
    rules = policy.rules
    numbers, current = rules.numbers, rules.configs[whole[CONFIG]]
    tokens = np.empty(len(rules.depths))
    tokens_of(rules, policy.believed, policy.known, requests, tokens)
    best, own, chosen = -np.inf, 0.0, current
    for config in range(len(tokens)):
        seconds = (
            fixed_of(rules.fixed_s[config, : rules.sizes[config]], requests) + rules.kv_s[config] * context
        )
        if config != current:
            seconds += numbers[SWITCH_S]
        score = requests * tokens[config] / seconds
        if score > best:
            best, chosen = score, config
        if config == current:
            own = score
    if best > own * (1 + numbers[HYSTERESIS]):
        whole[CONFIG] = rules.places[chosen]
    whole[MOST], whole[LEAST] = int(numbers[DECISION]), 1


ROLL = roll_with("roll_goodput", choose, observe)


class GoodputPilot:
    """A goodput policy that goes on in compiled code to the end of a rollout."""

    roll = staticmethod(ROLL)
    tells = True

    def __init__(self, policy: GoodputPolicy, times: StepTimeTable, places: dict[DraftConfig, int]) -> None:
        """`places` are those that the engine gives draft configurations."""
        self._policy = policy
        estimate, configs = policy.acceptance, policy.draft_configs
        rows = [times.rows[config] for config in configs]
        fixed_s = np.zeros((len(rows), max(len(row.fixed_s) for row in rows)))
        for config, row in enumerate(rows):
            fixed_s[config, : len(row.fixed_s)] = row.fixed_s
        of_place = {place: config for config, place in enumerate(places[each] for each in configs)}
        self._rules = Rules(
            np.array([places[config] for config in configs], np.int64),
            np.array([of_place.get(place, -1) for place in places.values()], np.int64),
            np.array([config.depth for config in configs], np.int64),
            np.array([config.is_chain for config in configs]),
            fixed_s,
            np.array([len(row.fixed_s) for row in rows], np.int64),
            np.array([row.kv_s_per_token for row in rows]),
            estimate.average,
            np.array(
                [
                    estimate.population.memory_request_steps, estimate.requests.memory_steps,
                    estimate.requests.prior_variance, policy.switch_s, policy.config.hysteresis,
                    policy.config.decision_engine_steps,
                ]
            ),
        )  # fmt: skip
        self._lent: Goodput | None = None

    def takes(self, draft_config: DraftConfig) -> bool:
        """Return whether a rollout may go on in compiled code behind this decision."""
        policy = self._policy
        return draft_config == policy.current and not policy.acceptance.held

    def begin(self, requests: Ints) -> Goodput:
        """Return the policy as it stands behind the decision that is open; `requests` are ids, [n]."""
        estimate, n, deepest = self._policy.acceptance, len(requests), int(self._rules.depths.max())
        known, positions = estimate.requests, len(estimate.population.accepted)
        rows, has = np.zeros(n * ROW), np.zeros(n, bool)
        if known.known:
            for place, request in enumerate(requests.tolist()):
                row = known.known.get(request, NEW) * ROW
                if row >= 0:
                    rows[place * ROW : (place + 1) * ROW], has[place] = known.rows[row : row + ROW], True
        counts = [len(known), positions, estimate.population.positions_seen, 0, 0]
        self._lent = Goodput(
            self._rules,
            self._believed(max(deepest, positions)),
            Known(rows, has, np.array([known.first, known.second]), np.array(counts, np.int64)),
        )
        return self._lent

    def _believed(self, positions: int) -> Believed:
        estimate, configs = self._policy.acceptance, self._policy.draft_configs
        population = estimate.population
        accepted, reached = np.zeros(positions), np.zeros(positions)
        accepted[: len(population.accepted)] = population.accepted
        reached[: len(population.reached)] = population.reached
        solved = [estimate.solved.get(config, (-1.0, 0.0)) for config in configs]
        return Believed(
            accepted,
            reached,
            np.zeros(positions),
            np.array([population.as_tree(config) for config in configs]),
            np.array([population.tree_length.get(config, 0.0) for config in configs]),
            np.array([hazard for _, hazard in solved]),
            np.array([accepted for accepted, _ in solved]),
        )

    def end(self, requests: Ints, interval: Callable[[], DecisionInterval]) -> None:
        """Have the policy know what was learned, and learn from the last interval if it is not told.

        requests: ids by index into the submission, [n].
        """
        assert self._lent is not None
        _, believed, known = self._lent
        self._lent, estimate = None, self._policy.acceptance
        positions, seen = known.counts[POSITIONS : SEEN + 1].tolist()
        estimate.population.know(
            believed.accepted[:positions].tolist(), believed.reached[:positions].tolist(), seen
        )
        trees = zip(
            self._policy.draft_configs, believed.is_tree.tolist(), believed.lengths.tolist(),
            believed.solved.tolist(), believed.hazards.tolist(), strict=True,
        )  # fmt: skip
        estimate.know_trees([(tree, *rest) for tree, own, *rest in trees if own])
        left = np.flatnonzero(known.has)
        rows = known.rows.reshape(-1, ROW)[left]
        first, second = known.sums.tolist()
        estimate.requests.know(tuple(requests[left].tolist()), array("d", rows.tobytes()), first, second)
        if known.counts[UNTOLD]:
            last = interval()
            self._policy.observe(
                Outcome(
                    last.draft_config, last.engine_steps, last.request_steps, last.decode_s,
                    last.accepted_by_position, tuple(requests[last.finished].tolist()), last.by_request,
                )
            )  # fmt: skip


def goodput_of(policy: Policy, places: dict[DraftConfig, int]) -> GoodputPilot | None:
    """Return what a policy needs to go on in compiled code; None: it is none that can."""
    if not isinstance(policy, GoodputPolicy) or not isinstance(policy.times, StepTimeTable):
        return None
    config = policy.config
    if not policy.wants_requests or config.probe_every_engine_steps or config.decision_engine_steps < FEWEST:
        return None
    return GoodputPilot(policy, policy.times, places)
