"""New weights for a live vLLM engine: it is then the one that would be built from them, and can go back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.realrun.small_models import KS, need_vllm, requests, run, tiny_config
from tlt.realrun.config import RealConfig
from tlt.realrun.engine.vllm_engine import VllmEngine, make_engine
from tlt.realrun.models.drafter import make_head

if TYPE_CHECKING:
    from torch import Tensor

Weights = dict[str, "Tensor"]

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.slow,
]  # warnings of the engine's own libraries

LENGTHS = [20, 31, 12]
DRAFT_VOCAB = 256
WEIGHTS = "model.safetensors"


def _read(folder: str) -> Weights:
    from safetensors.torch import load_file

    weights: Weights = load_file(Path(folder) / WEIGHTS)
    return weights


def _moved(weights: Weights) -> Weights:
    """Return the weights with noise on every matrix."""
    import torch

    generator = torch.Generator().manual_seed(1)
    return {
        name: weight + 0.5 * weight.std() * torch.randn(weight.shape, generator=generator)
        if weight.dim() == 2
        else weight
        for name, weight in weights.items()
    }


def _model(folder: Path, like: str, weights: Weights, tied: bool) -> str:
    """Write a model folder of these weights; untied, its output layer is its own."""
    from safetensors.torch import save_file

    shutil.copytree(like, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}), encoding="utf-8")
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    return str(folder)


def _with(config: RealConfig, model: str, head: str) -> RealConfig:
    return msgspec.structs.replace(
        config,
        model=msgspec.structs.replace(config.model, folder=model),
        drafter=msgspec.structs.replace(config.drafter, folder=head),
    )


def _generate(engine: VllmEngine) -> tuple[dict[int, tuple[int, ...]], list[list[int]], int]:
    """Return the text, every draft on the way, and how many were accepted."""
    engine.submit(requests(LENGTHS))
    drafts: list[list[int]] = []
    accepted = 0
    while engine.pending():
        accepted += sum(engine.step(KS[-1]).accepted_by_position)
        drafts += [list(request.spec_token_ids) for request in engine._scheduler.running]
    return engine.responses(), drafts, accepted


@pytest.mark.parametrize("tied", [True, False])
def test_an_engine_with_new_weights_is_one_built_from_them(tied: bool, tmp_path: Path) -> None:
    need_vllm()
    config = tiny_config(tmp_path)
    policy, head = _read(config.model.folder), _read(config.drafter.folder)
    if not tied:
        policy["lm_head.weight"] = policy["model.embed_tokens.weight"].flip(0).contiguous()
    new_policy = _moved(policy)
    other = make_head(Path(config.model.folder), tmp_path / "other-head", DRAFT_VOCAB, seed=5)
    here = _model(tmp_path / "here", config.model.folder, policy, tied)
    there = _model(tmp_path / "there", config.model.folder, new_policy, tied)
    engine = make_engine(_with(config, here, config.drafter.folder), speculating=True)
    built = make_engine(_with(config, there, str(other)), speculating=True)
    before, expected = _generate(engine), _generate(built)
    assert before[0] != expected[0]
    assert before[1] != expected[1]

    engine.load_drafter(_read(str(other)), 1)
    text, drafts, _ = _generate(engine)
    assert text == before[0]
    assert drafts != before[1]
    engine.load_policy(new_policy, 1)  # the head reads the policy's embedding: its drafts change, too
    assert _generate(engine) == expected

    engine.load_policy(policy, 2)
    engine.load_drafter(head, 2)
    assert _generate(engine) == before
    built.close()
    engine.close()


def test_a_better_head_accepts_more_and_leaves_the_text(tmp_path: Path) -> None:
    """A head whose every token maps to the text's most usual one; the map comes with the weights."""
    need_vllm()
    import torch

    config = tiny_config(tmp_path)
    engine = make_engine(config, speculating=True)
    text, _, accepted = _generate(engine)
    tokens = [token for response in text.values() for token in response]
    usual = max(set(tokens), key=tokens.count)
    head = _read(config.drafter.folder)
    head["d2t"] = usual - torch.arange(DRAFT_VOCAB)
    engine.load_drafter(head, 1)
    same, drafts, more = _generate(engine)
    assert same == text
    assert {token for draft in drafts for token in draft} == {usual}
    assert more > accepted
    engine.close()


def test_weights_change_only_between_rollouts(tmp_path: Path) -> None:
    need_vllm()
    config = tiny_config(tmp_path)
    engine = make_engine(config, speculating=True)
    policy, head = _read(config.model.folder), _read(config.drafter.folder)
    engine.submit(requests([5]))
    engine.step(1)
    with pytest.raises(RuntimeError, match="1 requests are pending"):
        engine.load_policy(policy, 1)
    with pytest.raises(RuntimeError, match="1 requests are pending"):
        engine.load_drafter(head, 1)
    engine.abort_all()
    engine.load_policy(policy, 1)
    run(engine, requests([5]), (1,))
    assert len(engine.responses()[0]) == 5
    engine.close()
