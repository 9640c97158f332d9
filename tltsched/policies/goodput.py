"""Goodput: the most expected tokens per second, from calibrated times and current acceptance.

Law, for each draft configuration c:
    score(c) = batch * E[tokens per engine step | c] / (engine_step_s(c, batch) + switch)
where `switch` is switch_cost_s / decision_engine_steps for all but the one in use. The best replaces the one
in use only if its score is higher by the share `hysteresis`, so that noise in the acceptance does not make
the engine flip.

E[tokens per engine step | c] is a harmonic mean over the requests that run now, each by its own history,
shrunk to the population (tltsched.policies.estimators.running): those that are left last are not those of an
average over all that ever ran. `by_request = false` takes that average.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from tltsched.commands import ResumeCost
from tltsched.draft_config import OFF, DraftConfig
from tltsched.errors import InputError
from tltsched.policies.base import (
    Batch,
    Choice,
    Outcome,
    PolicyConfig,
    Rng,
    StepTimes,
    WhenOff,
    require_at_least,
    required_times,
)
from tltsched.policies.estimators.acceptance import AcceptanceEstimate, require_memory
from tltsched.policies.estimators.running import RunningAcceptance
from tltsched.written.draft_config import WrittenDraftConfig, canonical, parse_draft_config

# Assumed, not measured: each draft accepted with probability 0.7 given the one before it. Replace it by the
# acceptance of your own drafter; the estimate forgets it after some `memory_request_steps`.
ASSUMED_SURVIVAL = tuple(round(0.7**position, 4) for position in range(1, 9))


# Assumed of any drafter. 0.55 was measured of one EAGLE-3 head; the estimate hardly depends on it, since a
# request is known by its own history after one interval (docs/evidence, goodput_recorded).
ASSUMED_SPREAD = 0.5


class GoodputConfig(PolicyConfig, tag="goodput", frozen=True):
    """Maximise predicted tokens per second over `draft_configs`. Needs calibrated step times of each."""

    needs_times: ClassVar[bool] = True

    draft_configs: tuple[WrittenDraftConfig, ...] = ("off", "1", "2", "4", "8")
    """Draft configurations to choose from; of equal ones the first wins."""
    when_off: WhenOff = "k0"
    """How the engine runs while `off` is chosen."""
    resume_cost: ResumeCost = "none"
    """What drafting again costs (only with when_off `drafter_dropped`)."""
    decision_engine_steps: int = 64
    """Engine steps between two decisions."""
    switch_cost_s: float = 0.0
    """Seconds lost by a change of draft configuration, spread over one decision interval."""
    hysteresis: float = 0.005
    """Relative gain that a change of draft configuration must promise."""
    acceptance_prior: tuple[float, ...] = ASSUMED_SURVIVAL
    """Probability that the drafts up to each position are all accepted, until it is measured (assumed)."""
    tree_prior: dict[str, float] = msgspec.field(default_factory=dict)
    """Accepted length with the bonus token, by tree, until measured (without: as a chain of its depth)."""
    memory_request_steps: float = 2000.0
    """Request-steps over which the acceptance estimate forgets."""
    by_request: bool = True
    """Estimate acceptance from the requests that run now, as far as the engine tells drafts by request."""
    request_spread: float = ASSUMED_SPREAD
    """Standard deviation of the log-exponent of acceptance between requests (assumed; see by_request)."""
    request_memory_steps: float = 100.0
    """Engine steps of a request over which its own history is forgotten (assumed; see by_request)."""
    probe_every_engine_steps: int = 0
    """After so many engine steps off, draft for one decision interval to see acceptance anew; 0: never."""

    def __post_init__(self) -> None:
        draft_configs = [parse_draft_config(text) for text in self.draft_configs]
        if not draft_configs or len(set(draft_configs)) != len(draft_configs):
            raise InputError(
                "draft_configs",
                self.draft_configs,
                "one or more draft configurations, each once",
                "correct the list",
            )
        self._normalise(
            draft_configs=tuple(map(str, draft_configs)),
            tree_prior={canonical(tree): length for tree, length in self.tree_prior.items()},
        )
        prior = self.acceptance_prior
        falls = all(low <= high for high, low in zip((1.0, *prior), prior, strict=False))
        if not prior or not falls or not prior[-1] >= 0:
            raise InputError(
                "acceptance_prior",
                prior,
                "probabilities that never rise",
                "give survival, not conditional rates",
            )
        for text, length in self.tree_prior.items():
            draft_config = parse_draft_config(text)
            if draft_config.is_chain or not 1 <= length <= draft_config.depth + 1:
                raise InputError(
                    "tree_prior",
                    {text: length},
                    "a tree with a length of 1 to depth + 1",
                    "correct the entry",
                )
        lows = {
            "decision_engine_steps": 1,
            "switch_cost_s": 0,
            "hysteresis": 0,
            "probe_every_engine_steps": 0,
            "request_spread": 0.01,
            "request_memory_steps": 1,
        }
        require_at_least(self, lows)
        require_memory(self.memory_request_steps)

    def build(self, rng: Rng, times: StepTimes | None) -> GoodputPolicy:  # noqa: ARG002 (nothing is random)
        """Return the policy; raises InputError if `times` is missing or lacks a draft configuration."""
        return GoodputPolicy(self, times)


class GoodputPolicy:
    """Scores all draft configurations at each decision; learns acceptance from every drafting interval."""

    def __init__(self, config: GoodputConfig, times: StepTimes | None) -> None:
        self.when_off: WhenOff = config.when_off
        self.resume_cost: ResumeCost = config.resume_cost
        self.wants_requests = config.by_request
        self.draft_configs: tuple[DraftConfig, ...] = tuple(
            parse_draft_config(text) for text in config.draft_configs
        )
        self.config = config
        self.times = required_times("goodput", times, self.draft_configs)
        self._drafting = tuple(draft_config for draft_config in self.draft_configs if draft_config.depth > 0)
        tree_prior = {parse_draft_config(text): length for text, length in config.tree_prior.items()}
        population = AcceptanceEstimate(config.acceptance_prior, tree_prior, config.memory_request_steps)
        self.acceptance = RunningAcceptance(population, config.request_spread, config.request_memory_steps)
        self.switch_s = config.switch_cost_s / config.decision_engine_steps
        self.current: DraftConfig | None = None
        self.engine_steps_off = 0

    def begin_rollout(self) -> None:
        """Forget which is in use: the caches are empty, so any may be taken up freely; and who runs."""
        self.acceptance.begin_rollout()
        self.current = None
        self.engine_steps_off = 0

    def choose(self, batch: Batch) -> Choice:
        """Return the draft configuration of the highest score, for one decision interval."""
        every = self.config.probe_every_engine_steps
        if every and self.engine_steps_off >= every and self._drafting:
            # A probe does not become the one in use, so going back to OFF has no hysteresis to overcome.
            scores = self._scores(self._drafting, batch)
            return Choice(self._drafting[scores.index(max(scores))], self.config.decision_engine_steps)
        scores, current = self._scores(self.draft_configs, batch), self.current
        best = max(scores)
        if current is None or best > scores[self.draft_configs.index(current)] * (1 + self.config.hysteresis):
            self.current = current = self.draft_configs[scores.index(best)]
        return Choice(current, self.config.decision_engine_steps)

    def observe(self, outcome: Outcome) -> None:
        """Update the acceptance estimate, or count the engine steps that ran without drafts."""
        if outcome.draft_config == OFF:
            self.engine_steps_off += outcome.engine_steps
            self.acceptance.skip(outcome.finished)
        else:
            self.engine_steps_off = 0
            self.acceptance.observe(outcome)

    def _scores(self, draft_configs: tuple[DraftConfig, ...], batch: Batch) -> list[float]:
        """Return expected tokens per second of the batch under each draft configuration."""
        current, requests = self.current, batch.requests
        scores = []
        tokens_under = self.acceptance.tokens_per_engine_steps(draft_configs, requests)
        for draft_config, tokens in zip(draft_configs, tokens_under, strict=True):
            seconds = self.times.engine_step_s(draft_config, batch)
            if current is not None and draft_config != current:
                seconds += self.switch_s
            scores.append(requests * tokens / seconds)
        return scores
