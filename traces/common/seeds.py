"""Generators that both worlds must seed alike, so that a replay of a run draws what the run drew."""

from __future__ import annotations

import random


def scheduler_rng(seed: int, worker: int) -> random.Random:
    """Return the generator of one worker's scheduler."""
    return random.Random(f"{seed}/{worker}")  # noqa: S311 -- simulation, not security
