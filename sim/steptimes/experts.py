"""How many experts an engine step wakes, and what reading them takes.

Each of x tokens takes `per_token` of `count` experts in every layer. Where all are as likely, an expert is
read with chance 1 - (1 - per_token / count) ** x, so that a few further tokens to verify wake many further
experts, and at some batch all are read anyway: drafting is dear in between. `skew` makes some experts more
likely than others: the chance of the n-th falls as n ** -skew. 0, all alike, is what the loss that balances
routers aims at, and assumed unless points decide (tlt.sim.steptimes.fit).
"""

from __future__ import annotations

from functools import cache
from math import log

import msgspec
import numpy as np
import numpy.typing as npt

from tlt.traces.common.arrays import Floats
from tltsched.errors import InputError

MOST_EXPERTS, MOST_S = 100_000, 1e6


class ExpertTerm(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine step takes for its experts."""

    count: int
    per_token: int
    read_s: float  # of all experts of all layers, on the GPU that has the most of them to read
    skew: float = 0.0
    ranks: int = 1  # GPUs over which whole experts are spread (expert parallel)
    microbatches: int = 1  # in which a batch passes a pipeline: each wakes its own

    def __post_init__(self) -> None:
        bounds = {
            "count": (1, MOST_EXPERTS), "per_token": (1, self.count), "read_s": (0, MOST_S), "skew": (0, 10),
            "ranks": (1, self.count), "microbatches": (1, MOST_EXPERTS),
        }  # fmt: skip
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if not least <= value <= most:  # NaN is in no range
                fix = "fit the calibration again"
                raise InputError(f"experts.{name}", value, f"{least} to {most:g}", fix)

    def times(self, factor: float) -> ExpertTerm:
        """Return the term with its seconds times a factor."""
        return msgspec.structs.replace(self, read_s=self.read_s * factor)

    def woken_share(self, tokens: npt.ArrayLike) -> Floats:
        """Return the expected share of experts that `tokens` wake, shaped like them."""
        x = np.asarray(tokens, np.float64) / self.microbatches
        idle = (1.0 - chances(self.count, self.per_token, self.skew)) ** x[..., None]
        return np.asarray(1.0 - idle.mean(axis=-1), np.float64)

    def seconds(self, tokens: npt.ArrayLike) -> Floats:
        """Return the seconds to read what `tokens` wake, shaped like them.

        With expert parallel all wait for the busiest GPU: the mean plus sqrt(2 v ln ranks), v the variance of
        independent draws, which is about the expected largest of them; at most all experts that it holds.
        """
        share = self.woken_share(tokens)
        held = self.count / self.ranks
        busiest = held * share + np.sqrt(2.0 * held * share * (1.0 - share) * log(self.ranks))
        return np.asarray(self.read_s * np.minimum(busiest / held, 1.0), np.float64)


@cache
def chances(count: int, per_token: int, skew: float) -> Floats:
    """Return with what chance a token takes each expert, [count]: `per_token` in all, none above 1."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
    found: Floats = weights * (per_token / weights.sum())
    while (found > 1.0).any():  # the likeliest are always taken; the others share what is left
        full = found >= 1.0
        left = per_token - int(full.sum())
        found = np.where(full, 1.0, weights * (left / weights[~full].sum()))
    found.flags.writeable = False
    return found
