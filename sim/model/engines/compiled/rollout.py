"""The rest of a rollout in compiled code: decision intervals, what the policy makes of them, plans.

Where nobody waits and the KV cache cannot fill up, nothing but the policy decides how a rollout goes on. Its
rule, compiled for `roll`, is asked after each interval as its scheduler would ask it. Compiled code stops
where drafting begins or ends: the time goes to another cause then, drafting has its price, and survivals of
requests may be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from tlt.sim.model.engines.compiled import memory as at
from tlt.sim.model.engines.compiled.bare import bare
from tlt.sim.model.engines.compiled.cache import compiled
from tlt.sim.model.engines.compiled.interval import interval, settle
from tlt.sim.model.engines.compiled.plan import plan
from tlt.traces.common.arrays import Floats, Ints

# What a rollout has come to, whole numbers: the decision that stands open, its draft configuration by place;
# the plan that is on, or NO_PLAN; where the interval begins.
CONFIG, MOST, LEAST, PLANNED, POSITION, FINISHED, REQUEST_STEPS = range(7)
# What was done since Python looked last; requests that are left; whether the time goes to drafting.
INTERVALS, DRAFT_STEPS, ACCEPTED, NOTED, LEFT, DRAFTING = range(7, 13)
BEGAN_POSITION, BEGAN_FINISHED, BEGAN_REQUEST_STEPS, WHOLE = range(13, 17)  # where the last interval began
# Of the run; of the plan where the interval begins; where the last one did.
NOW_S, SECONDS, EMITTED, BEGAN_SECONDS, REAL = range(5)
NO_PLAN = -1
UNLIMITED = -1  # engine steps


class Tables(NamedTuple):
    """What an engine needs to plan under any draft configuration of its policy, [configs, ...]."""

    state: int  # address of the generator's state
    ints: Ints  # the memory
    floats: Floats
    survival: Floats  # of requests, [configs, requests, bins, depth]
    depths: Ints
    fixed_s: Floats
    kv_s: Floats
    edges: Ints  # of bins


class Batch(NamedTuple):
    """The requests of a pool, [n], and those that run, [batch]."""

    running: Ints
    emitted: Ints
    length: Ints
    prompt_tokens: Ints


class Journey(NamedTuple):
    """Where a rollout stands, as above, and who has finished when since Python looked last, [batch]."""

    whole: Ints
    real: Floats
    ids: Ints
    finish_s: Floats


@compiled
def replan(tables, batch, running, whole, config):
    """Fix what the running requests have emitted, and plan under another draft configuration."""
    ints, floats, before = tables.ints, tables.floats, whole[PLANNED]
    if before != NO_PLAN and whole[POSITION]:
        depth = tables.depths[before]
        settle(
            tables.state, ints, floats, tables.survival[before], batch.emitted, batch.length,
            ints[at.BINS] if depth else 1, depth, whole[FINISHED], whole[POSITION],
        )  # fmt: skip
    depth = tables.depths[config]
    plan(
        tables.state, ints, floats, tables.survival[config], running, batch.emitted, batch.length,
        batch.prompt_tokens, tables.edges, ints[at.BINS] if depth else 1, depth, tables.fixed_s[config],
        tables.kv_s[config],
    )  # fmt: skip
    whole[PLANNED], whole[POSITION], whole[FINISHED], whole[REQUEST_STEPS] = config, 0, 0, 0


@compiled
def note(tables, whole, real, journey, seconds):
    """Take on an interval that ended at `seconds` of the plan; returns how many have finished in it."""
    ints, first = tables.ints, whole[FINISHED]
    order, ends_s = at.order_of(ints), at.finish_s_of(ints, tables.floats)
    done = ints[at.FINISHED] - first
    for k in range(done):
        to = whole[NOTED] + k
        journey.ids[to] = order[first + k]
        journey.finish_s[to] = real[NOW_S] + (ends_s[first + k] - real[SECONDS])
    whole[NOTED] += done
    whole[LEFT] -= done
    real[NOW_S] += seconds - real[SECONDS]
    real[SECONDS], real[EMITTED] = seconds, tables.floats[at.EMITTED]
    whole[POSITION], whole[FINISHED] = ints[at.POSITION], ints[at.FINISHED]
    whole[REQUEST_STEPS] = ints[at.REQUEST_STEPS]
    return done


def choose(policy, whole, requests, context):
    """Write the decision of a policy on a batch; each has its own in place of this."""
    raise NotImplementedError


def observe(policy, whole, batch, tables, steps, request_steps, decode_s, done):
    """Let a policy learn from an interval; each has its own in place of this."""
    raise NotImplementedError


def roll(tables, batch, limit_tokens, plans, tells, policy, journey):
    """Go on until all requests are done, or Python has to lay out the plan of the open decision.

    `plans`: whether plans may be laid out here at all. `limit_tokens` is never reached.
    """
    tables, batch, policy, journey = bare(tables), bare(batch), bare(policy), bare(journey)
    whole, real, ints = journey.whole, journey.real, tables.ints
    whole[INTERVALS], whole[DRAFT_STEPS], whole[ACCEPTED], whole[NOTED] = 0, 0, 0, 0
    while whole[LEFT]:
        running, config = batch.running[: whole[LEFT]], whole[CONFIG]
        depth = tables.depths[config]
        if config != whole[PLANNED]:
            if not plans or (depth > 0) != whole[DRAFTING]:
                return
            replan(tables, batch, running, whole, config)
            real[SECONDS], real[EMITTED] = 0.0, 0.0
        position, steps_before, seconds_before = whole[POSITION], whole[REQUEST_STEPS], real[SECONDS]
        whole[BEGAN_POSITION], whole[BEGAN_FINISHED] = position, whole[FINISHED]
        whole[BEGAN_REQUEST_STEPS], real[BEGAN_SECONDS] = steps_before, seconds_before
        interval(
            tables.state, ints, tables.floats, running, batch.emitted, batch.length,
            ints[at.BINS] if depth else 1, depth, position, whole[FINISHED], steps_before, real[EMITTED],
            whole[LEAST], whole[MOST], False, limit_tokens, tells and depth > 0,
        )  # fmt: skip
        seconds = tables.floats[at.SECONDS]
        done = note(tables, whole, real, journey, seconds)
        request_steps = ints[at.REQUEST_STEPS] - steps_before
        whole[INTERVALS] += 1
        if depth:
            whole[DRAFT_STEPS] += request_steps
            whole[ACCEPTED] += ints[at.ACCEPTED : at.ACCEPTED + depth].sum()
        observe(
            policy, whole, batch, tables, whole[POSITION] - position, request_steps, seconds - seconds_before,
            done,
        )  # fmt: skip
        if whole[LEFT]:
            choose(policy, whole, whole[LEFT], ints[at.CONTEXT])


def roll_with(name: str, chooses: Callable[..., Any], observes: Callable[..., Any]) -> Any:
    """Return `roll` for a policy, compiled under a name of its own."""
    names = globals() | {"choose": chooses, "observe": observes}
    return compiled(FunctionType(roll.__code__, names, name))
