"""Train the drafter during a run, or leave it as it is: GPU-hours of both over all its RL steps.

What a step takes is simulated at a few exponents of acceptance (tlt.sim.model.drafter) and interpolated. A
drafter that is left gains the drift of each policy update. One that is trained on n tokens of each step's
responses keeps the share exp(-n / recovery_tokens) of its excess, and costs n / training_tokens_per_s seconds
of one worker's GPUs, which are paid for here: TLT's spot training gets them out of idle time. The share of
the responses to train on is the one with the fewest GPU-hours.

Drift, recovery and the speed of training are known to a factor of OFF_BY at best (assumed), so each answer is
a range over the corners of all three; it holds no error of the step times.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Literal

import msgspec
import numpy as np

from tlt.sim.advise.sensitivity import first_steps, seconds
from tlt.sim.config import Config
from tlt.sim.model.drafter import SMALLEST_EXPONENT, DrafterConfig
from tlt.sim.simulation import Simulation
from tlt.traces.common.arrays import Floats
from tltsched.errors import InputError
from tltsched.schedules import schedule_name
from tltsched.spot import SpotConfig

OFF_BY = 2.0
SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)  # of a step's responses that may be trained on
GRID = 4  # exponents at which rollouts are simulated
STEPS = 3  # RL steps that are simulated at each
HOUR_S = 3600.0
Verdict = Literal["train", "leave", "not told apart"]


class Range(msgspec.Struct, frozen=True):
    """A figure, and the least and most of it over what is assumed."""

    value: float
    low: float
    high: float

    def text(self) -> str:
        """Return it as `812 [790, 850]`."""
        return f"{_hours(self.value)} [{_hours(self.low)}, {_hours(self.high)}]"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if abs(hours) >= 1000 else f"{hours:.3g}"


class TrainOrLeave(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-hours of a whole run, by what is done with the drafter."""

    policy: str
    run_steps: int
    gpus: int
    without_drafts: float
    left: Range
    trained: Range
    training: Range  # of `trained`, what training itself takes
    saved: Range  # left less trained
    share: float  # of each step's responses that are trained on
    verdict: Verdict
    assumed: tuple[str, ...]

    def lines(self, price: float | None) -> list[str]:
        """Return the answer in words, a line each; `price`: USD of a GPU-hour."""

        def usd(hours: float) -> str:
            return "" if price is None else f" ({hours * price:,.0f} USD)"

        told = {
            "train": f"train it on {self.share:.0%} of each step's responses",
            "leave": "leave it",
            "not told apart": "training and leaving it are not told apart",
        }
        return [
            f"{self.policy}, {self.run_steps} RL steps on {self.gpus} GPUs: {told[self.verdict]}",
            f"  GPU-hours without drafts {_hours(self.without_drafts)}{usd(self.without_drafts)}",
            f"  GPU-hours with the drafter left {self.left.text()}{usd(self.left.value)}",
            f"  GPU-hours with it trained {self.trained.text()}{usd(self.trained.value)}, of which training "
            f"{self.training.text()}{usd(self.training.value)}",
            f"  saved by training {self.saved.text()}{usd(self.saved.value)}",
            *(f"  assumed: {text}" for text in self.assumed),
        ]


class _Corner(msgspec.Struct, frozen=True):
    """Factors on the drift, on the speed of training and on the tokens that recovery takes."""

    drift: float = 1.0
    speed: float = 1.0
    recovery: float = 1.0


NOMINAL = _Corner()
CORNERS = tuple(_Corner(*factors) for factors in product((1 / OFF_BY, OFF_BY), repeat=3))


def train_or_leave(
    drafting: Simulation, plain: Simulation, name: str, run_steps: int, first_tokens: int = 0
) -> TrainOrLeave:
    """Return the answer for the policy of `drafting`; `plain` is the same workload without drafts.

    `first_tokens` are trained on before the run, where no drafter exists yet. Raises InputError for a policy
    that never drafts, a drafter that has no weights, and a first training of a drafter that exists.
    """
    drafter = drafting.config.drafter
    _check(drafting, first_tokens)
    _check_schedule(drafting)
    steps_s = _step_seconds(drafting, drafter, run_steps)
    plain_s = float(seconds(_few(plain)).mean())
    tokens = _tokens_per_step(drafting)
    gpus, tp = drafting.config.hardware.gpus, drafting.config.hardware.tp

    def left(corner: _Corner) -> float:
        if not drafter.exists:
            return plain_s * run_steps * gpus / HOUR_S
        return float(steps_s(exponents_left(drafter, run_steps, corner.drift)).sum()) * gpus / HOUR_S

    def training(corner: _Corner, share: float) -> float:
        trained = first_tokens + share * tokens * run_steps
        return trained / (drafter.training_tokens_per_s * corner.speed) * tp / HOUR_S

    def trained(corner: _Corner, share: float) -> float:
        exponents = exponents_trained(drafter, run_steps, corner.drift, share * tokens / corner.recovery)
        return float(steps_s(exponents).sum()) * gpus / HOUR_S + training(corner, share)

    share = min(SHARES, key=lambda each: trained(NOMINAL, each))
    saved = _range(lambda corner: left(corner) - trained(corner, share))
    verdict: Verdict = "train" if saved.low > 0 else "leave" if saved.high <= 0 else "not told apart"
    return TrainOrLeave(
        policy=name,
        run_steps=run_steps,
        gpus=gpus,
        without_drafts=plain_s * run_steps * gpus / HOUR_S,
        left=_range(left),
        trained=_range(lambda corner: trained(corner, share)),
        training=_range(lambda corner: training(corner, share)),
        saved=saved,
        share=share,
        verdict=verdict,
        assumed=_assumed(drafter, drafting.law.source),
    )


def exponents_left(drafter: DrafterConfig, steps: int, drift: float = 1.0) -> Floats:
    """Return the exponent of each step of a drafter that is never trained, [steps]."""
    grown = drafter.initial_exponent + drift * drafter.drift_per_update * np.arange(steps)
    return np.asarray(np.maximum(grown, SMALLEST_EXPONENT), np.float64)


def exponents_trained(drafter: DrafterConfig, steps: int, drift: float, tokens: float) -> Floats:
    """Return the exponent of each step of a drafter that is trained on `tokens` of each step, [steps]."""
    kept = float(np.exp(-tokens / drafter.recovery_tokens))
    exponent, found = drafter.initial_exponent, []
    for _ in range(steps):
        found.append(exponent)
        gained = max(exponent - 1.0, 0.0) * (1.0 - kept)
        exponent = max(exponent - gained + drift * drafter.drift_per_update, SMALLEST_EXPONENT)
    return np.array(found)


def _check(drafting: Simulation, first_tokens: int) -> None:
    drafter = drafting.config.drafter
    if not drafting.drafts:
        raise InputError("--policy", "one that never drafts", "a policy that drafts", "such as static:4")
    if drafter.model_free or drafter.kind == "draft_model":
        allowed = "head, mtp or block: drafters that are trained beside the policy"
        raise InputError("drafter.kind", drafter.kind, allowed, "there is nothing to train")
    if drafter.exists == bool(first_tokens):
        fix = "--first-tokens goes with drafter.exists = false"
        raise InputError("--first-tokens", first_tokens, "tokens, where no drafter exists yet", fix)


def _check_schedule(drafting: Simulation) -> None:
    schedule = drafting.config.cluster.schedule_spec()
    if not schedule.keeps_order:
        raise InputError(
            "cluster.schedule", schedule_name(schedule),
            f"one that trains each step on its own responses: {STEPS} steps are simulated, which flatters "
            "schedules that put long ones off",
            "ask with synchronous, and compare schedules with `tlt sim compare`",
        )  # fmt: skip


def _step_seconds(drafting: Simulation, drafter: DrafterConfig, run_steps: int) -> Callable[[Floats], Floats]:
    """Return the mean seconds of an RL step as a function of the exponent."""
    ends = np.concatenate([exponents_left(drafter, run_steps, corner.drift) for corner in CORNERS])
    low, high = min(float(ends.min()), 1.0), max(float(ends.max()), 1.0 + 1e-6)
    grid = np.geomspace(low, high, GRID)
    found = np.array([float(seconds(_few(_at(drafting, exponent))).mean()) for exponent in grid.tolist()])

    def at(exponents: Floats) -> Floats:
        return np.asarray(np.interp(exponents, grid, found), np.float64)

    return at


def _at(drafting: Simulation, exponent: float) -> Simulation:
    """Return it with a drafter that stays at an exponent, serves from the start and is never trained."""
    config: Config = drafting.config
    fixed = msgspec.structs.replace(
        config.drafter, initial_exponent=exponent, drift_per_update=0.0, exists=True, drift=""
    )
    cluster = msgspec.structs.replace(config.cluster, spot=SpotConfig())
    return drafting.changed(msgspec.structs.replace(config, drafter=fixed, cluster=cluster))


def _few(simulation: Simulation) -> Simulation:
    return simulation.on(first_steps(simulation.trace, STEPS))


def _tokens_per_step(simulation: Simulation) -> float:
    rows = simulation.trace.rows
    return float(rows["response_tokens"].sum()) / int(rows["step"].nunique())


def _range(of: Callable[[_Corner], float]) -> Range:
    ends = [of(corner) for corner in CORNERS]
    value = of(NOMINAL)
    return Range(value, min(*ends, value), max(*ends, value))


def _assumed(drafter: DrafterConfig, acceptance: str) -> tuple[str, ...]:
    drift = f"drift of {drafter.drift_per_update:+g} an update"
    named = f"{drift} ({drafter.drift})" if drafter.drift else drift
    return (
        f"{named}, training of {drafter.training_tokens_per_s:,.0f} tokens/s a worker and recovery of "
        f"{drafter.recovery_tokens:,.0f} tokens, each to a factor of {OFF_BY:g}",
        f"acceptance of a drafter in full training: {acceptance}",
    )
