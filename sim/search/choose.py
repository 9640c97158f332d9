"""How sure a choice among finalists is, what being wrong costs, and which input to measure first.

Draws of every uncertain input give each finalist's objective; the best by the fit is the choice. Its loss in
a draw is its objective over that of the finalist that is best there, less one. The mean loss over draws of
all inputs is what knowing everything would save (the expected value of perfect information); over draws of
one input alone, the others at the fit, what knowing that input would. Lengths are drawn within their error
over RL steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tlt.sim.advise.sensitivity import growth, response
from tlt.sim.parallel.timing import Timing
from tlt.sim.search.unknowns import LENGTHS, MOVED, Uncertain
from tlt.traces.common.arrays import Floats
from tlt.traces.common.intervals import TAIL, Jackknife, interval_of
from tlt.traces.common.regret import Regrets, weigh
from tlt.traces.common.seeds import CHOICE, generator
from tlt.traces.results.plan import Input

DRAWS = 4000
LEAST_GROWTH = 1e-3  # a line that errors take below 0
LENGTHS_SPREAD = "spread over the RL steps simulated"
LENGTHS_COMMAND = "tlt trace import LOGS --out lengths.parquet"


class Finalist(msgspec.Struct, frozen=True, kw_only=True):
    """A design, its steps, and by how much of itself its time grows with each part of each input."""

    design: str
    timing: Timing
    scale: float  # objective of one second a token
    response: Mapping[tuple[str, str], float]  # (input, part) -> growth for a change of 1; absent: 0

    def growth(self, inputs: Sequence[Uncertain], values: Mapping[str, Floats]) -> Floats:
        """Return what its time is multiplied by, [draws]; values: of each input, [draws, parts]."""
        answers = [
            np.array([self.response.get((each.name, part), 0.0) for part in each.parts]) for each in inputs
        ]
        return growth(zip((values[each.name] for each in inputs), answers, strict=True), LEAST_GROWTH)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The choice: indices of finalists, and how sure it is."""

    best: int
    runner_up: int | None
    objective: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    ratio: tuple[float, float, float] | None  # runner-up over best: value and 95 % interval
    runner_up_better: float
    other_better: float
    loss_if_wrong: float
    regrets: Regrets  # of the best among the finalists, whose names are their designs
    inputs: tuple[Input, ...]

    @property
    def expected_loss(self) -> float:
        """Share of the objective that not knowing better costs, in the mean over all draws."""
        return self.regrets.regret.value


def decide(finalists: Sequence[Finalist], inputs: Sequence[Uncertain], seed: int) -> Decision:
    """Judge the finalists; there is one or more."""
    rng = generator(seed, CHOICE)
    values = {each.name: each.draw(DRAWS, rng) for each in inputs}
    steps = _over_lengths(finalists, rng)
    fit = np.array([each.timing.s_per_token() * each.scale for each in finalists])
    order = np.argsort(fit, kind="stable").tolist()
    best, second = order[0], order[1] if len(order) > 1 else None
    alone = {each.name: fit * _factor(finalists, [each], values) for each in inputs}
    alone[LENGTHS] = steps
    drawn = steps * _factor(finalists, inputs, values)
    low, high = np.quantile(drawn, [TAIL, 1 - TAIL], axis=0)
    loss = drawn[:, best] / drawn.min(axis=1) - 1.0
    wrong = loss > 0.0
    ratio = None
    if second is not None:
        between = interval_of(drawn[:, second] / drawn[:, best])
        ratio = (float(fit[second] / fit[best]), *between)
    return Decision(
        best=best,
        runner_up=second,
        objective=tuple(fit.tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        ratio=ratio,
        runner_up_better=0.0 if second is None else float((drawn[:, second] < drawn[:, best]).mean()),
        other_better=float(wrong.mean()),
        loss_if_wrong=float(loss[wrong].mean()) if wrong.any() else 0.0,
        regrets=weigh([each.design for each in finalists], fit, drawn.T, finalists[best].design),
        inputs=_ranked(inputs, alone, best, second),
    )


def _factor(
    finalists: Sequence[Finalist], inputs: Sequence[Uncertain], values: Mapping[str, Floats]
) -> Floats:
    """Return what the inputs multiply each finalist's time by, [draws, finalists]."""
    return np.stack([finalist.growth(inputs, values) for finalist in finalists], axis=1)


def _over_lengths(finalists: Sequence[Finalist], rng: np.random.Generator) -> Floats:
    """Return objectives within their error over RL steps, the same for all, [draws, finalists]."""
    steps = Jackknife(len(finalists[0].timing.step_s))
    objectives = [each.scale * steps.ratio(each.timing.step_s, each.timing.tokens) for each in finalists]
    return steps.drawn(np.stack(objectives), rng, DRAWS).T


def _ranked(
    inputs: Sequence[Uncertain], alone: Mapping[str, Floats], best: int, second: int | None
) -> tuple[Input, ...]:
    """Return every input with what it does alone, the one that costs most first."""
    about = {each.name: (each.spread, each.command) for each in inputs}
    about[LENGTHS] = (LENGTHS_SPREAD, LENGTHS_COMMAND)
    variance = {
        name: 0.0 if second is None else float(np.log(drawn[:, second] / drawn[:, best]).var())
        for name, drawn in alone.items()
    }
    total = sum(variance.values())
    ranked = [
        Input(
            name=name,
            spread=about[name][0],
            variance_share=variance[name] / total if total > 0 else 0.0,
            expected_loss=float((drawn[:, best] / drawn.min(axis=1) - 1.0).mean()),
            command=about[name][1],
        )
        for name, drawn in alone.items()
    ]
    return tuple(sorted(ranked, key=lambda each: (-each.expected_loss, -each.variance_share)))


def response_of(base: Timing, probed: Mapping[tuple[str, str], Timing]) -> dict[tuple[str, str], float]:
    """Return growth of the time a token for a change of 1 in each part, from its probe."""
    fit = base.s_per_token()
    return {key: response(fit, timing.s_per_token(), MOVED[key[1]]) for key, timing in probed.items()}
