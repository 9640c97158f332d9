"""What a head is worth on held-out prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from tlt.realrun.engine.factory import engine_factory
from tlt.realrun.engine.protocol import Engine
from tlt.realrun.training.head.responses import AFTER_RL, generate
from tlt.realrun.training_config import TrainConfig
from tlt.traces.common.arrays import Floats

BATCH_STEPS = 1_000  # from one batch of problems to the next


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One batch size and K over the same responses; spreads are over repeats, lowest to highest."""

    batch: int
    k: int
    responses: int
    tokens: int  # of those responses
    plain_tokens_per_s: float  # without speculation, median of the repeats
    tokens_per_s: float  # drafting, median
    speedup: float  # median of the repeats' ratios, each of a plain and a drafting run one after the other
    spread: tuple[float, float]
    acceptance_with_bonus: float

    def describe(self) -> str:
        """Return one line."""
        low, high = self.spread
        return (
            f"batch {self.batch}, K {self.k}: {self.tokens_per_s:,.0f} tokens/s against "
            f"{self.plain_tokens_per_s:,.0f}, {self.speedup:.2f}x ({low:.2f} to {high:.2f}), acceptance "
            f"length {self.acceptance_with_bonus:.2f} with bonus"
        )


class HeldOut:
    """The held-out prompts of one batch size, asked batch after batch, at the lengths of a plain engine."""

    def __init__(self, config: TrainConfig, batch: int, prompts: int, plain: Engine) -> None:
        """Have `plain` answer as many whole batches as hold `prompts`, at lengths it comes to by itself."""
        self._config = config
        self._batch = batch
        self._firsts = [AFTER_RL + BATCH_STEPS * number for number in range(-(-prompts // batch))]
        said = [generate(config, plain, batch, first) for first in self._firsts]
        self._lengths = [[len(each.response) for each in responses.samples] for responses in said]
        self.responses = batch * len(said)
        self.tokens = sum(sum(lengths) for lengths in self._lengths)

    def run(self, engine: Engine, k: int) -> tuple[float, float]:
        """Return the seconds of all batches, and the acceptance length with bonus, mean over them."""
        said = [
            generate(self._config, engine, self._batch, first, k, lengths)
            for first, lengths in zip(self._firsts, self._lengths, strict=True)
        ]
        lengths = [responses.acceptance_with_bonus for responses in said]
        return sum(responses.seconds for responses in said), float(np.mean(lengths))


def measure_head(
    config: TrainConfig,
    *,
    batches: Sequence[int],
    prompts: int,
    repeats: int,
    factory: str,
) -> Iterator[list[Measured]]:  # fmt: skip
    """Yield what the head in drafter.folder gains over no speculation on held-out prompts, batch by batch.

    Every K of drafter.ks generates the lengths that the plain engine came to by itself. Each repeat runs the
    plain engine and then every K, so that a machine that slows down slows all of them.
    """
    settings = config.engine_settings()
    make = engine_factory(factory)
    plain, drafting = make(settings, False), make(settings, True)
    ks = sorted(set(config.drafter.ks))
    plain.warm_up(batches, (0,))
    drafting.warm_up(batches, ks)
    for batch in batches:
        asked = HeldOut(config, batch, prompts, plain)
        plain_s, seconds, accepted = [], [], []
        for _ in range(repeats):
            plain_s.append(asked.run(plain, 0)[0])
            runs = [asked.run(drafting, k) for k in ks]
            seconds.append([each[0] for each in runs])
            accepted.append([each[1] for each in runs])
        yield _rows_of(asked, batch, ks, np.array(plain_s), np.array(seconds), np.array(accepted))
    plain.close()
    drafting.close()


def _rows_of(
    asked: HeldOut, batch: int, ks: Sequence[int], plain_s: Floats, seconds: Floats, accepted: Floats
) -> list[Measured]:
    """Return a row a K; plain_s is [repeats], the other two are [repeats, K]."""
    ratios = plain_s[:, None] / seconds
    return [
        Measured(
            batch=batch,
            k=k,
            responses=asked.responses,
            tokens=asked.tokens,
            plain_tokens_per_s=asked.tokens / float(np.median(plain_s)),
            tokens_per_s=asked.tokens / float(np.median(seconds[:, place])),
            speedup=float(np.median(ratios[:, place])),
            spread=(float(ratios[:, place].min()), float(ratios[:, place].max())),
            acceptance_with_bonus=float(accepted[:, place].mean()),
        )
        for place, k in enumerate(ks)
    ]
