"""A plan in compiled code: the arithmetic of stages and decode_closed_form, number by number in its order.

What NumPy does with SIMD instructions, powers, it does beforehand.
"""

from __future__ import annotations

import numpy as np

from tlt.sim.model.engines.compiled.cache import compiled
from tlt.sim.model.engines.compiled.numbers import normals, pairwise, rank


@compiled
def draw_stages(state, span, mean, variance, cube, most_tokens):
    """stages.draw_stages: engine steps to the end of each stage, its tokens an engine step, [n, stages]."""
    n, bins = span.shape
    z = normals(state, n)
    until, rate = np.empty((n, bins), np.int64), np.empty((n, bins))
    by_bin, spread = np.empty(bins), np.empty(bins)
    for i in range(n):
        remaining, last = 0, 0
        for b in range(bins):
            remaining += span[i, b]
            if span[i, b] > 0:
                last = b
        for b in range(bins):
            m, v = mean[i, b], variance[i, b]
            tokens = float(span[i, b])
            if b == last:
                tokens += ((v + m * m) / m - 1.0) / 2.0
            by_bin[b] = tokens / m
            spread[b] = span[i, b] * v / cube[i, b]
        expected = pairwise(by_bin, bins)
        drawn = np.rint(expected + np.sqrt(pairwise(spread, bins)) * z[i])
        steps = int(min(max(drawn, float(-(-remaining // most_tokens))), float(remaining)))
        stretch = max(steps, 1) / expected
        upto = 0.0
        for b in range(bins):
            upto += by_bin[b]
            until[i, b] = int(np.rint(upto * stretch))
            rate[i, b] = mean[i, b] / stretch
        until[i, bins - 1] = steps
    return until, rate


@compiled
def spans(running, emitted, length, bins, edges):
    """stages.spans: the tokens of each bin that each running request has to emit, [n, bins]."""
    n = len(running)
    span = np.empty((n, bins), np.int64)
    for i in range(n):
        begun, end = emitted[running[i]], length[running[i]]
        before = begun
        for b in range(bins):
            upto = end if b == bins - 1 else min(max(edges[b], begun), end)
            span[i, b] = upto - before
            before = upto
    return span


@compiled
def jumps(until, rate, survival, context):
    """decode_closed_form._events: engine step and jump of each event, finishes first."""
    n, bins = until.shape
    depth = survival.shape[2]
    events = n
    for i in range(n):
        for b in range(bins - 1):
            if 0 < until[i, b] < until[i, bins - 1]:
                events += 1
    step, jump = np.empty(events, np.int64), np.zeros((events, 3 + depth))
    at = n
    for i in range(n):
        finish, last, bent = until[i, bins - 1], 0, 0.0
        for b in range(bins - 1):
            here = until[i, b]
            if here >= finish:
                continue
            last += 1
            if here > 0:
                slower = rate[i, b] - rate[i, b + 1]
                bent += slower * here
                step[at] = here
                jump[at, 1], jump[at, 2] = -slower, slower * here
                for d in range(depth):
                    jump[at, 3 + d] = survival[i, b + 1, d] - survival[i, b, d]
                at += 1
        step[i] = finish
        jump[i, 0], jump[i, 1], jump[i, 2] = -1.0, -rate[i, last], -(context[i] + bent)
        for d in range(depth):
            jump[i, 3 + d] = -survival[i, last, d]
    return step, jump


@compiled
def segments(step, jump, n, fixed_s, kv_s):
    """decode_closed_form.segments: the segments that end with each event, and when each request finishes.

    Returns whole numbers [4, events] (step, start, running, request steps so far), numbers [5, events]
    (growth, context, engine step, seconds so far, emitted so far), survivals [events, depth], finishes [n].
    """
    events, columns = jump.shape
    order = rank(step)
    whole, real = np.empty((4, events), np.int64), np.empty((5, events))
    held = np.empty((events, columns))
    total = np.zeros(columns)
    for k in range(events - 1, -1, -1):
        for c in range(columns):
            total[c] += jump[order[k], c]
            held[k, c] = -total[c]
    finish_s = np.empty(n)
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
        if order[k] < n:
            finish_s[order[k]] = seconds
        start = end
    return whole, real, np.ascontiguousarray(held[:, 3:]), finish_s


@compiled
def plan(
    state, running, rows, emitted, length, prompt, bins, edges, mean, variance, cube, survival, fixed_s, kv_s
):
    """JumpEngine._plan: stages of the running requests in order of finish, and the trajectory.

    `rows` says where the moments of each running request are; without drafts survival has no depth.
    """
    n, depth = len(running), survival.shape[2]
    span = spans(running, emitted, length, bins, edges)
    if depth:
        until, rate = draw_stages(state, span, mean[rows], variance[rows], cube[rows], depth + 1)
    else:
        until, rate = span.copy(), np.ones((n, bins))
    order = rank(until[:, bins - 1].copy())
    chosen, rows = running[order], rows[order]
    context = np.empty(n)
    for i in range(n):
        context[i] = prompt[chosen[i]] + emitted[chosen[i]]
    until, rate, span = until[order], rate[order], span[order]
    step, jump = jumps(until, rate, survival[rows], context)
    whole, real, held, finish_s = segments(step, jump, n, fixed_s, kv_s)
    return (
        chosen,
        rows,
        until,
        rate,
        span,
        variance[rows],
        until[:, bins - 1].copy(),
        whole,
        real,
        held,
        finish_s,
    )
