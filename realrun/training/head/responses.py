"""What an engine says to problems that no step of a training run asks."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import msgspec
import numpy as np

from tlt.realrun.engine.protocol import Engine, EngineRequest
from tlt.realrun.problems.load import load_problems
from tlt.realrun.training.policy.model import Sample
from tlt.realrun.training_config import TrainConfig
from tlt.traces.common.seeds import response_seed

BEFORE_RL = 1_000_000  # steps from here on are not those of a training run
AFTER_RL = 2_000_000


class Responses(msgspec.Struct, frozen=True):
    """What an engine said to some problems, and how good it was."""

    samples: list[Sample]
    rewards: list[float]
    seconds: float
    acceptance_with_bonus: float  # emitted tokens a request and drafting engine step; 1 without drafts

    def describe(self) -> str:
        """Return one line: answers right, lengths, speed."""
        lengths = np.array([len(sample.response) for sample in self.samples])
        p50, p90, p99 = np.percentile(lengths, (50, 90, 99))
        longest, speed = lengths.max(), lengths.sum() / self.seconds
        return (
            f"{len(lengths)} responses, {np.mean(self.rewards):.1%} right; tokens p50 {p50:.0f}, "
            f"p90 {p90:.0f}, p99 {p99:.0f}, max {longest} (max over median {longest / max(p50, 1):.1f}); "
            f"{speed:,.0f} tokens a second"
        )


def generate(
    config: TrainConfig, engine: Engine, count: int, first_step: int, k: int = 0,
    lengths: Sequence[int] | None = None,
) -> Responses:  # fmt: skip
    """Have the engine answer `count` problems that no training step asks, one response each.

    With `lengths` each response is forced to its length.
    """
    problems = load_problems(config)
    asked: list[EngineRequest] = []
    places: list[tuple[int, int]] = []
    step = first_step
    while len(asked) < count:
        for group, prompt in enumerate(problems.prompts(step)[: count - len(asked)]):
            number = len(asked)
            tokens = lengths[number] if lengths else config.rollout.max_response_tokens
            seed = response_seed(config.seed, step, group)
            asked.append(EngineRequest(number, prompt, tokens, lengths is not None, seed))
            places.append((step, group))
        step += 1
    engine.responses()
    start_s = perf_counter()
    engine.submit(asked)
    accepted = request_steps = 0
    while engine.pending():
        facts = engine.step(k)
        if facts.drafted_tokens and not facts.prompt_tokens:
            accepted += sum(facts.accepted_by_position)
            request_steps += facts.batch
    seconds = perf_counter() - start_s
    responses = engine.responses()
    samples = [Sample(each.id, each.prompt_token_ids, responses[each.id]) for each in asked]
    rewards = [problems.score(*place, sample.response) for place, sample in zip(places, samples, strict=True)]
    return Responses(samples, rewards, seconds, 1.0 + accepted / max(request_steps, 1))
