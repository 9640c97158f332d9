"""A plan in compiled code: the arithmetic of stages and decode_closed_form, number by number in its order.

What NumPy does with SIMD instructions, powers, it does beforehand.
"""

from __future__ import annotations

import numpy as np

from tlt.sim.model.engines.compiled import memory as at
from tlt.sim.model.engines.compiled.cache import compiled
from tlt.sim.model.engines.compiled.numbers import normals, pairwise, rank


@compiled
def moments(survival, depth):
    """process.moments_of: mean and variance of the tokens of an engine step, from survivals, [depth]."""
    odd = np.empty(depth)
    for d in range(depth):
        odd[d] = survival[d] * (2.0 * (d + 1) - 1.0)
    whole = pairwise(survival, depth)
    return 1.0 + whole, max(pairwise(odd, depth) - whole * whole, 0.0)


@compiled
def draw_stages(state, span, chosen, survival, depth, until, rate, variance):
    """stages.draw_stages: engine steps to the end of each stage, its tokens an engine step, [n, stages].

    Writes the variance of these as well.
    """
    n, bins = len(chosen), span.shape[1]
    z = normals(state, n)
    by_bin, spread = np.empty(bins), np.empty(bins)
    for i in range(n):
        remaining, last = 0, 0
        for b in range(bins):
            remaining += span[i, b]
            if span[i, b] > 0:
                last = b
        for b in range(bins):
            m, v = moments(survival[chosen[i], b], depth)
            tokens = float(span[i, b])
            if b == last:
                tokens += ((v + m * m) / m - 1.0) / 2.0
            by_bin[b] = tokens / m
            spread[b] = span[i, b] * v / (m * m * m)
            rate[i, b], variance[i, b] = m, v
        expected = pairwise(by_bin, bins)
        drawn = np.rint(expected + np.sqrt(pairwise(spread, bins)) * z[i])
        steps = int(min(max(drawn, float(-(-remaining // (depth + 1)))), float(remaining)))
        stretch = max(steps, 1) / expected
        upto = 0.0
        for b in range(bins):
            upto += by_bin[b]
            until[i, b] = int(np.rint(upto * stretch))
            rate[i, b] /= stretch
        until[i, bins - 1] = steps


@compiled
def spans(running, emitted, length, bins, edges, span):
    """stages.spans: the tokens of each bin that each running request has to emit, [n, bins]."""
    for i in range(len(running)):
        begun, end = emitted[running[i]], length[running[i]]
        before = begun
        for b in range(bins):
            upto = end if b == bins - 1 else min(max(edges[b], begun), end)
            span[i, b] = upto - before
            before = upto


@compiled
def jumps(n, until, rate, survival, depth, order, context):
    """decode_closed_form._events: engine step and jump of each event, finishes first."""
    bins = until.shape[1]
    events = n
    for i in range(n):
        for b in range(bins - 1):
            if 0 < until[i, b] < until[i, bins - 1]:
                events += 1
    step, jump = np.empty(events, np.int64), np.zeros((events, 3 + depth))
    at_event = n
    for i in range(n):
        row = order[i]
        finish, last, bent = until[i, bins - 1], 0, 0.0
        for b in range(bins - 1):
            here = until[i, b]
            if here >= finish:
                continue
            last += 1
            if here > 0:
                slower = rate[i, b] - rate[i, b + 1]
                bent += slower * here
                step[at_event] = here
                jump[at_event, 1], jump[at_event, 2] = -slower, slower * here
                for d in range(depth):
                    jump[at_event, 3 + d] = survival[row, b + 1, d] - survival[row, b, d]
                at_event += 1
        step[i] = finish
        jump[i, 0], jump[i, 1], jump[i, 2] = -1.0, -rate[i, last], -(context[i] + bent)
        for d in range(depth):
            jump[i, 3 + d] = -survival[row, last, d]
    return step, jump


@compiled
def segments(step, jump, n, fixed_s, kv_s, whole, real, survival, finish_s):
    """decode_closed_form.segments: the segments that end with each event, and when each request finishes.

    Writes whole numbers [4, events] (step, start, running, request steps so far), numbers [5, events]
    (growth, context, engine step, seconds so far, emitted so far), survivals [events, depth], finishes [n].
    Returns the most context tokens.
    """
    events, columns = jump.shape
    order = rank(step)
    held, total = np.empty((events, columns)), np.zeros(columns)
    for k in range(events - 1, -1, -1):
        for c in range(columns):
            total[c] += jump[order[k], c]
            held[k, c] = -total[c]
    peak = -np.inf
    seconds, emitted, request_steps, start = 0.0, 0.0, 0, 0
    for k in range(events):
        end, running = step[order[k]], int(np.rint(held[k, 0]))
        growth, context = held[k, 1], held[k, 2]
        engine_step_s = fixed_s[running] + kv_s * context
        lengths = end - start
        sums = (end + start - 1) * lengths * 0.5
        seconds += lengths * engine_step_s + kv_s * growth * sums
        request_steps += lengths * running
        emitted += lengths * growth
        whole[0, k], whole[1, k], whole[2, k], whole[3, k] = end, start, running, request_steps
        real[0, k], real[1, k], real[2, k], real[3, k], real[4, k] = (
            growth, context, engine_step_s, seconds, emitted,
        )  # fmt: skip
        for d in range(columns - 3):
            survival[k, d] = held[k, 3 + d]
        if order[k] < n:
            finish_s[order[k]] = seconds
        peak = max(peak, context + growth * end)
        start = end
    return peak


@compiled
def plan(
    state, ints, floats, survival, running, emitted, length, prompt, edges, bins, depth, fixed_s, kv_s
):  # fmt: skip
    """JumpEngine._plan: stages of the running requests in order of finish, and the trajectory."""
    n = len(running)
    until, rate, spread = at.stages_of(ints, floats, bins)
    order, finish, span = at.order_of(ints), at.finish_of(ints), at.span_of(ints, bins)
    drawn, drawn_rate, variance = np.empty((n, bins), np.int64), np.ones((n, bins)), np.zeros((n, bins))
    spanned = np.empty((n, bins), np.int64)
    spans(running, emitted, length, bins, edges, spanned)
    if depth:
        draw_stages(state, spanned, running, survival, depth, drawn, drawn_rate, variance)
    else:
        drawn[:] = spanned
    ranked = rank(drawn[:, bins - 1].copy())
    context = np.empty(n)
    for i in range(n):
        row = running[ranked[i]]
        order[i] = row
        context[i] = prompt[row] + emitted[row]
        for b in range(bins):
            until[i, b], rate[i, b] = drawn[ranked[i], b], drawn_rate[ranked[i], b]
            span[i, b] = spanned[ranked[i], b]
            spread[i, b] = variance[ranked[i], b]
        finish[i] = until[i, bins - 1]
    step, jump = jumps(n, until, rate, survival, depth, order, context)
    whole, real, held = at.segments_of(ints, floats, depth)
    ints[at.PLANNED], ints[at.EVENTS] = n, len(step)
    floats[at.PEAK] = segments(step, jump, n, fixed_s, kv_s, whole, real, held, at.finish_s_of(ints, floats))
    floats[at.KV_S] = kv_s
    ints[at.ALL_STEPS] = whole[3, len(step) - 1]
