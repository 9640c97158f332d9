"""A decision interval in compiled code: what jump_engine and Trajectory work out, in the same order."""

from __future__ import annotations

import math

import numpy as np

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
def gained(state, until, rate, variance, survival, requests, remaining, done, position, depth):
    """JumpEngine._gained: tokens of each request from `done` on after `position` engine steps, [left]."""
    bins, left = until.shape[1], len(until) - done
    tokens, along = np.empty(left), np.empty(left)
    if not depth:
        tokens[:] = position
    else:
        spread = np.empty(left)
        some, every = np.empty(bins), np.empty(bins)
        parts = np.empty((4, bins))
        whole = np.empty(left)
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
        if position <= FEW:
            few(state, until, survival, requests, remaining, done, position, depth, tokens)
    out = np.empty(left, np.int64)
    for i in range(left):
        least = float(min(position, remaining[i] - 1))
        most = float(min(position * (depth + 1), remaining[i] - 1))
        out[i] = int(min(max(tokens[i], least), most))
    return out


@compiled
def few(state, until, survival, requests, remaining, done, position, depth, tokens):
    """JumpEngine._counted: over few engine steps those who cannot reach their end are drawn step by step."""
    bins, left = until.shape[1], len(tokens)
    draws = uniforms(state, position * left)
    for i in range(left):
        if position * (depth + 1) >= remaining[i]:
            continue
        stage = 0
        for b in range(bins - 1):
            stage += until[done + i, b] <= 0
        total = position
        for k in range(position):
            u = draws[k * left + i]
            for d in range(depth):
                total += u < survival[requests[i], stage, d]
        tokens[i] = total


@compiled
def accepted(state, held, running, request_steps, emitted, left):
    """JumpEngine._accepted: drafts accepted by position, [depth], of an interval in a segment.

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
    out = np.empty(depth, np.int64)
    upto = 0
    for d in range(depth - 1, -1, -1):
        upto += drawn[d + 1]
        out[d] = upto
    least = float(request_steps)
    for d in range(depth):
        shown = np.rint(survival[d] * per + math.sqrt(left) * (out[d] - request_steps * survival[d]))
        least = min(least, min(max(shown, 0.0), float(request_steps)))
        out[d] = int(least)
    return out


@compiled
def by_request(state, until, rate, variance, finished, start, end, total, left, depth):
    """JumpEngine._by_request: engine steps and accepted drafts, [2, left], of those from `finished` on."""
    bins, n = until.shape[1], len(until) - finished
    out, most = np.empty((2, n), np.int64), np.empty(n, np.int64)
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
    return out


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
def segment_at(whole, engine_step):
    """Trajectory._segment: the first segment that ends after an engine step."""
    low, high = 0, whole.shape[1]
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
def state_at(whole, real, finish, engine_step, kv_s):
    """Trajectory.at: finished, seconds, request steps, emitted and context tokens at an engine step."""
    k = segment_at(whole, engine_step)
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
def interval(
    state, whole, real, held, finish, position, before, min_requests, most_steps, waits, limit, peak,
    all_steps, kv_s,
):  # fmt: skip
    """JumpEngine.run and _advance without `watch`: where an interval ends, and what it did.

    Returns the engine step, whether it is crowded there, the state, the share of request steps left, and the
    drafts accepted by position.
    """
    finished, _, steps_before, emitted_before, _ = before
    end, crowded = interval_end(
        whole, real, finish, position, finished, min_requests, most_steps, waits, limit, peak
    )
    after = state_at(whole, real, finish, end, kv_s)
    request_steps = after[2] - steps_before
    left = 1.0 - request_steps / max(all_steps - steps_before, 1)
    drawn = np.empty(0, np.int64)
    if held.shape[1] and request_steps:
        k = segment_at(whole, position)
        drawn = accepted(state, held[k], whole[2, k], request_steps, after[3] - emitted_before, left)
    return end, crowded, after, left, drawn
