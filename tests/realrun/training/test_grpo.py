"""GRPO: advantages, the clipped objective, one update on one worker and on several, and its state."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.realrun.small_models import need
from tlt.realrun.driver.update import advantages
from tlt.realrun.engine.model_files import read_tensors
from tlt.realrun.models.target import prepare_model
from tlt.realrun.training_config import UpdateConfig

torch = pytest.importorskip("torch")
grpo = pytest.importorskip("tlt.realrun.training.policy.grpo")
policies = pytest.importorskip("tlt.realrun.training.policy.model")
flat_state = pytest.importorskip("tlt.realrun.training.flat_state")

VOCAB = 64
CONFIG = UpdateConfig(learning_rate=1e-3, warmup_steps=4, token_budget=40)
SHAPES = ((4, 9), (2, 20), (1, 1), (6, 3), (3, 14), (5, 5))
VALUES = (1.0, -1.0, 0.5, -0.5, 0.0, 2.0)
TOKENS = sum(response for _, response in SHAPES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("transformers")
    return prepare_model("tiny", tmp_path_factory.mktemp("models") / "tiny", vocab=VOCAB)


def make_update(folder: Path, config: UpdateConfig = CONFIG) -> Any:
    return grpo.Update(policies.PolicyModel(folder, "cpu", "float32", config.token_budget, "masked"), config)


def make_samples() -> list[Any]:
    generator = torch.Generator().manual_seed(2)
    made = []
    for number, (prompt, response) in enumerate(SHAPES):
        tokens = torch.randint(1, VOCAB, (prompt + response,), generator=generator).tolist()
        made.append(policies.Sample(number, tuple(tokens[:prompt]), tuple(tokens[prompt:])))
    return made


def log_probs(policy: Any, samples: list[Any]) -> list[Any]:
    found = {each.sample.id: each.log_probs for each in policy.log_probs(samples, 1.0)}
    return [found[sample.id] for sample in samples]


def step(update: Any, count: int = 1) -> dict[str, float]:
    """Do `count` optimizer steps on the same responses, with the log-probabilities before the first."""
    samples = make_samples()
    old = log_probs(update.policy, samples)
    facts: dict[str, float] = {}
    for number in range(count):
        facts = update.accumulate(samples, old, VALUES, None, TOKENS, 1.0)
        facts["grad_norm"] = update.apply(update.learning_rate(number))
    return facts


# --- advantages -------------------------------------------------------------------------------------------


def test_advantages_within_groups() -> None:
    rewards, groups = [1.0, 0.0, 0.0, 1.0, 0.3, 0.3], [7, 7, 8, 8, 9, 9]
    assert advantages(rewards, groups, scale=False) == [0.5, -0.5, -0.5, 0.5, 0.0, 0.0]
    scaled = advantages(rewards, groups, scale=True)
    assert scaled == pytest.approx([1, -1, -1, 1, 0, 0], abs=1e-5)
    assert scaled[4:] == [0.0, 0.0]


@given(
    rewards=st.lists(st.floats(0, 1), min_size=1, max_size=20), groups=st.integers(1, 4), scale=st.booleans()
)
def test_advantages_of_a_group_add_up_to_nothing(rewards: list[float], groups: int, scale: bool) -> None:
    members = [number % groups for number in range(len(rewards))]
    found = advantages(rewards, members, scale)
    for group in range(groups):
        mine = [value for value, member in zip(found, members, strict=True) if member == group]
        assert sum(mine) == pytest.approx(0, abs=1e-6)
        if scale and mine:
            assert math.sqrt(sum(value * value for value in mine) / len(mine)) <= 1 + 1e-9


# --- objective --------------------------------------------------------------------------------------------


def test_a_clipped_token_has_no_gradient() -> None:
    config = UpdateConfig(clip_low=0.2, clip_high=0.3)
    ratios = torch.tensor([1.0, 1.25, 1.35, 0.75, 1.35, 0.75])
    values = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, 1.0])
    new = ratios.log().requires_grad_()
    terms = grpo.objective(new, torch.zeros(6), values, None, config)
    terms.loss.sum().backward()
    # Tokens 2 and 3 went out of the range where their advantage pushes them; 4 and 5 are to come back.
    assert terms.clipped.tolist() == [False, False, True, True, False, False]
    torch.testing.assert_close(terms.loss, torch.tensor([-1.0, -1.25, -1.3, 0.8, 1.35, -0.75]))
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.tensor([-1.0, -1.25, 0.0, 0.0, 1.35, -0.75]))
    torch.testing.assert_close(terms.ratio, ratios)
    assert terms.kl.tolist() == [0.0] * 6


def test_the_kl_estimator_is_never_negative_and_unbiased() -> None:
    config = UpdateConfig(kl_coefficient=0.5)
    generator = torch.Generator().manual_seed(0)
    policy = torch.randn(8, generator=generator).log_softmax(-1)
    reference = torch.randn(8, generator=generator).log_softmax(-1)
    terms = grpo.objective(policy, policy, torch.zeros(8), reference, config)
    assert (terms.kl >= 0).all()
    exact = (policy.exp() * (policy - reference)).sum()
    torch.testing.assert_close((policy.exp() * terms.kl).sum(), exact)  # the mean over its own samples
    torch.testing.assert_close(terms.loss, 0.5 * terms.kl)


# --- update -----------------------------------------------------------------------------------------------


def test_facts_of_the_first_pass(folder: Path) -> None:
    update = make_update(folder)
    samples = make_samples()
    old = log_probs(update.policy, samples)
    facts = update.accumulate(samples, old, VALUES, old, TOKENS, 1.0)
    tokens = [response for _, response in SHAPES]
    expected = -sum(value * count for value, count in zip(VALUES, tokens, strict=True)) / TOKENS
    assert facts["loss"] == pytest.approx(expected, abs=1e-5)
    assert facts["ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert facts["kl"] == pytest.approx(0, abs=1e-6)
    assert facts["clip_share"] == 0
    assert 0 < facts["entropy"] <= math.log(VOCAB)


def test_the_gradient_is_that_of_whole_sequences(folder: Path) -> None:
    """One plain pass for each sample and a loss written out give the same gradient as packed rows."""
    update = make_update(folder)
    samples = make_samples()
    old = [each - 0.05 for each in log_probs(update.policy, samples)]
    update.accumulate(samples, old, VALUES, None, TOKENS, 1.0)
    found = [gradient.clone() for gradient in update.gradients()]
    model = update.policy.model
    model.zero_grad()
    for sample, before, value in zip(samples, old, VALUES, strict=True):
        tokens = torch.tensor([[*sample.prompt, *sample.response]])
        logits = model(input_ids=tokens, use_cache=False).logits[0, len(sample.prompt) - 1 : -1]
        new = logits.log_softmax(-1).gather(-1, torch.tensor(sample.response)[:, None])[:, 0]
        ratio = (new - before).exp()
        loss = -torch.minimum(ratio * value, ratio.clamp(0.8, 1.2) * value).sum() / TOKENS
        loss.backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-3, atol=1e-6)


def test_workers_with_parts_of_the_responses_have_the_gradient_of_all(folder: Path) -> None:
    samples = make_samples()
    whole = make_update(folder)
    old = log_probs(whole.policy, samples)
    facts = whole.accumulate(samples, old, VALUES, None, TOKENS, 1.0)
    workers = [make_update(folder) for _ in range(3)]
    shares = [slice(0, 1), slice(1, 6), slice(6, 6)]  # the third worker has generated nothing
    found = [
        worker.accumulate(samples[share], old[share], VALUES[share], None, TOKENS, 1.0)
        for worker, share in zip(workers, shares, strict=True)
    ]
    for parts in zip(*(worker.gradients() for worker in (whole, *workers)), strict=True):
        torch.testing.assert_close(sum(parts[1:]), parts[0], rtol=1e-3, atol=1e-6)
    for name, value in facts.items():
        assert sum(each[name] for each in found) == pytest.approx(value, rel=1e-4, abs=1e-6)


def test_an_update_makes_good_responses_likelier(folder: Path) -> None:
    update = make_update(folder)
    samples = make_samples()
    before = log_probs(update.policy, samples)
    first = step(update)
    assert first["grad_norm"] > 0
    after = log_probs(update.policy, samples)
    change = [float((new - old).mean()) for new, old in zip(after, before, strict=True)]
    assert change[5] > 0 > change[1]
    later = update.accumulate(samples, before, VALUES, None, TOKENS, 1.0)
    assert later["loss"] < first["loss"]
    assert later["clip_share"] > 0
    assert later["ratio_mean"] != pytest.approx(1, abs=1e-4)
    update.apply(0.0)
    assert all(not gradient.any() for gradient in update.gradients())  # ready for the next minibatch


@pytest.mark.slow
def test_the_kl_term_holds_the_policy_back(folder: Path) -> None:
    samples = make_samples()
    found = {}
    for coefficient in (0.0, 10.0):
        config = UpdateConfig(learning_rate=1e-3, kl_coefficient=coefficient, token_budget=40)
        update = make_update(folder, config)
        reference = log_probs(update.policy, samples)
        for _ in range(6):
            facts = update.accumulate(samples, reference, VALUES, reference, TOKENS, 1.0)
            update.apply(1e-3)
        found[coefficient] = facts["kl"]
    assert 0 < found[10.0] < found[0.0] / 2


def test_the_gradient_is_clipped_and_the_rate_warms_up(folder: Path) -> None:
    update = make_update(folder)
    assert [update.learning_rate(number) for number in (0, 1, 3, 9)] == pytest.approx(
        [2.5e-4, 5e-4, 1e-3, 1e-3]
    )
    assert make_update(folder, UpdateConfig(learning_rate=1e-6)).learning_rate(0) == 1e-6
    # AdamW's first step has the size of the rate, however long the gradient is.
    before = [parameter.detach().clone() for parameter in update.policy.model.parameters()]
    for gradient in update.gradients():
        gradient.fill_(3.0)
    count = sum(gradient.numel() for gradient in update.gradients())
    assert update.apply(1e-3) == pytest.approx(3.0 * math.sqrt(count), rel=1e-4)
    for old, new in zip(before, update.policy.model.parameters(), strict=True):
        torch.testing.assert_close(old - new.detach(), torch.full_like(old, 1e-3), rtol=1e-2, atol=1e-6)


@pytest.mark.slow
def test_the_same_responses_give_the_same_bits(folder: Path) -> None:
    first, second = make_update(folder), make_update(folder)
    assert step(first, 3) == step(second, 3)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])


@pytest.mark.slow
def test_an_update_goes_on_from_its_file_as_if_it_had_not_stopped(folder: Path, tmp_path: Path) -> None:
    unbroken = make_update(folder)
    step(unbroken, 2)
    path = tmp_path / "policy.safetensors"
    flat_state.write_state(path, unbroken.state_dict())
    expected = step(unbroken, 2)
    resumed = make_update(folder)
    resumed.load_state_dict(read_tensors(path))
    assert step(resumed, 2) == expected
    for name, tensor in unbroken.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name])


# --- state files ------------------------------------------------------------------------------------------


def test_a_state_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    tied = torch.arange(6.0).view(2, 3)
    flat_state.write_state(path, {"a": tied, "b": tied.t()})  # of one storage, and not contiguous
    assert torch.equal(read_tensors(path)["b"], tied.t())

    def fail(state: object, new: Path, metadata: object) -> None:
        new.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(flat_state, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        flat_state.write_state(path, {"a": tied + 1})
    assert [each.name for each in tmp_path.iterdir()] == ["a.safetensors"]
    assert torch.equal(read_tensors(path)["a"], tied)


def test_the_writer_keeps_what_was_given_and_tells_of_failures(tmp_path: Path) -> None:
    writer = flat_state.AsyncWriter()
    tensor = torch.zeros(1000)
    for number in range(3):
        tensor.fill_(number)
        writer.write(tmp_path / f"{number}.safetensors", {"a": tensor})
        tensor.fill_(-1.0)
    writer.wait()
    for number in range(3):
        assert (read_tensors(tmp_path / f"{number}.safetensors")["a"] == number).all()
    writer.write(tmp_path / "missing" / "a.safetensors", {"a": tensor})
    with pytest.raises(Exception, match=r"No such file|missing"):
        writer.wait()
    writer.write(tmp_path / "missing" / "a.safetensors", {"a": tensor})
    with pytest.raises(Exception, match=r"No such file|missing"):
        writer.close()
