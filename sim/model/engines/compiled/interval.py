"""A decision interval in compiled code: what jump_engine and Trajectory work out, in the same order."""

from __future__ import annotations

import math

import numpy as np

from tlt.sim.model.engines.compiled import memory as at
from tlt.sim.model.engines.compiled.cache import compiled
from tlt.sim.model.engines.compiled.numbers import TINY, multinomial, normals, pairwise, uniforms
from tlt.sim.model.engines.jump_engine import FEW_ENGINE_STEPS

FEW = FEW_ENGINE_STEPS


@compiled
def passed(until, i, position, out):
    """Stages.engine_steps of one request: how many of the first engine steps fall into each stage."""
    before = 0
    for b in range(until.shape[1]):
        upto = min(until[i, b], position)
        out[b] = upto - before
        before = upto


@compiled
def settle(state, ints, floats, survival, emitted, length, bins, depth, done, position):
    """JumpEngine._settle: add to `emitted` what requests from the `done`-th on gained in `position` steps.

    What each gained is left in the second of the shares, [left].
    """
    until, rate, variance = at.stages_of(ints, floats, bins)
    order, left = at.order_of(ints), ints[at.PLANNED] - done
    tokens = np.empty(left)
    if not depth:
        tokens[:] = position
    else:
        bridge(state, until, rate, variance, done, position, tokens)
        if position <= FEW:
            few(state, until, survival, depth, order, emitted, length, done, position, tokens)
    out = at.shares_of(ints)[1]
    for i in range(left):
        row = order[done + i]
        remaining = length[row] - emitted[row]
        least = float(min(position, remaining - 1))
        most = float(min(position * (depth + 1), remaining - 1))
        out[i] = int(min(max(tokens[i], least), most))
        emitted[row] += out[i]


@compiled
def bridge(state, until, rate, variance, done, position, tokens):
    """JumpEngine._bridge, rounded: tokens of each request from `done` on after `position` engine steps."""
    left, bins = len(tokens), until.shape[1]
    along, spread, whole = np.empty(left), np.empty(left), np.empty(left)
    some, every = np.empty(bins, np.int64), np.empty(bins, np.int64)
    parts = np.empty((4, bins))
    for i in range(left):
        row = done + i
        passed(until, row, position, some)
        passed(until, row, until[row, bins - 1], every)
        for b in range(bins):
            parts[0, b], parts[1, b] = every[b] * rate[row, b], some[b] * rate[row, b]
            parts[2, b], parts[3, b] = some[b] * variance[row, b], every[b] * variance[row, b]
        whole[i] = pairwise(parts[0], bins)
        along[i] = pairwise(parts[1], bins)
        before, total = pairwise(parts[2], bins), pairwise(parts[3], bins)
        spread[i] = np.sqrt(before * (total - before) / max(total, TINY))
    z = normals(state, 3 * left)
    for i in range(left):
        x = whole[i] - along[i] + spread[i] * z[i]
        y, w = spread[i] * z[left + i], spread[i] * z[2 * left + i]
        tokens[i] = np.rint(whole[i] - np.sqrt(x * x + y * y + w * w))


@compiled
def few(state, until, survival, depth, order, emitted, length, done, position, tokens):
    """JumpEngine._counted: over few engine steps those who cannot reach their end are drawn step by step."""
    bins, left = until.shape[1], len(tokens)
    draws = uniforms(state, position * left)
    for i in range(left):
        row = order[done + i]
        if position * (depth + 1) >= length[row] - emitted[row]:
            continue
        stage = 0
        for b in range(bins - 1):
            stage += until[done + i, b] <= 0
        total = position
        for k in range(position):
            u = draws[k * left + i]
            for d in range(depth):
                total += u < survival[row, stage, d]
        tokens[i] = total


@compiled
def accepted(state, held, running, request_steps, emitted, left, out):
    """JumpEngine._accepted: drafts accepted by position, into `out`, of an interval in a segment.

    held: survivals of all that run in the segment, [depth].
    """
    depth = len(held)
    survival, chance = np.empty(depth), np.empty(depth + 1)
    for d in range(depth):
        survival[d] = min(max(held[d] / running, 0.0), 1.0)
    whole = pairwise(survival, depth)
    per = (emitted - request_steps) / whole if whole else 0.0
    before = 1.0
    for d in range(depth):
        chance[d] = max(-(survival[d] - before), 0.0)
        before = survival[d]
    chance[depth] = max(-(0.0 - before), 0.0)
    drawn = multinomial(state, request_steps, chance)
    upto = 0
    for d in range(depth - 1, -1, -1):
        upto += drawn[d + 1]
        out[d] = upto
    least = float(request_steps)
    for d in range(depth):
        shown = np.rint(survival[d] * per + math.sqrt(left) * (out[d] - request_steps * survival[d]))
        least = min(least, min(max(shown, 0.0), float(request_steps)))
        out[d] = int(least)


@compiled
def by_request(state, until, rate, variance, finished, start, end, total, left, depth, out):
    """JumpEngine._by_request: engine steps and accepted drafts of those from `finished` on, into `out`."""
    bins, n = until.shape[1], out.shape[1]
    most = np.empty(n, np.int64)
    drawn, spread = np.empty(n), np.empty(n)
    parts = np.empty((2, bins))
    first, last = np.empty(bins, np.int64), np.empty(bins, np.int64)
    for i in range(n):
        row = finished + i
        passed(until, row, start, first)
        passed(until, row, end, last)
        steps = 0
        for b in range(bins):
            here = last[b] - first[b]
            steps += here
            parts[0, b], parts[1, b] = here * variance[row, b], here * rate[row, b]
        spread[i] = pairwise(parts[0], bins)
        drawn[i] = pairwise(parts[1], bins) - steps
        out[0, i], most[i] = steps, depth * steps
    z = normals(state, n)
    for i in range(n):
        drawn[i] += np.sqrt(left * spread[i]) * z[i]
    missing, all_variance = total - pairwise(drawn, n), max(pairwise(spread, n), TINY)
    for i in range(n):
        drawn[i] += missing * spread[i] / all_variance
    share_out(drawn, total, most, out[1])


@compiled
def share_out(wanted, total, most, whole):
    """jump_engine.shared_out: whole numbers up to `most` that sum to `total`, near the wanted ones."""
    n, have = len(wanted), 0
    for i in range(n):
        whole[i] = int(min(max(np.rint(wanted[i]), 0.0), float(most[i])))
        have += whole[i]
    while have != total:
        step = 1 if total > have else -1
        room = np.empty(n, np.int64)
        off = np.empty(n)
        count = 0
        for i in range(n):
            if (step > 0 and whole[i] < most[i]) or (step < 0 and whole[i] > 0):
                room[count], off[count] = i, step * (whole[i] - wanted[i])
                count += 1
        order = np.argsort(off[:count], kind="mergesort")
        for k in range(min(count, abs(total - have))):
            whole[room[order[k]]] += step
        have = whole.sum()


@compiled
def segment_at(whole, events, engine_step):
    """Trajectory._segment: the first segment that ends after an engine step."""
    low, high = 0, events
    while low < high:
        middle = (low + high) // 2
        if whole[0, middle] > engine_step:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def interval_end(whole, real, finish, position, finished, min_requests, most_steps, waits, limit, peak):
    """JumpEngine._end: the engine step at which an interval ends, and whether a full KV cache ends it."""
    last = len(finish) - max(min_requests, 1)
    end = finish[last]
    if most_steps >= 0:
        end = min(end, position + most_steps)
    if waits:
        end = min(end, finish[finished])
    if peak > limit and len(finish) - finished > 1:
        k = 0
        while real[1, k] + real[0, k] * whole[0, k] <= limit:
            k += 1
        full = max(int((limit - real[1, k]) / real[0, k]), whole[1, k])
        if full < end:
            return max(full, position), True
    return max(end, position), False


@compiled
def state_at(whole, real, events, finish, engine_step, kv_s):
    """Trajectory.at: finished, seconds, request steps, emitted and context tokens at an engine step."""
    k = segment_at(whole, events, engine_step)
    seconds, requests, emitted, context = 0.0, 0, 0.0, 0.0
    if k:
        seconds, requests, emitted = real[3, k - 1], whole[3, k - 1], real[4, k - 1]
    done = np.searchsorted(finish, engine_step, side="right")
    if done < len(finish):
        start, growth = whole[1, k], real[0, k]
        steps = engine_step - start
        seconds += steps * real[2, k] + kv_s * growth * (engine_step + start - 1) * steps * 0.5
        requests += steps * whole[2, k]
        emitted += steps * growth
        context = real[1, k] + growth * engine_step
    return done, seconds, requests, emitted, context


@compiled
def retire(running, emitted, length, order, finished, done):
    """Sort those who finish behind the others in `running`, all as they stood: their tokens are all there."""
    for k in range(finished, done):
        emitted[order[k]] = length[order[k]]
    ended = np.empty(done - finished, np.int64)
    kept = 0
    for i in range(len(running)):
        if emitted[running[i]] < length[running[i]]:
            running[kept] = running[i]
            kept += 1
        else:
            ended[i - kept] = running[i]
    running[kept:] = ended


@compiled
def interval(
    state, ints, floats, running, emitted, length, bins, depth, position, finished, steps_before,
    emitted_before, min_requests, most_steps, waits, limit, tells,
):  # fmt: skip
    """JumpEngine.run and _advance without `watch`: where an interval ends, and what it did.

    Leaves the state in front of the memory, accepted drafts by position behind it, and with `tells` the
    shares of requests.
    """
    order, finish = at.order_of(ints), at.finish_of(ints)[: ints[at.PLANNED]]
    whole, real, held = at.segments_of(ints, floats, depth)
    events, kv_s = ints[at.EVENTS], floats[at.KV_S]
    end, crowded = interval_end(
        whole, real, finish, position, finished, min_requests, most_steps, waits, limit, floats[at.PEAK]
    )
    done, seconds, steps_after, emitted_after, context = state_at(whole, real, events, finish, end, kv_s)
    request_steps = steps_after - steps_before
    left = 1.0 - request_steps / max(ints[at.ALL_STEPS] - steps_before, 1)
    if depth and request_steps:
        drawn = ints[at.ACCEPTED : at.ACCEPTED + depth]
        k = segment_at(whole, events, position)
        accepted(state, held[k], whole[2, k], request_steps, emitted_after - emitted_before, left, drawn)
        if tells and end > position:
            total = drawn.sum()
            until, rate, variance = at.stages_of(ints, floats, bins)
            out = at.shares_of(ints)[:, : len(finish) - finished]
            planned = until[: len(finish)]
            by_request(state, planned, rate, variance, finished, position, end, total, left, depth, out)
    if done > finished:
        retire(running, emitted, length, order, finished, done)
    ints[at.POSITION], ints[at.FINISHED], ints[at.REQUEST_STEPS] = end, done, steps_after
    ints[at.CROWDED], ints[at.CONTEXT] = crowded, int(np.rint(context))
    floats[at.SECONDS], floats[at.EMITTED], floats[at.HELD] = seconds, emitted_after, context
