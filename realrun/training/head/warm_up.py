"""A head before RL, learned from the policy's own responses, and what a head is worth on held-out prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import msgspec
import numpy as np

from tlt.realrun.engine.factory import engine_factory
from tlt.realrun.engine.protocol import Engine, EngineRequest
from tlt.realrun.models.drafter import aux_layers
from tlt.realrun.models.target import target_config
from tlt.realrun.problems.load import load_problems
from tlt.realrun.prompts import vocabulary
from tlt.realrun.training.features import Features
from tlt.realrun.training.head.module import Head, draft_ids, export_head, new_head
from tlt.realrun.training.head.trainer import HeadTrainer
from tlt.realrun.training.policy.model import PolicyModel, Sample, load_policy
from tlt.realrun.training_config import TrainConfig
from tlt.traces.common.seeds import response_seed

BEFORE_RL = 1_000_000  # steps from here on are not those of a training run
AFTER_RL = 2_000_000
HELD_OUT_SHARE = 0.1
EVALUATED = 32  # responses that agreement is measured on
REPORT_EVERY_S = 5.0

Report = Callable[[str], None]


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


def warm_up_head(
    config: TrainConfig, out: Path, *, responses: int, tokens: int, draft_vocab: int, factory: str,
    report: Report,
) -> Path:  # fmt: skip
    """Train a new head on `responses` of the policy for `tokens` chain starts, and write it to `out`."""
    engine = engine_factory(factory)(config.engine_settings(), False)
    said = generate(config, engine, responses, BEFORE_RL)
    engine.close()
    report(said.describe())
    folder = Path(config.model.folder)
    policy = load_policy(config)
    layers = aux_layers(policy.layers)
    features = [
        scored.features
        for scored in policy.log_probs(said.samples, config.engine.temperature, layers)
        if scored.features is not None
    ]
    cut = max(1, int(len(features) * HELD_OUT_SHARE))
    held_out, learned = features[:cut][:EVALUATED], features[cut:]
    vocab = vocabulary(folder)
    end = target_config(folder).get("eos_token_id") or ()  # one id, several, or none
    ids = draft_ids(
        [sample.response for sample in said.samples], min(draft_vocab, vocab), vocab,
        always=[end] if isinstance(end, int) else end,
    )  # fmt: skip
    head = new_head(folder, ids, config.seed)
    trainer = HeadTrainer(
        head, policy.embedding(), policy.output_layer(), config.head, policy.device, policy.dtype
    )
    _train(trainer, policy, learned, held_out, config, tokens, report)
    return export_head(head, out, folder)


def _train(
    trainer: HeadTrainer, policy: PolicyModel, learned: list[Features], held_out: list[Features],
    config: TrainConfig, tokens: int, report: Report,
) -> None:  # fmt: skip
    rng = np.random.default_rng(config.seed)
    order: list[int] = []
    done, start_s, told_s = 0, perf_counter(), 0.0
    report("agreement before: " + agreement(trainer, trainer.head, policy, held_out))
    while done < tokens:
        batch: list[Features] = []
        width = 0
        while True:
            if not order:
                order = rng.permutation(len(learned)).tolist()
            pick = learned[order[-1]]
            if len(pick) > config.head.batch_tokens:
                pick = pick.window(config.head.batch_tokens, 0)
            width = max(width, len(pick))
            if batch and width * (len(batch) + 1) > config.head.batch_tokens:
                break
            batch.append(pick)
            order.pop()
        loss = trainer.step(batch)
        done += max(loss.tokens, 1)
        now_s = perf_counter() - start_s
        if now_s - told_s > REPORT_EVERY_S:
            told_s = now_s
            report(f"{done:,} of {tokens:,} tokens, {done / now_s:,.0f} a second, loss {loss.loss:.3f}")
    report("agreement after: " + agreement(trainer, trainer.head, policy, held_out))


def agreement(trainer: HeadTrainer, head: Head, policy: PolicyModel, features: list[Features]) -> str:
    """Return one line: how many drafts in a row are accepted, by position."""
    result = trainer.agreement(head, features, policy.output_layer())
    greedy = " ".join(f"{share:.2f}" for share in result.greedy)
    sampled = " ".join(f"{share:.2f}" for share in result.sampled)
    return f"greedy {greedy}; sampled {sampled} ({result.chains:,} chains)"


class Measured(msgspec.Struct, frozen=True):
    """One batch size and K: seconds for the same responses, and the acceptance length with bonus."""

    batch: int
    k: int
    seconds: float
    speedup: float
    acceptance_with_bonus: float


def measure_head(
    config: TrainConfig, *, batches: Sequence[int], repeats: int, factory: str, report: Report
) -> list[Measured]:
    """Return what the head in drafter.folder gains over no speculation on held-out prompts.

    Every K of drafter.ks generates the lengths that the plain engine came to by itself.
    """
    settings = config.engine_settings()
    make = engine_factory(factory)
    plain, drafting = make(settings, False), make(settings, True)
    ks = sorted(set(config.drafter.ks))
    plain.warm_up(batches, (0,))
    drafting.warm_up(batches, ks)
    rows = []
    for batch in batches:
        lengths = [len(each.response) for each in generate(config, plain, batch, AFTER_RL).samples]
        plain_s = _median([generate(config, plain, batch, AFTER_RL, 0, lengths) for _ in range(repeats)])
        for k in ks:
            runs = [generate(config, drafting, batch, AFTER_RL, k, lengths) for _ in range(repeats)]
            seconds, accepted = _median(runs), runs[0].acceptance_with_bonus
            row = Measured(batch, k, seconds, plain_s / seconds, accepted)
            report(f"batch {batch}, K {k}: {row.speedup:.2f}x, acceptance length {accepted:.2f} with bonus")
            rows.append(row)
    plain.close()
    drafting.close()
    return rows


def _median(runs: Sequence[Responses]) -> float:
    return float(np.median([run.seconds for run in runs]))
