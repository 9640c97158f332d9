"""Sequences side by side in one row, so that no time goes into padding (TLT section on sequence packing).

Positions restart at 0 with each sequence. transformers reads the borders off them and lets no token attend
across one, if it is given positions and no attention mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Pack(NamedTuple):
    """One row: `tokens` and `positions` [1, T], and where each sequence lies in it (start, end)."""

    indices: list[int]  # into the sequences that were packed
    tokens: torch.Tensor
    positions: torch.Tensor
    spans: list[tuple[int, int]]


def plan(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return rows of indices whose lengths add up to at most `budget`; a longer one is alone.

    First fit by falling length: at most 22 % more rows than the best (Johnson 1973).
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        row = next((row for row, left in enumerate(room) if left >= lengths[index]), None)
        if row is None:
            rows.append([])
            room.append(budget)
            row = len(rows) - 1
        rows[row].append(index)
        room[row] -= lengths[index]
    return rows


def pack(sequences: Sequence[Sequence[int]], indices: list[int], device: str) -> Pack:
    """Return one row of the sequences `indices`."""
    tokens: list[int] = []
    positions: list[int] = []
    spans = []
    for index in indices:
        spans.append((len(tokens), len(tokens) + len(sequences[index])))
        tokens += sequences[index]
        positions += range(len(sequences[index]))
    return Pack(
        indices,
        torch.tensor([tokens], dtype=torch.long).to(device, non_blocking=True),
        torch.tensor([positions], dtype=torch.long).to(device, non_blocking=True),
        spans,
    )
