"""Fits a population (tlt.sim.acceptance.population) to the accepted drafts of requests, by maximum
likelihood.

A request r in bin b has log exponent x[r, b] = X beta + u[r, b], where the fixed effects are a level for
each RL step, the slope over bins, the excess of the first tokens, the score of the length and, where asked
for, a level for each kind of prompt, and u is normal with the covariance of the population. Accepted drafts
of an observation have the mean sum n m(exp x) over its rows, with m = sum s[j] ** e, and phi times the
variance of as many independent draws: phi > 1 is what bursts inside a bin add. As this is not linear in x,
it is expanded around the present estimate and solved as a linear mixed model, again and again (penalised
quasi-likelihood: Breslow and Clayton, JASA 88 (1993) 9-25); variances are those of the largest restricted
likelihood. The survivals s of the median request are then those under which each position was accepted as
often as was counted.

Errors are standard errors: of the fixed effects from the mixed model, of the variances from the curvature of
the likelihood. What lies at the edge of what it may be has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.optimize import brentq, minimize

from tlt.sim.acceptance.observations import Block, Observed
from tlt.sim.acceptance.population import LAST_BIN, Population
from tlt.traces.common.arrays import Floats
from tlt.traces.runs.acceptance_counts import PositionCounts
from tltsched.errors import InputError

ROUNDS = 8
FEWEST_REQUESTS = 20
FEWEST_PROMPTS = 5  # of a kind, to have a level of its own
LEAST_SHARE = 0.005  # of first drafts, accepted or refused: with less all are, but for the ends of responses
MOST_BLOCKS = 160  # of more, so many are drawn: a fit takes seconds, and the errors are small by then
EXPONENTS = (-4.0, 4.0)  # logs
# log sd between requests, logit of the share of the group, log phi, log sd between bins: lowest, start,
# highest
VARIANCES = np.array([[-4.0, -0.9, 1.0], [-4.0, 0.0, 5.0], [0.0, 0.7, 5.0], [-4.0, -1.2, 1.0]])
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)


class Estimate(msgspec.Struct, frozen=True):
    """A parameter and its standard error; None: at the edge, or not to be known from the run."""

    value: float
    error: float | None = None


class Fit(msgspec.Struct, frozen=True):
    """What was found: survivals of the median request, [depth], parameters, and the level of each RL step."""

    survival: Floats
    parameters: dict[str, Estimate]  # by field of Population
    overdispersion: float
    levels: dict[int, float]  # log exponent over the mean of all steps
    requests: int
    observations: int
    kinds: dict[str, Estimate] = {}  # log exponent over the mean of all requests, by kind of prompt

    @property
    def population(self) -> Population:
        """Return the population at the estimates."""
        return Population(**{name: each.value for name, each in self.parameters.items()})


class _Linear(NamedTuple):
    """A block expanded around the present estimate, over the standard deviation of independent draws."""

    response: Floats  # [observations]
    fixed: Floats  # [observations, effects]
    random: Floats  # [observations, cells]
    alike: tuple[Floats, Floats, Floats]  # covariance of a group, of a request, of a cell


class _Kinds:
    """Kinds of prompt that have a level of their own, and their shares of all requests, [kinds]."""

    def __init__(self, blocks: Sequence[Block], wanted: bool) -> None:
        """Take kinds with FEWEST_PROMPTS prompts or more; the others share a level. None: all are alike."""
        kinds = np.concatenate([block.kind for block in blocks])
        prompts = Counter(
            kind
            for block in blocks
            for kind, _ in {*zip(block.kind.tolist(), block.group.tolist(), strict=True)}
        )
        self.names = tuple(sorted(kind for kind, n in prompts.items() if kind and n >= FEWEST_PROMPTS))
        rest = (kinds[:, None] != np.array(self.names, str)).all(axis=1)
        if not rest.any():  # then the first one is what the others are told from
            self.names = self.names[1:]
        self.first = "" if rest.any() else min(prompts)
        if not wanted:
            self.names = ()
        self.shares = np.array([(kinds == name).mean() for name in self.names], np.float64)

    def columns(self, kind: np.ndarray) -> Floats:
        """Return the fixed effects of requests of these kinds, [n]; [n, kinds], of mean 0 over all."""
        return np.asarray((kind[:, None] == np.array(self.names, str)) - self.shares, np.float64)

    def levels(self, beta: Floats, covariance: Floats) -> dict[str, Estimate]:
        """Return the level of each kind from the fixed effects [kinds] and their covariance."""
        if not self.names:
            return {}
        kinds = (*self.names, self.first)
        rows = self.columns(np.array(kinds))
        errors = np.sqrt(np.diag(rows @ covariance @ rows.T)).tolist()
        return {
            kind: Estimate(value, error)
            for kind, value, error in zip(kinds, (rows @ beta).tolist(), errors, strict=True)
        }


class _Cells:
    """A block with its cells: a request in a bin. The random effects have one entry a cell."""

    def __init__(self, block: Block, steps: Sequence[int], kinds: _Kinds) -> None:
        self.block = block
        key, self.of_row = np.unique(block.request * 64 + block.bin, return_inverse=True)
        request, bin_ = key // 64, key % 64
        level = np.array([[float(block.step == step) for step in steps]])
        columns = [np.minimum(bin_, LAST_BIN), bin_ == 0, block.score[request]]
        self.fixed = np.hstack(
            [np.column_stack(columns), kinds.columns(block.kind[request]), np.repeat(level, len(key), axis=0)]
        )
        group = block.group[request]
        self.same_group = (group[:, None] == group).astype(np.float64)
        self.same_request = (request[:, None] == request).astype(np.float64)
        self.effect = np.zeros(len(key))
        self.uncertain = np.zeros(len(key))  # variance of the effect, given what was observed

    def expanded(self, beta: Floats, survival: Floats) -> _Linear:
        """Return the block as a linear model around the present effects."""
        block, cells = self.block, len(self.effect)
        log = (self.fixed @ beta + self.effect).clip(*EXPONENTS)[self.of_row]
        mean, slope, variance = _moments(survival, block.depth, log)
        n = len(block.accepted)
        expected, spread = (
            np.bincount(block.observation, block.engine_steps * each, n) for each in (mean, variance)
        )
        random = np.zeros((n, cells))
        np.add.at(random, (block.observation, self.of_row), block.engine_steps * slope)
        fixed = random @ self.fixed
        scale = 1.0 / np.sqrt(np.maximum(spread, 1e-9))
        response = (block.accepted - expected + fixed @ beta + random @ self.effect) * scale
        random = random * scale[:, None]
        alike = (
            random @ self.same_group @ random.T, random @ self.same_request @ random.T, random @ random.T
        )  # fmt: skip
        return _Linear(response, fixed * scale[:, None], random, alike)

    def covariance(self, theta: Floats) -> Floats:
        """Return the covariance of the effects, [cells, cells]."""
        group, request, _, cell = _variances(theta)
        shared: Floats = group * self.same_group + request * self.same_request
        return shared + cell * np.eye(len(self.effect))


def fit(observations: Sequence[Observed], *, by_kind: bool = False) -> Fit:
    """Fit one population to runs that had the same drafter; raises InputError if they say too little.

    `by_kind` tells kinds of prompts apart, where they are known: the population is then that of one kind.
    """
    blocks = _chosen([block for each in observations for block in each.blocks])
    counts = sum((each.positions for each in observations[1:]), observations[0].positions)
    _check(blocks, counts)
    steps = sorted({block.step for block in blocks})
    kinds = _Kinds(blocks, by_kind)
    effects = 3 + len(kinds.names)
    cells = [_Cells(block, steps, kinds) for block in blocks]
    grouped = any((np.bincount(block.group) > 1).any() for block in blocks)
    survival = counts.survival()
    beta, theta = np.zeros(effects + len(steps)), VARIANCES[:, 1].copy()
    free = np.array([True, grouped, True, bool(max(block.bin.max() for block in blocks))])
    theta[~free] = VARIANCES[~free, 0]
    for _ in range(ROUNDS):
        model = [each.expanded(beta, survival) for each in cells]
        theta = _most_likely(model, theta, free)
        beta, error = _solve(model, cells, theta)
        level = beta[effects:].mean()
        survival = _survival(cells, counts, beta, level)
        beta[effects:] -= level
    return Fit(
        survival, _parameters(model, beta, error, theta, free), float(np.exp(theta[2])),
        dict(zip(steps, beta[effects:].tolist(), strict=True)),
        sum(len(block.score) for block in blocks), sum(len(block.accepted) for block in blocks),
        kinds.levels(beta[3:effects], error[3:effects, 3:effects]),
    )  # fmt: skip


def _chosen(blocks: list[Block]) -> list[Block]:
    """Return the blocks, or so many of them."""
    if len(blocks) <= MOST_BLOCKS:
        return blocks
    kept = np.random.default_rng(0).choice(len(blocks), MOST_BLOCKS, replace=False)
    return [blocks[index] for index in sorted(kept.tolist())]


def _check(blocks: list[Block], counts: PositionCounts) -> None:
    requests = sum(len(block.score) for block in blocks)
    if requests < FEWEST_REQUESTS:
        raise InputError(
            "requests with drafts", requests, f"{FEWEST_REQUESTS} or more", "fit a run of more responses"
        )
    share = counts.accepted / np.maximum(counts.engine_steps, 1)
    if not LEAST_SHARE < share[0] < 1.0 - LEAST_SHARE:
        raise InputError(
            "share of first drafts accepted", float(share[0]), f"{LEAST_SHARE} to {1.0 - LEAST_SHARE}",
            "an engine whose drafts are all accepted, or none, has no law to fit: look at its drafter",
        )  # fmt: skip


def _moments(survival: Floats, depth: np.ndarray, log: Floats) -> tuple[Floats, Floats, Floats]:
    """Return mean of the accepted drafts, its slope over the log exponent, and variance, of each row."""
    positions = np.arange(1, len(survival) + 1)
    exponent = np.exp(log)[:, None]
    base = np.log(survival.clip(1e-9, 1.0 - 1e-9))
    powers = np.exp(base * exponent) * (positions <= depth[:, None])
    mean = powers.sum(axis=1)
    variance = (powers * (2 * positions - 1)).sum(axis=1) - mean**2
    return mean, (powers * base * exponent).sum(axis=1), np.maximum(variance, 1e-9)


def _variances(theta: Floats) -> tuple[float, float, float, float]:
    """Return the variances of group, request, independent draws (phi) and cell."""
    between, share = float(np.exp(2 * theta[0])), float(1 / (1 + np.exp(-theta[1])))
    return between * share, between * (1 - share), float(np.exp(theta[2])), float(np.exp(2 * theta[3]))


def _whitened(each: _Linear, theta: Floats) -> tuple[Floats, Floats]:
    """Return the Cholesky factor of the covariance of a block, and the model divided by it."""
    group, request, draws, cell = _variances(theta)
    covariance = group * each.alike[0] + request * each.alike[1] + cell * each.alike[2]
    factor = np.linalg.cholesky(covariance + draws * np.eye(len(each.response)))
    white: Floats = np.linalg.solve(factor, np.column_stack([each.fixed, each.response]))
    return np.asarray(factor, np.float64), white


def _normal(model: list[_Linear], theta: Floats) -> tuple[Floats, Floats, float, float]:
    """Return the normal equations of the fixed effects, the squared response, and log of the determinant."""
    square, log_determinant = np.zeros((1, 1)), 0.0
    for each in model:
        factor, white = _whitened(each, theta)
        square = square + white.T @ white
        log_determinant += 2.0 * float(np.log(np.diag(factor)).sum())
    equations = square[:-1, :-1] + 1e-9 * np.eye(len(square) - 1)
    return equations, square[:-1, -1], float(square[-1, -1]), log_determinant


def _unlikelihood(model: list[_Linear], theta: Floats) -> float:
    """Return minus the restricted log-likelihood, up to a constant."""
    equations, right, squared, log_determinant = _normal(model, theta)
    beta = np.linalg.solve(equations, right)
    return 0.5 * float(squared - beta @ right + log_determinant + np.linalg.slogdet(equations)[1])


def _most_likely(model: list[_Linear], theta: Floats, free: np.ndarray) -> Floats:
    """Return the variances of the largest likelihood, from `theta` on."""

    def at(values: Floats) -> float:
        return _unlikelihood(model, _at_most(theta, free, values))

    start = theta[free]
    simplex = np.vstack([start, start + 0.5 * np.eye(len(start))])
    found = minimize(
        at, start, method="Nelder-Mead",
        options={"xatol": 0.01, "fatol": 0.02, "maxiter": 200, "initial_simplex": simplex},
    )  # fmt: skip
    return _at_most(theta, free, found.x)


def _at_most(theta: Floats, free: np.ndarray, values: Floats) -> Floats:
    """Return the variances with the free ones set, within VARIANCES."""
    moved = theta.copy()
    moved[free] = values
    return np.clip(moved, VARIANCES[:, 0], VARIANCES[:, 2])


def _solve(model: list[_Linear], cells: list[_Cells], theta: Floats) -> tuple[Floats, Floats]:
    """Return the fixed effects and their covariance, and set the random effects of the cells."""
    equations, right, _, _ = _normal(model, theta)
    beta = np.asarray(np.linalg.solve(equations, right), np.float64)
    for each, cell in zip(model, cells, strict=True):
        factor, _ = _whitened(each, theta)
        covariance = cell.covariance(theta)
        known = np.linalg.solve(factor, each.random @ covariance)
        residual = np.linalg.solve(factor, each.response - each.fixed @ beta)
        cell.effect = known.T @ residual
        cell.uncertain = np.maximum(np.diag(covariance) - (known**2).sum(axis=0), 0.0)
    return beta, np.asarray(np.linalg.inv(equations), np.float64)


def _survival(cells: list[_Cells], counts: PositionCounts, beta: Floats, level: float) -> Floats:
    """Return the survivals under which each position is accepted as often as was counted, [depth]."""
    exponent, weight, depth = [], [], []
    for cell in cells:
        log = (cell.fixed @ beta + cell.effect - level)[cell.of_row]
        drawn = np.sqrt(cell.uncertain)[cell.of_row][:, None] * _NODES
        exponent.append(np.exp((log[:, None] + drawn).clip(*EXPONENTS)))
        weight.append(cell.block.engine_steps[:, None] * (_WEIGHTS / _WEIGHTS.sum()))
        depth.append(cell.block.depth)
    exponents, weights, depths = (np.concatenate(each) for each in (exponent, weight, depth))
    found = []
    for position, target in enumerate((counts.accepted / np.maximum(counts.engine_steps, 1)).tolist()):
        used = depths > position
        share = weights[used] / weights[used].sum() if used.any() else np.ones(1)
        powers = exponents[used] if used.any() else np.ones(1)
        if 0.0 < target < 1.0:
            target = brentq(lambda s: float((share * s**powers).sum()) - target, 0.0, 1.0)  # noqa: B023
        found.append(target)
    return np.minimum.accumulate(np.array(found))


def _parameters(
    model: list[_Linear], beta: Floats, error: Floats, theta: Floats, free: np.ndarray
) -> dict[str, Estimate]:
    """Return the parameters of the population with their errors."""
    slope, start, length = beta[:3].tolist()
    slope_error, start_error, length_error = np.sqrt(np.diag(error))[:3].tolist()
    between, between_error = float(np.exp(theta[0])), _error(model, theta, free, 0)
    spread = float(np.hypot(between, length))
    share = float(1 / (1 + np.exp(-theta[1]))) if free[1] else 0.0
    share_error = _error(model, theta, free, 1)
    cell, cell_error = float(np.exp(theta[3])) if free[3] else 0.0, _error(model, theta, free, 3)
    sd = None if between_error is None else between * between_error
    return {
        "request_spread": Estimate(
            spread, None if sd is None else float(np.hypot(between * sd, length * length_error)) / spread
        ),
        "length_correlation": Estimate(
            length / spread,
            None
            if sd is None
            else between / spread**3 * float(np.hypot(between * length_error, length * sd)),
        ),
        "group_correlation": Estimate(
            share, None if share_error is None else share_error * share * (1.0 - share)
        ),
        "position_spread": Estimate(cell, None if cell_error is None else cell * cell_error),
        "position_slope": Estimate(slope, slope_error),
        "start_excess": Estimate(start, start_error),
    }


def _error(model: list[_Linear], theta: Floats, free: np.ndarray, index: int) -> float | None:
    """Return the standard error of one of the variances, on its scale; None at an edge."""
    step = 0.1
    low, _, high = VARIANCES[index]
    if not free[index] or not low + step < theta[index] < high - step:
        return None
    here, below, above = (
        _unlikelihood(model, theta + move * np.eye(len(theta))[index]) for move in (0.0, -step, step)
    )
    curvature = (below + above - 2.0 * here) / step**2
    return float(1.0 / np.sqrt(curvature)) if curvature > 0.0 else None
