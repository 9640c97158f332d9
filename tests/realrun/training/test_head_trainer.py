"""Training of a head: the loss is that of every chain alone, workers average, and what is kept goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.realrun.training.head_cases import (
    DRAFT_IDS,
    drafting,
    response,
    target,
    tiny_head,
    tiny_model,
    torch,
)
from tlt.realrun.training_config import HeadConfig

trainers = pytest.importorskip("tlt.realrun.training.head.trainer")
losses = pytest.importorskip("tlt.realrun.training.head.loss")
agreements = pytest.importorskip("tlt.realrun.training.head.agreement")

CONFIG = HeadConfig(warmup_steps=0, learning_rate=1e-3)
SHAPES = ((4, 9), (2, 12), (1, 1), (6, 3), (3, 2))  # prompt and response tokens; the third has no chain


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models"))


def batch() -> list[Any]:
    return [response(*shape, seed) for seed, shape in enumerate(SHAPES)]


def side_by_side() -> list[list[Any]]:
    """Return the responses of `batch` in two rows."""
    each = batch()
    return [each[:2], each[2:]]


def made(model: Path, config: HeadConfig = CONFIG, dtype: Any = torch.float32, seed: int = 0) -> Any:
    embedding = target(model)
    return trainers.HeadTrainer(tiny_head(model, seed), embedding, embedding, config, "cpu", dtype)


def chain_by_chain(head: Any, embedding: Any, config: HeadConfig) -> Any:
    """Return the loss from every chain computed alone."""
    total = 0.0
    for step in range(1, config.unroll_steps + 1):
        parts = []
        for each in batch():
            # Drafts are recorded tokens: at the last one, start + step + 1 is the last place.
            for start in range(each.prompt_tokens - 1, len(each) - step - 1):
                state = drafting(head, embedding, each, start, step)[-1]
                truth = (embedding[list(DRAFT_IDS)] @ each.last[start + step]).softmax(-1)
                part = -config.logit_weight * (truth * head.lm_head(state).log_softmax(-1)).sum()
                gap = (state - each.last[start + step]).abs()
                smooth = torch.where(gap < 1, gap.square() / 2, gap - 0.5).mean()
                parts.append(part + config.hidden_weight * smooth)
        total = total + config.step_decay ** (step - 1) * torch.stack(parts).mean()
    return total


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        HeadConfig(unroll_steps=1, logit_weight=0.1, hidden_weight=1.0),
        HeadConfig(unroll_steps=2, hidden_weight=0.3, step_decay=0.5),
    ],
    ids=["EAGLE-3", "TLT", "both"],
)
@pytest.mark.parametrize("shape", [None, (3, 40)], ids=["as large as its rows", "of one shape"])
def test_loss_and_gradient_are_those_of_each_chain_alone(
    model: Path, config: HeadConfig, shape: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "LOSS_ROWS", 5)
    head, embedding = tiny_head(model), target(model)
    expected = chain_by_chain(head, embedding, config)
    expected.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in head.named_parameters()}
    head.zero_grad()
    given = losses.Shape(*shape) if shape else None
    collated = losses.collate(side_by_side(), config.unroll_steps, "cpu", shape=given)
    if given:
        assert collated.tokens.shape == (3, 40 + config.unroll_steps)
        assert {len(chains.starts) for chains in collated.chains} == {120}
    loss = losses.unrolled_loss(head, collated, embedding, embedding[list(DRAFT_IDS)], config)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for name, parameter in head.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.slow
def test_a_step_counts_its_chains_and_learns(model: Path) -> None:
    trainer = made(model)
    counts = [max(length - 1, 0) for _, length in SHAPES]
    results = [trainer.step(side_by_side()) for _ in range(60)]
    assert {result.tokens for result in results} == {sum(counts)}
    assert results[-1].loss < 0.5 * results[0].loss


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_captured_pass_is_the_pass_itself(model: Path) -> None:
    """Batches of other fillings, another target and an average between replays."""
    embedding = target(model).cuda()
    config = HeadConfig(warmup_steps=0, learning_rate=1e-3, batch_tokens=64, window_tokens=32)
    captured, eager = (
        trainers.HeadTrainer(tiny_head(model), embedding, embedding, config, "cuda", torch.float32)
        for _ in range(2)
    )
    eager._backward = lambda rows: eager._run(losses.collate(rows, config.unroll_steps, "cuda"))
    fillings = ([[response(4, 20, 0)]], side_by_side(), [[response(2, 9, 1), response(3, 5, 2)]])
    captured.rehearse(fillings[0])
    for number in range(12):
        if number == 6:
            for each in (captured, eager):
                each.take_average(each.changes(), 2.0)
                each.set_target(embedding, embedding.flip(0))
        found, expected = (each.step(fillings[number % 3]) for each in (captured, eager))
        assert found.tokens == expected.tokens
        assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    for mine, its in zip(weights(captured), weights(eager), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-5)


def test_responses_without_a_chain_change_nothing(model: Path) -> None:
    trainer = made(model)
    before = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
    assert trainer.step([[response(5, 1, 0), response(1, 1, 1)]]) == (0, 0.0)
    after = trainer.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_bfloat16_is_near_and_weights_stay_float32(model: Path) -> None:
    exact, rough = made(model), made(model, dtype=torch.bfloat16)
    assert rough.step(side_by_side()).loss == pytest.approx(exact.step(side_by_side()).loss, rel=0.02)
    assert {each.dtype for each in rough.head.parameters()} == {torch.float32}


def test_the_rate_rises_and_the_gradient_is_cut(model: Path) -> None:
    config = HeadConfig(learning_rate=1e-2, warmup_steps=4, grad_clip=1e-6)
    trainer = made(model, config)
    rates = []
    for _ in range(6):
        trainer.step(side_by_side())
        rates.append(trainer._optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


# --- averaging -----------------------------------------------------------------------------------------


def average(trainers_: list[Any], tokens: list[int]) -> None:
    changes = [
        [count * part for part in each.changes()] for each, count in zip(trainers_, tokens, strict=True)
    ]
    summed = [torch.stack(parts).sum(0) for parts in zip(*changes, strict=True)]
    for each in trainers_:
        each.take_average(summed, float(sum(tokens)))


def weights(trainer: Any) -> list[Any]:
    return [parameter.detach().clone() for parameter in trainer.head.parameters()]


@pytest.mark.slow
def test_workers_average_what_they_learned_by_their_tokens(model: Path) -> None:
    workers = [made(model) for _ in range(3)]
    start = weights(workers[0])
    counts = [0, 0, 0]
    for _ in range(2):
        for number, rounds in enumerate((3, 1, 0)):  # the third was never idle
            for _ in range(rounds):
                counts[number] += workers[number].step(side_by_side()).tokens
        learned = [weights(each) for each in workers]
        expected = [
            before
            + sum(count * (after - before) for count, after in zip(counts, each, strict=True)) / sum(counts)
            for before, *each in zip(start, *learned, strict=True)
        ]
        average(workers, counts)
        for each in workers:
            torch.testing.assert_close(weights(each), expected)
            assert all(torch.equal(*pair) for pair in zip(weights(each), weights(workers[0]), strict=True))
            assert not any(change.any() for change in each.changes())
        start = weights(workers[0])


def test_an_average_of_nothing_is_what_was_there(model: Path) -> None:
    workers = [made(model) for _ in range(2)]
    before = weights(workers[0])
    average(workers, [0, 0])
    assert all(torch.equal(*pair) for pair in zip(before, weights(workers[0]), strict=True))


@pytest.mark.slow
def test_what_was_kept_goes_on_alike(model: Path, tmp_path: Path) -> None:
    from tlt.realrun.engine.model_files import read_tensors
    from tlt.realrun.training.flat_state import write_state

    config = HeadConfig(learning_rate=1e-3, warmup_steps=5)
    trainer = made(model, config)
    for _ in range(3):
        trainer.step(side_by_side())
    average([trainer], [10])
    write_state(tmp_path / "drafter.safetensors", trainer.state_dict())
    again = made(model, config, seed=1)
    again.load_state_dict(read_tensors(tmp_path / "drafter.safetensors"))
    assert not any(change.any() for change in again.changes())
    assert [trainer.step(side_by_side()) for _ in range(3)] == [again.step(side_by_side()) for _ in range(3)]
    assert all(torch.equal(*pair) for pair in zip(weights(trainer), weights(again), strict=True))


@pytest.mark.slow
def test_another_target_is_another_loss(model: Path) -> None:
    trainer, other = made(model), made(model)
    other.set_target(target(model), target(model).flip(0))
    assert trainer.step(side_by_side()).loss != other.step(side_by_side()).loss


# --- agreement -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_agreement_is_that_of_each_chain_alone(
    model: Path, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreements, "TARGET_ROWS", 3)
    trainer, embedding = made(model), target(model)
    for _ in range(40):
        trainer.step(side_by_side())
    head, ids = trainer.head.requires_grad_(False), torch.tensor(DRAFT_IDS)
    greedy, sampled, chains = [0.0] * 4, [0.0] * 4, 0
    for each in batch():
        for start in range(each.prompt_tokens - 1, len(each) - 5):
            chains += 1
            agrees, overlap = True, 1.0
            for step, state in enumerate(drafting(head, embedding, each, start, 4), start=1):
                drafts, truth = head.lm_head(state), embedding @ each.last[start + step]
                agrees &= bool(ids[drafts.argmax()] == truth.argmax())
                wanted = (truth / temperature).softmax(-1)[ids]
                overlap *= float(torch.minimum((drafts / temperature).softmax(-1), wanted).sum())
                greedy[step - 1] += agrees
                sampled[step - 1] += overlap
    found = trainer.agreement(head, batch(), embedding, temperature)
    assert found.chains == chains == 13
    assert found.greedy == pytest.approx([share / chains for share in greedy])
    assert found.sampled == pytest.approx([share / chains for share in sampled], rel=1e-4)
    assert 0 < found.greedy[0] < 1
    assert found.lengths_with_bonus() == pytest.approx((1 + sum(found.greedy), 1 + sum(found.sampled)))


def test_too_short_for_a_chain(model: Path) -> None:
    trainer = made(model)
    found = trainer.agreement(trainer.head, [response(3, 2, 0)], target(model))
    assert found == ((0.0,) * 4, (0.0,) * 4, 0)
