"""The trainable policy: log-probabilities, features and the weights that an engine gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.realrun.small_models import need
from tlt.realrun.models.drafter import aux_layers
from tlt.realrun.models.target import prepare_model

torch = pytest.importorskip("torch")
policies = pytest.importorskip("tlt.realrun.training.policy.model")

VOCAB = 64
SHAPES = ((4, 9), (2, 20), (1, 1), (6, 3), (3, 14))  # prompt and response tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("transformers")
    return prepare_model("tiny", tmp_path_factory.mktemp("models") / "tiny", vocab=VOCAB)


def samples() -> list[Any]:
    """Return responses with ids that are not their places."""
    generator = torch.Generator().manual_seed(2)
    made = []
    for number, (prompt, response) in enumerate(SHAPES):
        tokens = torch.randint(1, VOCAB, (prompt + response,), generator=generator).tolist()
        made.append(policies.Sample(10 * number, tuple(tokens[:prompt]), tuple(tokens[prompt:])))
    return made


def alone(policy: Any, sample: Any, temperature: float) -> tuple[Any, Any]:
    """Return log-probabilities of the response and all hidden states, by one plain forward pass."""
    tokens = torch.tensor([[*sample.prompt, *sample.response]])
    with torch.no_grad():
        output = policy.model(input_ids=tokens, output_hidden_states=True, use_cache=False)
    log_probs = (output.logits[0].float() / temperature).log_softmax(-1)
    first = len(sample.prompt)
    found = log_probs[first - 1 : -1].gather(-1, tokens[0, first:, None])[:, 0]
    return found, output.hidden_states


@pytest.mark.parametrize("budget", [1, 25, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packed_log_probs_are_those_of_each_sample_alone(
    folder: Path, budget: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "LOGIT_ROWS", 7)
    policy = policies.PolicyModel(folder, "cpu", "float32", budget, "masked")
    scored = list(policy.log_probs(samples(), temperature))
    assert sorted(each.sample.id for each in scored) == [sample.id for sample in samples()]
    for each in scored:
        expected, _ = alone(policy, each.sample, temperature)
        assert each.log_probs.dtype == torch.float32
        assert each.features is None
        assert not each.log_probs.requires_grad
        torch.testing.assert_close(each.log_probs, expected, rtol=1e-4, atol=1e-5)


def test_loading_is_silent(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    policies.PolicyModel(folder, "cpu", "float32", 100, "masked")
    assert capfd.readouterr() == ("", "")


def test_greedy_counts_as_temperature_1(folder: Path) -> None:
    policy = policies.PolicyModel(folder, "cpu", "float32", 100, "masked")
    greedy, at_1 = (list(policy.log_probs(samples()[:1], temperature)) for temperature in (0.0, 1.0))
    assert torch.equal(greedy[0].log_probs, at_1[0].log_probs)


def test_features_are_the_inputs_of_the_layers_and_the_last_state(folder: Path) -> None:
    policy = policies.PolicyModel(folder, "cpu", "float32", 40, "masked")
    wanted = aux_layers(policy.layers)
    for each in policy.log_probs(samples(), 1.0, wanted, step=3):
        features = each.features
        assert features is not None
        _, states = alone(policy, each.sample, 1.0)
        aux = torch.cat([states[layer][0] for layer in wanted], -1)
        assert (features.step, features.prompt_tokens) == (3, len(each.sample.prompt))
        assert features.tokens.tolist() == [*each.sample.prompt, *each.sample.response]
        torch.testing.assert_close(features.aux, aux, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(features.last, states[-1][0], rtol=1e-4, atol=1e-5)
        # The features keep no more memory than their own.
        assert features.aux.untyped_storage().nbytes() == aux.numel() * aux.element_size()
    assert not any(layer._forward_pre_hooks for layer in policy.model.model.layers)


def test_bfloat16_computes_in_it_and_keeps_float32_weights(folder: Path) -> None:
    policy = policies.PolicyModel(folder, "cpu", "bfloat16", 40, "masked")
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.float32}
    exact = policies.PolicyModel(folder, "cpu", "float32", 40, "masked")
    expected = {each.sample.id: each.log_probs for each in exact.log_probs(samples(), 1.0)}
    for each in policy.log_probs(samples(), 1.0, (1,)):
        assert (each.features.aux.dtype, each.features.last.dtype) == (torch.bfloat16, torch.bfloat16)
        assert each.log_probs.dtype == torch.float32
        gap = (each.log_probs - expected[each.sample.id]).abs().max()
        assert 0 < gap < 0.5
    assert {tensor.dtype for tensor in policy.state().values()} == {torch.bfloat16}


def test_entropy_and_gradient_are_those_of_whole_logits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "LOGIT_ROWS", 7)
    policy = policies.PolicyModel(folder, "cpu", "float32", 1000, "masked")
    (packed,) = policy.packs(samples())
    mine = [samples()[index] for index in packed.indices]
    rows = policy.rows(packed, policy.hidden(packed), [len(sample.prompt) for sample in mine], 0.8)
    rows.log_probs.sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in policy.model.named_parameters()}
    policy.model.zero_grad()
    entropies = []
    for sample in mine:
        tokens = torch.tensor([[*sample.prompt, *sample.response]])
        log_probs = (policy.model(input_ids=tokens, use_cache=False).logits[0] / 0.8).log_softmax(-1)
        log_probs = log_probs[len(sample.prompt) - 1 : -1]
        entropies.append(-(log_probs.exp() * log_probs).sum(-1).detach())
        log_probs.gather(-1, torch.tensor(sample.response)[:, None]).sum().backward()
    torch.testing.assert_close(rows.entropy, torch.cat(entropies), rtol=1e-4, atol=1e-4)
    assert not rows.entropy.requires_grad
    for name, parameter in policy.model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_state_has_the_names_of_the_checkpoint(folder: Path, tied: bool, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    weights.pop("lm_head.weight", None)
    if not tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + 1.0
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": tied}))
    policy = policies.PolicyModel(tmp_path, "cpu", "float32", 40, "masked")
    state = policy.state()
    assert set(state) == set(weights)
    assert all(torch.equal(state[name], weights[name]) for name in weights)
    assert torch.equal(policy.output_layer(), weights["model.embed_tokens.weight"] + (0.0 if tied else 1.0))
    assert torch.equal(policy.embedding(), weights["model.embed_tokens.weight"])
