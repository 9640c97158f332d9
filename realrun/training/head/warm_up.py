"""A head before RL, learned from the policy's own responses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from tlt.realrun.engine.factory import engine_factory
from tlt.realrun.models.drafter import aux_layers
from tlt.realrun.models.target import target_config
from tlt.realrun.prompts import vocabulary
from tlt.realrun.training.features import Features
from tlt.realrun.training.head.module import Head, draft_ids, export_head, new_head
from tlt.realrun.training.head.responses import BEFORE_RL, generate
from tlt.realrun.training.head.rows import fill
from tlt.realrun.training.head.trainer import HeadTrainer
from tlt.realrun.training.policy.model import PolicyModel, load_policy
from tlt.realrun.training_config import TrainConfig

HELD_OUT_SHARE = 0.1
EVALUATED = 32  # responses that agreement is measured on
REPORT_EVERY_S = 5.0

Report = Callable[[str], None]


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

    def draw() -> Features:
        if not order:
            order.extend(rng.permutation(len(learned)).tolist())
        return learned[order.pop()]

    while done < tokens:
        loss = trainer.step(fill(trainer.shape, draw, rng, len(learned)))
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
