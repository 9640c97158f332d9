"""Responses side by side in rows of one width, so that a batch of a head's training has next to no padding.

Chains look at their own response alone (tlt.realrun.training.head.loss), so that what shares a row does not
matter. A response that is longer than what is left of a row is cut to a window at random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tlt.realrun.training.features import Features
from tlt.realrun.training.policy.packing import plan
from tlt.realrun.training_config import HeadConfig

Row = list[Features]

SHORTEST_WINDOW_TOKENS = 64  # what is left of a row is filled with a part of a response down to this


class Shape(NamedTuple):
    """The rows of a batch at most, and the tokens of one."""

    rows: int
    tokens: int


def shape_of(config: HeadConfig) -> Shape:
    """Return rows of window_tokens (0: one row) that hold batch_tokens at most; one row at least."""
    tokens = min(config.window_tokens or config.batch_tokens, config.batch_tokens)
    return Shape(config.batch_tokens // tokens, tokens)


def fill(shape: Shape, draw: Callable[[], Features], rng: np.random.Generator, most: int) -> list[Row]:
    """Return rows of responses that are drawn one by one, `most` at most, until one does not fit."""
    rows: list[Row] = []
    left = [shape.tokens] * shape.rows
    for _ in range(most):
        pick, room = draw(), max(left)
        if len(pick) > room:
            if room < min(SHORTEST_WINDOW_TOKENS, shape.tokens):
                break
            pick = pick.window(room, int(rng.integers(len(pick) - room + 1)))
        place = min((each, row) for row, each in enumerate(left) if each >= len(pick))[1]
        if place == len(rows):
            rows.append([])
        rows[place].append(pick)
        left[place] -= len(pick)
    return rows


def packed(features: Sequence[Features]) -> list[Row]:
    """Return whole responses in rows as wide as the longest."""
    lengths = [len(each) for each in features]
    return [[features[index] for index in row] for row in plan(lengths, max(lengths, default=0))]
