"""From the survival that a run shows on average to the one of its median request.

What an engine reports is an average over request-steps, and requests that accept little take more of them. So
where requests differ, the law of the median request is the s under which

    sum over r, b of n[r, b] s[j] ** e[r, b]  /  sum of n  =  the survival given, at every position j,

with n[r, b] = tokens[r, b] / E[tokens an engine step | r, b] engine steps of request r in bin b. The sum runs
over quantiles of the lengths and of all that is drawn (tlt.sim.acceptance.population).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from tlt.sim.acceptance.population import LengthScores, Population
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.runs.request_acceptance import from_tokens

MOST_LENGTHS = 64  # quantiles of the lengths
MOST_OFFSETS = 512  # and where something is known of each request: it differs between equal lengths
ROUNDS = 12  # survival and engine steps in turn
NEWTON = 12
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_FEW_NODES, _FEW_WEIGHTS = np.polynomial.hermite_e.hermegauss(3)


class Sample(msgspec.Struct, frozen=True):
    """Requests that stand for a population on a workload, a cell for each of their bins, [cells] each."""

    exponent: Floats
    tokens: Floats  # emitted in the cell, times the cell's chance


def sample_of(population: Population, response_tokens: Ints, offset: Floats | None = None) -> Sample:
    """Return the sample of a population whose responses have these lengths, [n], at least one.

    `offset` is what is known of each one's log exponent beforehand, [n].
    """
    count = MOST_LENGTHS if offset is None else MOST_OFFSETS
    shares = (np.arange(count) + 0.5) / count
    lengths: Floats = np.asarray(np.quantile(response_tokens, shares), np.float64)
    scores = LengthScores(response_tokens).of(lengths)
    exponent, tokens = _cells(population, lengths, scores, population.bins(int(lengths.max())))
    if offset is not None:
        by_length = np.argsort(response_tokens, kind="stable")
        known = offset[by_length[(shares * len(by_length)).astype(int)]]
        exponent = exponent * np.exp(known)[:, None, None]
    return Sample(exponent.ravel(), tokens.ravel())


def steps_per_token(
    median: Floats, population: Population, response_tokens: Ints, scores: Floats, bins: int
) -> Floats:
    """Return the mean engine steps a token of responses of these lengths and scores, [n] each; [n].

    median: survivals of the median request, [depth].
    """
    exponent, tokens = _cells(population, response_tokens.astype(np.float64), scores, bins)
    length = 1.0 + sum(np.exp(exponent * math.log(s)) if s > 0.0 else 0.0 for s in median.tolist())
    steps: Floats = (tokens / length).sum(axis=(1, 2)) / np.maximum(response_tokens, 1)
    return steps


def _cells(population: Population, lengths: Floats, scores: Floats, bins: int) -> tuple[Floats, Floats]:
    """Return exponent and tokens times chance, of the shape [n, bins, quantiles]."""
    edges = np.append(from_tokens(np.arange(bins)), np.inf)
    tokens = np.clip(lengths[:, None], edges[:-1], edges[1:]) - edges[:-1]
    log = population.by_length(scores)[:, None] + population.by_position(bins)[None, :]
    drawn = population.rest_spread * _NODES[:, None] + population.position_spread * _FEW_NODES
    weight = np.multiply.outer(_WEIGHTS, _FEW_WEIGHTS)
    exponent = np.exp(log[:, :, None] + drawn.ravel())
    return exponent, tokens[:, :, None] * (weight / weight.sum()).ravel()


def median_survival(survival: Floats, observed: Floats, sample: Sample) -> Floats:
    """Return the survivals of the median request for averages `survival`, [positions].

    `observed` are the averages of all positions that were drafted where they were measured, [depth].
    """
    reference = observed
    for _ in range(ROUNDS):
        weights = _request_steps(reference, sample)
        reference = _solved(observed, weights, sample)
    return _solved(survival, _request_steps(reference, sample), sample)


def _request_steps(median: Floats, sample: Sample) -> Floats:
    """Return the share of request-steps that falls to each cell, [cells]."""
    length = 1.0 + (median[None, :] ** sample.exponent[:, None]).sum(axis=1)
    steps = sample.tokens / length
    return np.asarray(steps / steps.sum(), np.float64)


def _solved(survival: Floats, weights: Floats, sample: Sample) -> Floats:
    """Return s with weights . s ** e = survival for each, [positions], by Newton in the logarithm."""
    inside = (survival > 0.0) & (survival < 1.0)
    log = np.zeros(len(survival))
    target = np.log(survival[inside])
    guess = target.copy()
    for _ in range(NEWTON):
        powers = weights * np.exp(guess[:, None] * sample.exponent)
        mean = powers.sum(axis=1)
        # log of a mean of exponentials is convex in the guess: from the left the steps are short, never wild
        guess = np.minimum(guess - (np.log(mean) - target) * mean / (powers @ sample.exponent), -1e-12)
    log[inside] = guess
    return np.where(inside, np.exp(log), survival)
