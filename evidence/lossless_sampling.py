"""Does speculation change what is sampled? Many short responses to one prompt, with it and without it.

Requests are independent, tokens of one request are not. So the p-values come from exchanging requests between
the two samples at random, which is exact whatever the tokens of a request have to do with each other. The
first token of a response comes out of prefill, where nothing is drafted, and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tlt.realrun.engine.protocol import Engine, EngineRequest
from tlt.traces.common.arrays import Floats, Ints

Tokens = Ints
Counts = Floats


class Drawn(msgspec.Struct):
    """Sampled tokens, [requests, tokens], and how the drafts of their engine steps fared."""

    tokens: Tokens
    drafted_tokens: int
    accepted_tokens: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How two samples differ. A p-value is the share of random exchanges that differ as much."""

    tokens_compared: int  # of each sample
    chi_square_tokens: float  # of the frequencies of tokens at each place, summed over places
    p_tokens: float
    chi_square_pairs: float  # of the frequencies of pairs of neighbours, all places together
    p_pairs: float


def draw(
    engine: Engine, prompt: tuple[int, ...], requests: int, tokens: int, ks: Sequence[int], batch: int
) -> Drawn:
    """Sample `requests` responses of `tokens` tokens, `batch` at a time, with each K of `ks` in turn."""
    responses: dict[int, tuple[int, ...]] = {}
    drafted = accepted = engine_step = 0
    for first in range(0, requests, batch):
        last = min(first + batch, requests)
        engine.submit([EngineRequest(number, prompt, tokens) for number in range(first, last)])
        while engine.pending():
            facts = engine.step(ks[engine_step % len(ks)])
            engine_step += 1
            drafted += facts.drafted_tokens
            accepted += sum(facts.accepted_by_position)
        responses |= engine.responses()
    rows = np.array([responses[number] for number in range(requests)], np.int64)
    return Drawn(rows, drafted, accepted)


def compare(one: Tokens, other: Tokens, vocab: int, exchanges: int, rng: np.random.Generator) -> Verdict:
    """Compare two samples of equal shape, [requests, tokens]."""
    rows = np.concatenate([one, other])
    half = len(one)
    places = rows[:, 1:] + vocab * np.arange(rows.shape[1] - 1)
    pairs = rows[:, :-1] * vocab + rows[:, 1:]
    tables = [_Table(places), _Table(pairs)]
    observed = [table.chi_square(np.arange(half)) for table in tables]
    larger = np.ones(len(tables))
    for _ in range(exchanges):
        mine = rng.permutation(len(rows))[:half]
        larger += [table.chi_square(mine) >= seen for table, seen in zip(tables, observed, strict=True)]
    p_tokens, p_pairs = (larger / (exchanges + 1)).tolist()
    return Verdict(
        tokens_compared=one[:, 1:].size,
        chi_square_tokens=observed[0],
        p_tokens=p_tokens,
        chi_square_pairs=observed[1],
        p_pairs=p_pairs,
    )


class _Table:
    """Counts of categories over the rows of both samples together."""

    def __init__(self, rows: Tokens) -> None:
        _, flat = np.unique(rows, return_inverse=True)
        self._rows = flat.reshape(rows.shape)
        self._total: Counts = np.bincount(flat.ravel()).astype(np.float64)

    def chi_square(self, mine: Ints) -> float:
        """Return chi-square of two samples of equal size, the rows `mine` and all others."""
        counts = np.bincount(self._rows[mine].ravel(), minlength=len(self._total))
        return float(((2 * counts - self._total) ** 2 / self._total).sum())
