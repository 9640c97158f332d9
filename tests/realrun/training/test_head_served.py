"""A trained head in the real engine: draft for draft it is accepted where training says it will be."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.realrun.small_models import KS, need_vllm, requests, run, tiny_config
from tests.realrun.training.head_cases import heads, torch
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.models.drafter import aux_layers
from tlt.realrun.training_config import HeadConfig

trainers = pytest.importorskip("tlt.realrun.training.head.trainer")
agreements = pytest.importorskip("tlt.realrun.training.head.agreement")
policies = pytest.importorskip("tlt.realrun.training.policy.model")
vocabularies = pytest.importorskip("tlt.realrun.training.head.module")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the engine's own libraries

LENGTHS = [60, 45, 70]
DRAFT_VOCAB = 24  # of the target's 512: less than the responses use
TRAINING_STEPS = 60


def greedy(policy: Any, request: EngineRequest) -> Any:
    """Return the target's own greedy response."""
    tokens = list(request.prompt_token_ids)
    with torch.no_grad():
        for _ in range(request.response_tokens):
            logits = policy.model(input_ids=torch.tensor([tokens]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
    prompt = len(request.prompt_token_ids)
    return policies.Sample(request.id, tuple(tokens[:prompt]), tuple(tokens[prompt:]))


def predicted(same: Any) -> list[int]:
    """Return how many drafts each engine step gets accepted, by the steps at which each chain agrees."""
    accepted, chain = [], 0
    while chain < len(same):
        accepted.append(int(same[chain].long().cumprod(0).sum()))
        chain += accepted[-1] + 1
    return accepted


@pytest.mark.slow
def test_an_engine_accepts_the_drafts_that_training_predicts(tmp_path: Path) -> None:
    need_vllm()
    from tlt.realrun.engine.vllm_engine import make_engine

    config = tiny_config(tmp_path)
    model = Path(config.model.folder)
    asked = requests(LENGTHS)
    policy = policies.PolicyModel(model, "cpu", "float32", 1000, "masked")
    said = [greedy(policy, request) for request in asked]
    features = {
        scored.sample.id: scored.features for scored in policy.log_probs(said, 1.0, aux_layers(policy.layers))
    }
    ids = vocabularies.draft_ids([sample.response for sample in said], DRAFT_VOCAB, 512)
    trainer = trainers.HeadTrainer(
        heads.new_head(model, ids), policy.embedding(), policy.output_layer(),
        HeadConfig(learning_rate=2e-3), "cpu", torch.float32,
    )  # fmt: skip
    for _ in range(TRAINING_STEPS):
        trainer.step([[features[0]], [features[1]]])  # the third is new to the head
    folder = heads.export_head(trainer.head, tmp_path / "exported", model)
    drafter = msgspec.structs.replace(config.drafter, folder=str(folder))
    engine = make_engine(msgspec.structs.replace(config, drafter=drafter), True)
    drafted: list[int] = []
    for request, sample in zip(asked, said, strict=True):
        facts = run(engine, [request], (KS[-1],))
        assert engine.responses() == {request.id: sample.response}
        accepted = [
            sum(engine_step.accepted_by_position)
            for engine_step in facts
            if engine_step.drafted_tokens == KS[-1]
        ]
        chains = agreements.compare(
            trainer.head, [features[request.id]], policy.embedding(), policy.output_layer(), 1.0
        )
        expected = predicted(chains.same)
        assert accepted[: len(expected)] == expected
        drafted += expected
    engine.close()
    assert set(drafted) >= {0, 1, KS[-1]}  # it was no trivial agreement
    assert any(before != after for before, after in pairwise(drafted))
