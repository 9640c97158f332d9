"""Decisions of the goodput policy that change nothing, in compiled code.

Most decision intervals end with the policy going on under its draft configuration. While it does, intervals,
what it learns of them and its scores follow one another here without an event. Its own functions are compiled
as they stand, and put together as in RunningAcceptance.observe and GoodputPolicy.choose. An interval after
which it would choose anew, or somebody would have to look at the batch, is left to the policy itself: it is
run, and not told yet.
"""

from __future__ import annotations

from array import array
from math import exp
from typing import NamedTuple

import numpy as np

from tlt.sim.model.engines.compiled import memory as at
from tlt.sim.model.engines.compiled.cache import compiled
from tlt.sim.model.engines.compiled.interval import interval
from tlt.sim.model.engines.compiled.policies import MADE
from tlt.sim.model.engines.decode_closed_form import State
from tlt.traces.common.arrays import Floats, Ints
from tltsched.draft_config import OFF, DraftConfig
from tltsched.policies.base import Policy
from tltsched.policies.estimators.histories import GONE, ROW
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
    """What does not change in a run: settings of the policy, and times by draft configuration, [configs]."""

    depths: Ints
    fixed_s: Floats  # [configs, batch sizes], as far as each is known
    sizes: Ints  # how many are known
    kv_s: Floats
    average: tuple[float, ...]  # nodes of the population
    # Request-steps and engine steps of a request to forget over, variance of the population, switch_s,
    # hysteresis.
    numbers: Floats


class Believed(NamedTuple):
    """What the policy has learned of the population, by position and by draft configuration."""

    accepted: Floats
    reached: Floats
    chain_hazards: Floats  # [deepest that goes by position]
    # By draft configuration: whether it is a tree with a length of its own, that length, its hazard, and what
    # the hazard was found for last.
    is_tree: np.ndarray
    lengths: Floats
    hazards: Floats
    solved: Floats


class Stand(NamedTuple):
    """Where an engine stands: whole numbers and numbers. `again` takes it on."""

    # Intervals told, request-steps and accepted drafts in them; positions seen; engine step, finished,
    # request-steps at the begin of the interval that is not told; engine step at the begin of the first.
    whole: Ints
    # When that interval began, seconds and emitted tokens of the trajectory then; sums of the estimates of
    # those that run and of their second moments.
    real: Floats


TOLD, TOLD_STEPS, TOLD_ACCEPTED, SEEN, POSITION, FINISHED, REQUEST_STEPS, START = range(8)
BEGUN_S, SECONDS, EMITTED, FIRST, SECOND = range(5)
MEMORY, REQUEST_MEMORY, PRIOR, SWITCH_S, HYSTERESIS = range(5)


@compiled
def chain_hazards(rules, believed, positions_seen):
    """RunningAcceptance._chain_hazards_to the deepest."""
    survival = 1.0
    for position in range(len(believed.chain_hazards)):
        survival *= rate_at(believed.accepted, believed.reached, positions_seen, position)
        believed.chain_hazards[position] = hazard_of(survival, rules.average, 0.0)


@compiled
def observe_tree(rules, believed, config, depth, share, nodes, keep):
    """RunningAcceptance._observe_population and _tree_hazard of a tree with a length of its own."""
    average = rules.average
    if nodes != average:
        hazard = hazard_of_accepted(share, depth, nodes, believed.hazards[config])
        share = mean_accepted(hazard, depth, average)
    believed.lengths[config] = keep * believed.lengths[config] + (1 - keep) * (1 + share)
    now = believed.lengths[config] - 1.0
    if believed.solved[config] != now:
        believed.hazards[config] = hazard_of_accepted(now, depth, average, believed.hazards[config])
        believed.solved[config] = now


@compiled
def observe_chain(rules, believed, shares, nodes, keep, positions_seen):
    """RunningAcceptance._observe_population of a chain, and hazards; returns positions seen."""
    if nodes != rules.average:
        for position in range(len(shares)):
            known = believed.chain_hazards[position]
            hazard = hazard_of(shares[position], nodes, known)
            shares[position] = mean_survival(hazard, rules.average)
    fade(believed.accepted, believed.reached, keep, shares)
    positions_seen = max(positions_seen, len(shares))
    chain_hazards(rules, believed, positions_seen)
    return positions_seen


@compiled
def observe(rules, believed, stand, config, drawn, request_steps, rows, steps, accepted, known, finished):
    """RunningAcceptance._take_held: returns what is known of those that go on, [left * ROW]."""
    depth, numbers = len(drawn), rules.numbers
    first, second, known_steps, new_steps = weigh(rows, steps, known)
    middle, variance = normal_of(first, second, known_steps, new_steps, numbers[PRIOR])
    nodes = nodes_of(middle, variance)
    keep = exp(-request_steps / numbers[MEMORY])
    hazards = np.empty(depth)
    if believed.is_tree[config]:
        observe_tree(rules, believed, config, depth, drawn.sum() / request_steps, nodes, keep)
        for position in range(depth):
            hazards[position] = believed.hazards[config] * (position + 1)
    else:
        seen = stand.whole[SEEN]
        stand.whole[SEEN] = observe_chain(rules, believed, drawn / request_steps, nodes, keep, seen)
        hazards[:] = believed.chain_hazards[:depth]
    rows[:finished] = GONE
    after = np.empty((len(rows) - finished) * ROW)
    stand.real[FIRST], stand.real[SECOND] = learn(
        rows, steps, accepted, known, after, hazards, numbers[REQUEST_MEMORY], numbers[PRIOR]
    )
    return after


@compiled
def tokens_of(rules, believed, stand, requests):
    """RunningAcceptance.tokens_per_engine_steps of a batch of which all is known, [configs]."""
    depths = rules.depths
    middle, variance = normal_of(stand.real[FIRST], stand.real[SECOND], requests, 0, rules.numbers[PRIOR])
    nodes = nodes_of(middle, variance)
    tokens, of_chain = np.empty(len(depths)), np.empty(len(believed.chain_hazards))
    tokens_of_trees(believed.hazards, depths, nodes, tokens)
    tokens_of_chains(believed.chain_hazards, nodes, of_chain)
    for config in range(len(depths)):
        if not believed.is_tree[config]:
            tokens[config] = of_chain[depths[config] - 1] if depths[config] else 1.0
    return tokens


@compiled
def goes_on(rules, config, requests, context, tokens):
    """GoodputPolicy.choose: whether the draft configuration in use is kept."""
    best = own = -np.inf
    for other in range(len(tokens)):
        fixed_s = fixed_of(rules.fixed_s[other, : rules.sizes[other]], requests)
        seconds = fixed_s + rules.kv_s[other] * context
        if other != config:
            seconds += rules.numbers[SWITCH_S]
        score = requests * tokens[other] / seconds
        best = max(best, score)
        if other == config:
            own = score
    return not best > own * (1 + rules.numbers[HYSTERESIS])


@compiled
def saved(believed, config):
    """Return copies of what an interval under a draft configuration may change."""
    return (
        believed.accepted.copy(), believed.reached.copy(), believed.chain_hazards.copy(),
        believed.lengths[config], believed.hazards[config], believed.solved[config],
    )  # fmt: skip


@compiled
def restore(believed, config, before):
    """Undo what was learned since."""
    believed.accepted[:], believed.reached[:], believed.chain_hazards[:] = before[0], before[1], before[2]
    believed.lengths[config], believed.hazards[config], believed.solved[config] = (
        before[3], before[4], before[5],
    )  # fmt: skip


@compiled
def again(
    state, ints, floats, running, emitted, length, bins, depth, min_requests, most_steps, kv_tokens,
    beyond_tokens, rules, believed, stand, config, rows, known, tokens, finish_s, known_after,
):  # fmt: skip
    """Run intervals, and tell the policy of each after which it goes on as before; the last one is not told.

    rows: where each request from the first finish on stands in `known`, [left]; tokens: those of each draft
    configuration, [configs], which hold while nothing is drafted. Writes who finished when into `finish_s`,
    in order of finish, and what is known of those that go on into `known_after`.
    """
    whole, real, order = stand.whole, stand.real, at.order_of(ints)[: ints[at.PLANNED]]
    ends_s = at.finish_s_of(ints, floats)
    drawn, shares = ints[at.ACCEPTED : at.ACCEPTED + depth], at.shares_of(ints)
    while True:
        position, finished, steps = whole[POSITION], whole[FINISHED], whole[REQUEST_STEPS]
        begun_s, seconds = real[BEGUN_S], real[SECONDS]
        limit = kv_tokens - len(running) * beyond_tokens
        interval(
            state, ints, floats, running, emitted, length, bins, depth, position, finished, steps,
            real[EMITTED], min_requests, most_steps, False, limit, depth > 0,
        )  # fmt: skip
        done, left = ints[at.FINISHED] - finished, len(order) - ints[at.FINISHED]
        engine_steps, request_steps = ints[at.POSITION] - position, ints[at.REQUEST_STEPS] - steps
        if ints[at.CROWDED] or not left or not engine_steps:
            return
        if (depth and engine_steps < FEWEST) or (not depth and done):
            return
        context = ints[at.CONTEXT]
        if depth:
            before, seen, first, second = saved(believed, config), whole[SEEN], real[FIRST], real[SECOND]
            after = observe(
                rules, believed, stand, config, drawn, request_steps, rows, shares[0, : left + done],
                shares[1, : left + done], known, done,
            )  # fmt: skip
            if not goes_on(rules, config, left, context, tokens_of(rules, believed, stand, left)):
                restore(believed, config, before)
                whole[SEEN], real[FIRST], real[SECOND] = seen, first, second
                return
            known, rows = after, np.arange(left)
            known_after[: len(known)] = known
        elif not goes_on(rules, config, left, context, tokens):
            return
        for k in range(finished, finished + done):
            finish_s[k] = begun_s + (ends_s[k] - seconds)
        real[BEGUN_S], real[SECONDS], real[EMITTED] = (
            begun_s + (floats[at.SECONDS] - seconds), floats[at.SECONDS], floats[at.EMITTED],
        )  # fmt: skip
        whole[POSITION], whole[FINISHED], whole[REQUEST_STEPS] = (
            position + engine_steps, finished + done, steps + request_steps,
        )  # fmt: skip
        running = running[:left]
        whole[TOLD] += 1
        whole[TOLD_STEPS] += request_steps
        if depth:
            whole[TOLD_ACCEPTED] += drawn.sum()


class GoodputAhead:
    """What `again` needs of a goodput policy, and what it has the policy know afterwards."""

    def __init__(self, policy: GoodputPolicy, times: StepTimeTable) -> None:
        self._policy = policy
        estimate, requests, configs = policy.acceptance, policy.acceptance.requests, policy.draft_configs
        rows = [times.rows[config] for config in configs]
        fixed_s = np.zeros((len(rows), max(len(row.fixed_s) for row in rows)))
        for config, row in enumerate(rows):
            fixed_s[config, : len(row.fixed_s)] = row.fixed_s
        self.rules = Rules(
            np.array([config.depth for config in configs], np.int64),
            fixed_s,
            np.array([len(row.fixed_s) for row in rows], np.int64),
            np.array([row.kv_s_per_token for row in rows]),
            estimate.average,
            np.array(
                [
                    estimate.population.memory_request_steps, requests.memory_steps, requests.prior_variance,
                    policy.switch_s, policy.config.hysteresis,
                ]
            ),
        )  # fmt: skip

    def takes(self, draft_config: DraftConfig) -> bool:
        """Return whether nothing is about to happen for the first time under a draft configuration in use."""
        policy, estimate = self._policy, self._policy.acceptance
        if draft_config != policy.current or estimate.held:
            return False
        if draft_config == OFF:
            return True
        if not len(estimate.requests):
            return False
        if draft_config.is_chain:
            return draft_config.depth <= len(estimate.population.accepted)
        return estimate.population.as_tree(draft_config)

    def config(self, draft_config: DraftConfig) -> int:
        """Return the place of a draft configuration in arrays, [configs]."""
        return self._policy.draft_configs.index(draft_config)

    def tokens(self, requests: int) -> Floats:
        """Return the tokens of a request in an engine step of each draft configuration, [configs]."""
        policy = self._policy
        return np.array(policy.acceptance.tokens_per_engine_steps(policy.draft_configs, requests))

    def believed(self) -> Believed:
        """Return what the policy has learned of the population."""
        estimate, configs = self._policy.acceptance, self._policy.draft_configs
        population = estimate.population
        is_tree = np.array([population.as_tree(config) for config in configs])
        solved = [estimate.solved.get(config, (-1.0, 0.0)) for config in configs]
        return Believed(
            np.array(population.accepted),
            np.array(population.reached),
            np.array(estimate.chain_hazards),
            is_tree,
            np.array([population.tree_length.get(config, 0.0) for config in configs]),
            np.array([hazard for _, hazard in solved]),
            np.array([accepted for accepted, _ in solved]),
        )

    def stand(self, position: int, state: State, begun_s: float) -> Stand:
        """Return where an engine stands that is at an engine step of its trajectory."""
        seen, moments = self._policy.acceptance.population.positions_seen, self._policy.acceptance.requests
        return Stand(
            np.array([0, 0, 0, seen, position, state.finished, state.request_steps, position], np.int64),
            np.array([begun_s, state.seconds, state.emitted_tokens, moments.first, moments.second]),
        )

    def rows_of(self, requests: tuple[int, ...]) -> tuple[Ints, Floats]:
        """Return the rows of requests, [n], and what is known in rows."""
        known = self._policy.acceptance.requests
        return np.array(known.rows_of(requests)), np.array(known.rows)

    def told_off(self, engine_steps: int) -> None:
        """Have the policy know of engine steps without drafts in which nobody finished."""
        self._policy.engine_steps_off += engine_steps

    def told(
        self, draft_config: DraftConfig, believed: Believed, stand: Stand, requests: tuple[int, ...],
        rows: Floats,
    ) -> None:  # fmt: skip
        """Have the policy know what it would have learned: of those that go on, [n], rows [n * ROW]."""
        policy, estimate = self._policy, self._policy.acceptance
        if draft_config.is_chain:
            estimate.population.know(
                believed.accepted.tolist(), believed.reached.tolist(), int(stand.whole[SEEN])
            )
            estimate.know_chains(believed.chain_hazards.tolist())
        else:
            config = self.config(draft_config)
            estimate.know_tree(draft_config, float(believed.lengths[config]), float(believed.hazards[config]))
        first, second = stand.real[FIRST : SECOND + 1].tolist()
        estimate.requests.know(requests, array("d", rows.tobytes()), first, second)
        policy.engine_steps_off = 0


def ahead_of(policy: Policy) -> GoodputAhead | None:
    """Return what a policy needs to go on in compiled code; None: it is none that can."""
    if not isinstance(policy, GoodputPolicy) or not isinstance(policy.times, StepTimeTable):
        return None
    if not policy.wants_requests or policy.config.probe_every_engine_steps:
        return None
    return GoodputAhead(policy, policy.times)
