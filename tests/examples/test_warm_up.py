"""Supervised warm-up on a tiny model with a tokenizer of single characters."""

from __future__ import annotations

import shutil
from hashlib import sha256
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from examples.rl_smollm2.families import HELD_OUT, WARM_UP, make_problem
from examples.rl_smollm2.settings import TaskSettings, WarmUpConfig
from examples.rl_smollm2.warm_up import warm_up as command
from examples.rl_smollm2.worked import solve
from examples.rl_smollm2.worked_samples import WorkedSample, make_samples, sample_stream, template_of
from tests.realrun.byte_tokenizer import write_tokenizer
from tests.realrun.small_models import need
from tlt.realrun.models.target import prepare_model
from tlt.realrun.problems.questions import encode
from tltsched.errors import InputError

pytestmark = pytest.mark.slow

TASKS = TaskSettings(names=("chain_sum", "collatz"), difficulty_largest=6)
RECIPE = WarmUpConfig(
    tokens=6000, learning_rate=1e-2, batch_tokens=1500, token_budget=1000, held_out=6, processes=0
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model folder whose tokens are bytes."""
    need("torch", "transformers", "reasoning_gym")
    return write_tokenizer(prepare_model("tiny", tmp_path_factory.mktemp("models") / "tiny", vocab=512))


def _samples(folder: Path, number: int) -> list[WorkedSample]:
    return make_samples(template_of(folder), TASKS, 0, WARM_UP, 0, number)


def test_samples_are_the_prompts_that_rl_asks_and_their_solutions(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for index, sample in enumerate(_samples(folder, 4)):
        problem = make_problem(TASKS, 0, 0, index, WARM_UP)
        assert sample.prompt == encode(tokenizer, problem.question)
        assert tokenizer.decode(sample.response) == solve(problem) + "</s>"


def test_a_tokenizer_that_ends_elsewhere_than_engines_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    with pytest.raises(InputError, match=r"ends a turn with token 2.*5 or 7"):
        template_of(other)
    (other / "generation_config.json").write_text('{"eos_token_id": [5, 2]}')
    assert template_of(other).end == 2


def test_samples_of_a_seed_stay_what_they_were(folder: Path) -> None:
    samples = make_samples(template_of(folder), TaskSettings(), 3, WARM_UP, 0, 30)
    assert sha256(msgspec.json.encode(samples)).hexdigest()[:16] == "e62e3bf178a583c1"


@pytest.mark.slow
def test_a_stream_does_not_depend_on_its_processes(folder: Path) -> None:
    template = template_of(folder)
    streams = [sample_stream(template, TASKS, 0, processes) for processes in (0, 2)]
    first, second = ([*islice(stream, 600)] for stream in streams)
    for stream in streams:
        stream.close()
    assert first == second
    assert first[:4] == _samples(folder, 4)


@pytest.mark.slow
def test_a_packed_loss_is_the_loss_of_each_sample_alone(folder: Path) -> None:
    import torch

    from examples.rl_smollm2.supervised import WarmUp

    samples = _samples(folder, 9)
    trainer = WarmUp(folder, RECIPE, "cpu")
    packed = torch.cat(list(trainer.losses(samples))).sum().detach()
    alone = torch.zeros(())
    assert len(list(trainer.losses(samples))) > 1  # packs
    for sample in samples:
        ids = torch.tensor([[*sample.prompt, *sample.response]])
        logits = trainer.policy.model(input_ids=ids).logits[0].detach()
        start = len(sample.prompt)
        alone += torch.nn.functional.cross_entropy(logits[start - 1 : -1], ids[0, start:], reduction="sum")
    assert float(packed) == pytest.approx(float(alone), rel=1e-5)


def _reference_kernel(
    query: Any,
    key: Any,
    value: Any,
    ends: Any,
    _key_ends: Any,
    longest: int,
    _longest_key: int,
    **settings: Any,
) -> Any:
    """Stand in for the flash kernel, which needs a GPU: sequence by sequence."""
    import torch

    assert settings["window_size"] == (-1, 0)
    found = []
    for start, end in pairwise(ends.tolist()):
        assert end - start <= longest
        parts = [part[start:end].transpose(0, 1)[None] for part in (query, key, value)]
        attended = torch.nn.functional.scaled_dot_product_attention(
            *parts, is_causal=True, scale=settings["scale"], enable_gqa=settings["enable_gqa"]
        )
        found.append(attended[0].transpose(0, 1))
    return torch.cat(found)


@pytest.mark.slow
def test_the_kernel_with_borders_gives_the_loss_and_gradient_of_the_mask(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from examples.rl_smollm2.supervised import WarmUp
    from tlt.realrun.training.policy import packed_attention

    monkeypatch.setattr(packed_attention, "varlen_attn", _reference_kernel)
    samples = _samples(folder, 9)
    results = []
    for varlen in (False, True):
        trainer = WarmUp(folder, RECIPE, "cpu")
        if varlen:
            packed_attention.use(trainer.policy.model)
            trainer.policy._varlen = True
        loss = torch.cat(list(trainer.losses(samples))).sum()
        loss.backward()
        norm = sum(float(weight.grad.square().sum()) for weight in trainer.policy.model.parameters())
        results.append((float(loss.detach()), norm))
    assert results[0] == pytest.approx(results[1], rel=1e-4)


@pytest.mark.slow
def test_training_lowers_the_held_out_loss_and_writes_a_model_folder(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from examples.rl_smollm2.supervised import HeldOut, Progress, WarmedUp, warm_up

    ticks = count()
    seen: list[Progress | HeldOut] = []
    out = tmp_path / "warm"
    record = warm_up(
        folder, out, 0, TASKS, RECIPE, device="cpu", date="2026-01-01", clock=lambda: float(next(ticks)),
        report=seen.append,
    )  # fmt: skip
    assert record.recipe.after.loss < 0.7 * record.recipe.before.loss
    assert record.recipe.tokens >= RECIPE.tokens
    assert set(record.recipe.after.whole) == set(TASKS.names)
    progress = [facts for facts in seen if isinstance(facts, Progress)]
    assert progress[-1].tokens == record.recipe.tokens
    assert progress[-1].loss < progress[0].loss
    assert msgspec.json.decode((out / "prepared.json").read_bytes(), type=WarmedUp) == record

    same = {"config.json", "tokenizer.json", "tokenizer_config.json"}
    for name in same:
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    before, after = (load_file(place / "model.safetensors") for place in (folder, out))
    assert {name: weight.dtype for name, weight in before.items()} == {
        name: weight.dtype for name, weight in after.items()
    }
    AutoModelForCausalLM.from_pretrained(out)
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model(folder: Path, tmp_path: Path) -> None:
    from examples.rl_smollm2.supervised import warm_up

    recipe = msgspec.structs.replace(RECIPE, tokens=1000)
    for name in ("one", "two"):
        warm_up(
            folder,
            tmp_path / name,
            0,
            TASKS,
            recipe,
            device="cpu",
            date="",
            clock=count().__next__,
            report=lambda _: None,
        )
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    from examples.rl_smollm2.supervised import HeldOut, Progress, warm_up

    def stop(facts: Progress | HeldOut) -> None:
        if isinstance(facts, Progress):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_up(
            folder, tmp_path / "warm", 0, TASKS, RECIPE, device="cpu", date="", clock=count().__next__,
            report=stop,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_the_rate_rises_then_falls_to_nothing() -> None:
    need("torch")
    from examples.rl_smollm2.supervised import learning_rate

    config = WarmUpConfig(tokens=1000, learning_rate=1.0, warmup_share=0.1)
    rates = [learning_rate(config, tokens) for tokens in (50, 100, 550, 1000, 1010)]
    assert rates == pytest.approx([0.5, 1.0, 0.5, 0.0, 0.0])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_rate_at_the_ends_of_the_warm_up_share(share: float) -> None:
    need("torch")
    from examples.rl_smollm2.supervised import learning_rate

    config = WarmUpConfig(tokens=1000, learning_rate=1.0, warmup_share=share)
    assert 0 <= learning_rate(config, 500) <= 1
    assert learning_rate(config, 1000) == 0


def test_errors_of_the_user(folder: Path, tmp_path: Path) -> None:
    from examples.rl_smollm2.supervised import warm_up

    def run(model: Path, out: Path, tasks: TaskSettings = TASKS) -> None:
        warm_up(
            model, out, 0, tasks, RECIPE, device="cpu", date="", clock=count().__next__,
            report=lambda _: None,
        )  # fmt: skip

    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    with pytest.raises(InputError, match="--out"):
        run(folder, full)
    with pytest.raises(InputError, match="gsm_symbolic"):
        run(folder, tmp_path / "out", TaskSettings(names=("gsm_symbolic",)))
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="tokenizer"):
        run(bare, tmp_path / "out")


@pytest.mark.slow
def test_the_command(folder: Path, tmp_path: Path) -> None:
    settings = tmp_path / "train.toml"
    settings.write_text(
        'seed = 3\n[tasks.settings]\nnames = ["collatz"]\n'
        "[warm_up]\nbatch_tokens = 500\nheld_out = 2\nprocesses = 0\n"
    )
    out = tmp_path / "warm"
    done = CliRunner().invoke(
        command, [str(folder), "--out", str(out), "--config", str(settings), "--tokens", "300"]
    )
    assert done.exit_code == 0, done.output
    assert "held out: loss" in done.output
    assert "tokens/s" in done.output
    recipe = msgspec.json.decode((out / "prepared.json").read_bytes())["recipe"]
    assert (recipe["seed"], recipe["warm_up"]["tokens"]) == (3, 300)


def test_held_out_problems_are_not_trained_on(folder: Path) -> None:
    template = template_of(folder)
    trained = {sample.prompt for sample in make_samples(template, TaskSettings(), 0, WARM_UP, 0, 200)}
    held_out = [sample.prompt for sample in make_samples(template, TaskSettings(), 0, HELD_OUT, 0, 200)]
    shared = sum(prompt in trained for prompt in held_out)
    assert shared < 20  # the short ones of collatz are few
