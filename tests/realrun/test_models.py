"""Model folders: complete or absent, the same for the same seed, and of the published shapes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.realrun.small_models import need
from tlt.realrun.config import ModelConfig, RealConfig, WorkloadConfig
from tlt.realrun.models.drafter import aux_layers, head_config, make_draft_model, make_head
from tlt.realrun.models.target import config_json, prepare_model
from tlt.realrun.prompts import make_prompts, problem_prompts
from tlt.traces.catalogue.models import model_shape, published
from tltsched.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", sorted(published()))
def test_a_shape_is_written_as_config_json(name: str, tmp_path: Path) -> None:
    shape = model_shape(name)
    folder = prepare_model(name, tmp_path / "model", shape_only=True)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "prepared.json"]
    assert (config["hidden_size"], config["vocab_size"]) == (shape.hidden, shape.vocab)
    assert config["model_type"] == published()[name].config["model_type"]
    assert config == json.loads(json.dumps(config_json(shape, config["torch_dtype"])))


def test_a_published_config_is_taken_as_it_is(tmp_path: Path) -> None:
    published = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 128,
        "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "num_experts": 8, "vocab_size": 512, "rope_theta": 5e5,
    }  # fmt: skip
    source = tmp_path / "config.json"
    source.write_text(json.dumps(published), encoding="utf-8")
    folder = prepare_model(str(source), tmp_path / "model")
    assert json.loads((folder / "config.json").read_text(encoding="utf-8")) == published
    head = head_config(published, draft_vocab=64)
    assert (head["hidden_size"], head["head_dim"], head["draft_vocab_size"]) == (128, 32, 64)
    assert "num_experts" not in head, "one dense layer drafts for a mixture of experts, too"
    assert head["rope_parameters"]["rope_theta"] == 5e5
    for text, why in (("{}", "lacks architectures, vocab_size, hidden_size"), ("[1]", "config.json")):
        source.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=why):
            prepare_model(str(source), tmp_path / "other")
    with pytest.raises(InputError, match="No such file"):
        prepare_model(str(tmp_path / "none.json"), tmp_path / "other")


def test_a_complete_folder_is_kept_and_another_is_not_overwritten(tmp_path: Path) -> None:
    said: list[str] = []
    folder = prepare_model("Qwen2.5-7B", tmp_path / "model", report=said.append)
    (folder / "mark").touch()
    prepare_model("Qwen2.5-7B", folder, report=said.append)
    assert (folder / "mark").is_file()
    assert said == [f"{folder} written", f"{folder} is complete"]
    with pytest.raises(InputError, match=r"Qwen2\.5-7B"):
        prepare_model("Llama-3-8B", folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="a new or empty folder"):
        prepare_model("Qwen2.5-7B", tmp_path / "full")
    with pytest.raises(InputError, match=r"did you mean 'Qwen2\.5-7B'"):
        prepare_model("Qwen2.5-7b", tmp_path / "other")


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    need("torch", "safetensors")
    model = prepare_model("tiny", tmp_path / "tiny")
    (model / "model.safetensors").unlink()
    with pytest.raises(InputError, match="it is not there"):
        make_draft_model(model, tmp_path / "draft")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_tiny_weights_and_drafters_follow_from_the_seed(tmp_path: Path) -> None:
    need("torch", "safetensors")
    from safetensors.torch import load_file

    def weights(folder: Path) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in load_file(folder / "model.safetensors").items()}

    one = prepare_model("tiny", tmp_path / "one", vocab=64)
    same, other = (
        prepare_model("tiny", tmp_path / "same", vocab=64),
        prepare_model("tiny", tmp_path / "other", seed=1),
    )
    first, second, third = weights(one), weights(same), weights(other)
    assert all((first[name] == second[name]).all() for name in first)
    assert first["model.embed_tokens.weight"].shape == (64, 64)
    assert third["model.embed_tokens.weight"].shape == (512, 64)
    assert (first["model.norm.weight"] == 1).all()

    head = weights(make_head(one, tmp_path / "head", draft_vocab=32))
    states = len(aux_layers(model_shape("tiny").layers))
    assert head["fc.weight"].shape == (64, states * 64)
    assert head["midlayer.self_attn.q_proj.weight"].shape == (128, 128)
    assert head["lm_head.weight"].shape == (32, 64)
    assert head["d2t"].tolist() == [0] * 32
    assert "d2t" not in weights(make_head(one, tmp_path / "full", draft_vocab=64))
    with pytest.raises(InputError, match="got 65 for draft_vocab; allowed: 1 to 64"):
        make_head(one, tmp_path / "large", draft_vocab=65)

    near = weights(make_draft_model(one, tmp_path / "near", noise=0.1))
    exact = weights(make_draft_model(one, tmp_path / "exact", noise=0.0))
    name = "model.layers.0.mlp.up_proj.weight"
    assert (exact[name] == first[name]).all()
    assert 0.05 < np.std(near[name] - first[name]) / np.std(first[name]) < 0.15


@pytest.mark.parametrize(("layers", "read"), [(30, (2, 15, 27)), (28, (2, 14, 25)), (2, (0, 1)), (1, (0,))])
def test_a_head_reads_an_early_a_middle_and_a_late_layer(layers: int, read: tuple[int, ...]) -> None:
    assert aux_layers(layers) == read


def test_random_prompts_follow_from_the_generator(tmp_path: Path) -> None:
    folder = prepare_model("tiny", tmp_path / "tiny", shape_only=True)
    config = RealConfig(model=ModelConfig(folder=str(folder), random_weights=True), workload=WorkloadConfig())
    one = make_prompts(config, [5, 5, 5], np.random.default_rng(1))
    assert one == make_prompts(config, [5, 5, 5], np.random.default_rng(1))
    assert [len(prompt) for prompt in one] == [5, 5, 5]
    assert [len(prompt) for prompt in make_prompts(config, [2, 7], np.random.default_rng(1))] == [2, 7]
    assert all(1 <= token < 512 for prompt in one for token in prompt)
    with pytest.raises(InputError, match=r"config\.json"):
        make_prompts(RealConfig(model=ModelConfig(folder=str(tmp_path))), [32], np.random.default_rng(1))


def test_problems_need_their_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match="reasoning-gym"):
        problem_prompts(tmp_path, 1, np.random.default_rng(1))
