"""How many engine steps requests need, and how these fall to the bins of their responses: drawn once a plan.

With X tokens an engine step, the first n with S_n >= R has mean (R + (E[X^2]/E[X] - 1) / 2) / E[X] (Wald's
identity and the mean overshoot of a lattice walk) and variance about R var(X) / E[X]^3. Where the law of X
changes with the bin of the response, both are sums over its bins, and the overshoot is that of the last one.
"""

from __future__ import annotations

import numpy as np

from tlt.sim.acceptance.process import Moments
from tlt.sim.model.draft_counts import Pieces
from tlt.sim.model.engines.decode_closed_form import Stages
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.request_acceptance import from_tokens
from tltsched.draft_config import DraftConfig


def spans(position: Ints, length: Ints, bins: int) -> Ints:
    """Return the tokens of each bin between positions in responses and their lengths, [n] each; [n, bins]."""
    if bins == 1:
        return (length - position)[:, None]
    edges = from_tokens(np.arange(1, bins))
    upto: Ints = np.concatenate(
        [np.minimum(np.maximum(edges, position[:, None]), length[:, None]), length[:, None]], axis=1
    )
    return np.diff(upto, axis=1, prepend=position[:, None])


def overshoot(moments: Moments) -> Floats:
    """Return by how many tokens the engine step that reaches a response's end overshoots it on average."""
    mean, variance = moments.mean_tokens, moments.variance
    return ((variance + mean**2) / mean - 1.0) / 2.0


def plain_stages(remaining: Ints) -> Stages:
    """Return the only stage of requests that emit a token an engine step, [n]."""
    return Stages(remaining[:, None], np.ones((len(remaining), 1)), np.zeros((len(remaining), 1)))


def draw_stages(span: Ints, moments: Moments, most_tokens: int, rng: np.random.Generator) -> Stages:
    """Draw the engine steps until requests have emitted `span` tokens in each bin, [n, bins].

    An engine step emits at most `most_tokens`. The last one drafts past the end of the response, so requests
    emit `span` and the overshoot.
    """
    mean, variance = moments.mean_tokens, moments.variance
    remaining = span.sum(axis=1)
    last = np.maximum(span.shape[1] - 1 - (span[:, ::-1] > 0).argmax(axis=1), 0)
    tokens = span.astype(np.float64)
    tokens[np.arange(len(span)), last] += overshoot(moments)[np.arange(len(span)), last]
    by_bin = tokens / mean
    expected = by_bin.sum(axis=1)
    spread = np.sqrt((span * variance / (mean * mean * mean)).sum(axis=1))
    drawn = np.rint(expected + spread * rng.standard_normal(len(span)))
    engine_steps = np.clip(drawn, -(-remaining // most_tokens), remaining).astype(np.int64)
    stretch = np.maximum(engine_steps, 1) / expected
    until = np.rint(by_bin.cumsum(axis=1) * stretch[:, None]).astype(np.int64)
    until[:, -1] = engine_steps
    return Stages(until, mean / stretch[:, None], variance)


def pieces_of(draft_config: DraftConfig, ids: Ints, begun: Ints, span: Ints, stages: Stages) -> Pieces:
    """Return what requests gain in their stages, `span` tokens in each, after `begun` tokens, [n]."""
    engine_steps = stages.engine_steps(stages.until[:, -1])
    tokens = engine_steps * stages.tokens_per_engine_step
    return Pieces(draft_config, ids, begun[:, None] + span.cumsum(axis=1) - span, span, tokens, engine_steps)
