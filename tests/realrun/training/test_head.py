"""The trainable EAGLE-3 head: it is the one that an engine runs, and it comes and goes as a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.realrun.training.head_cases import (
    DRAFT_IDS,
    VOCAB,
    drafting,
    heads,
    response,
    target,
    tiny_head,
    tiny_model,
    torch,
)
from tlt.realrun.models.drafter import head_config, make_head
from tlt.realrun.models.target import target_config
from tltsched.errors import InputError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models"))


def test_unrolled_steps_are_those_of_drafting_with_a_cache(model: Path) -> None:
    head, embedding, each = tiny_head(model).requires_grad_(False), target(model), response(3, 8, seed=1)
    steps, starts = 3, 7
    embedded = embedding[each.tokens][None]
    alone = torch.zeros((1, starts), dtype=torch.long)
    found = torch.cat(list(head.unrolled(embedded, each.aux[None, :starts], alone, steps)))
    for start in range(starts):
        expected = torch.stack(drafting(head, embedding, each, start, steps))
        torch.testing.assert_close(found[:, start], expected, rtol=1e-4, atol=1e-5)


def test_a_new_head_starts_from_the_last_layer(model: Path) -> None:
    from safetensors.torch import load_file

    weights = load_file(model / "model.safetensors")
    head = heads.new_head(model, torch.tensor(DRAFT_IDS))
    layer = head.midlayer
    assert torch.equal(layer.mlp.up_proj.weight, weights["model.layers.1.mlp.up_proj.weight"])
    assert torch.equal(
        layer.self_attn.k_proj.weight[:, 64:], weights["model.layers.1.self_attn.k_proj.weight"]
    )
    assert torch.equal(head.lm_head.weight, target(model)[list(DRAFT_IDS)])
    assert {parameter.dtype for parameter in head.parameters()} == {torch.float32}
    same, other = (heads.new_head(model, torch.tensor(DRAFT_IDS), seed) for seed in (0, 1))
    assert torch.equal(head.fc.weight, same.fc.weight)
    assert not torch.equal(head.fc.weight, other.fc.weight)


def test_any_target_of_one_file_or_several(model: Path, tmp_path: Path) -> None:
    """A published Qwen2 has attention biases, its own output layer, several files and rope_theta outside."""
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] * 2
    weights |= {f"model.layers.1.self_attn.{name}_proj.bias": torch.ones(8) for name in "qkv"}
    names = sorted(weights)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: weights[name] for name in part}, tmp_path / f"model-{number}.safetensors")
    config = target_config(model)
    del config["rope_parameters"]
    config |= {"rope_theta": 5000.0, "model_type": "qwen2", "attention_bias": True}
    config |= {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    head = heads.new_head(tmp_path, torch.tensor(DRAFT_IDS))
    assert torch.equal(head.lm_head.weight, 2 * target(model)[list(DRAFT_IDS)])
    assert head.config["rope_parameters"] == {"rope_type": "default", "rope_theta": 5000.0}
    assert head.config["attention_bias"] is False
    each, embedding = response(2, 5, seed=2), target(model)
    with torch.no_grad():
        (found,) = head.unrolled(embedding[each.tokens][None], each.aux[None, :5], torch.zeros((1, 5)), 1)
        expected = drafting(head, embedding, each, 4, 1)[0]
    torch.testing.assert_close(found[0, 4], expected, rtol=1e-4, atol=1e-5)


def test_a_head_has_a_plain_rotary_embedding(model: Path) -> None:
    scaled = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0}
    config = head_config({**target_config(model), "rope_parameters": scaled}, VOCAB)
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 500_000.0}
    with pytest.raises(InputError, match="llama3"):
        heads.Head({**config, "rope_parameters": scaled}, torch.arange(VOCAB))


def test_an_exported_head_comes_back(model: Path, tmp_path: Path) -> None:
    head = tiny_head(model)
    folder = heads.export_head(head, tmp_path / "head", model)
    again = heads.load_head(folder)
    assert again.draft_ids.tolist() == list(DRAFT_IDS)
    assert again.config == head.config == head_config(target_config(model), len(DRAFT_IDS))
    for name, parameter in head.named_parameters():
        assert torch.equal(again.get_parameter(name), parameter), name


def test_a_head_out_of_a_run_becomes_a_folder(model: Path, tmp_path: Path) -> None:
    from tlt.realrun.training.flat_state import write_state

    head = tiny_head(model)
    write_state(tmp_path / "head-0001.safetensors", head.vllm_state(torch.bfloat16))
    again = heads.load_head(
        heads.export_weights(tmp_path / "head-0001.safetensors", tmp_path / "head", model)
    )
    assert again.draft_ids.tolist() == list(DRAFT_IDS)
    assert torch.equal(again.fc.weight, head.fc.weight.bfloat16().float())


@pytest.mark.parametrize("draft_vocab", [VOCAB, VOCAB // 2])
def test_a_random_head_can_be_trained_and_exported(model: Path, tmp_path: Path, draft_vocab: int) -> None:
    from safetensors.torch import load_file

    folder = make_head(model, tmp_path / "random", draft_vocab)
    head = heads.load_head(folder)
    assert head.draft_ids.tolist() == list(range(draft_vocab))
    exported = heads.export_head(head, tmp_path / "exported", model)
    before, after = (load_file(place / "model.safetensors") for place in (folder, exported))
    assert list(before) == list(after)
    assert ("d2t" in after) == (draft_vocab < VOCAB)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert target_config(folder) == target_config(exported)


def test_what_is_no_head_is_refused(model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    with pytest.raises(InputError, match=r"drafter\.folder"):
        heads.load_head(tmp_path)
    folder = make_head(model, tmp_path / "random", VOCAB)
    weights: dict[str, Any] = load_file(folder / "model.safetensors")
    del weights["norm.weight"]
    weights["embed_tokens.weight"] = torch.ones(VOCAB, 64)
    weights["fc.weight"] = weights["fc.weight"][:, 1:].clone()
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"embed_tokens.weight, fc.weight, norm.weight"):
        heads.load_head(folder)
