"""The policy that a run trained, as a model folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from tlt.realrun.config import ModelConfig
from tlt.realrun.models.target import prepare_model
from tlt.realrun.training.checkpoints import PolicyLog
from tlt.realrun.training.plan import plan_training
from tlt.realrun.training_config import TrainConfig
from tltsched.errors import InputError

torch = pytest.importorskip("torch")
policies = pytest.importorskip("tlt.realrun.training.policy.model")
grpo = pytest.importorskip("tlt.realrun.training.policy.grpo")
exporting = pytest.importorskip("tlt.realrun.training.export_policy")
flat = pytest.importorskip("tlt.realrun.training.flat_state")

PROMPT = torch.tensor([[1, 2, 3, 4]])


def log_of(folder: Path, model: Path) -> PolicyLog:
    """Open a run that starts from `model`."""
    config = TrainConfig(model=ModelConfig(folder=str(model), name="tiny", dtype="float32"))
    return PolicyLog(folder, config, plan_training(config, ["none"], None)[0])


def checkpoint(log: PolicyLog, policy: object, config: TrainConfig) -> None:
    """Save a policy after one optimizer step, so that there are moments beside its weights."""
    update = grpo.Update(policy, msgspec.structs.replace(config.update, learning_rate=1e-2))
    for gradient in update.gradients():
        gradient.fill_(1e-3)
    update.apply(1e-2)
    flat.write_state(log.new_checkpoint() / "policy.safetensors", update.state_dict())
    log.commit()


def test_the_trained_policy_is_a_model_that_can_be_loaded(tmp_path: Path) -> None:
    model = prepare_model("tiny", tmp_path / "tiny", vocab=512)
    (model / "tokenizer.json").write_text("{}", encoding="utf-8")
    log = log_of(tmp_path / "none", model)
    policy = policies.PolicyModel(model, "cpu", "float32", 1000, "masked")
    checkpoint(log, policy, TrainConfig())
    said: list[str] = []
    out = exporting.export_policy(tmp_path / "none", tmp_path / "trained", said.append)
    again = policies.PolicyModel(out, "cpu", "float32", 1000, "masked")
    with torch.no_grad():
        trained, read = (each.model(input_ids=PROMPT).logits for each in (policy, again))
    before = policies.PolicyModel(model, "cpu", "float32", 1000, "masked")
    assert torch.equal(trained, read)
    assert not torch.equal(before.model(input_ids=PROMPT).logits, read)
    assert (out / "tokenizer.json").read_text(encoding="utf-8") == "{}"
    assert msgspec.json.decode((out / "prepared.json").read_bytes())["weights"] == "trained, 0 RL steps"


def test_a_model_that_has_moved_is_named(tmp_path: Path) -> None:
    model = prepare_model("tiny", tmp_path / "tiny", vocab=512)
    log = log_of(tmp_path / "none", model)
    checkpoint(log, policies.PolicyModel(model, "cpu", "float32", 1000, "masked"), TrainConfig())
    shutil.move(model, tmp_path / "elsewhere")
    with pytest.raises(InputError, match="say where it is now"):
        exporting.export_policy(tmp_path / "none", tmp_path / "trained", print)
    assert not (tmp_path / "trained").exists()
    out = exporting.export_policy(tmp_path / "none", tmp_path / "trained", print, tmp_path / "elsewhere")
    assert (out / "config.json").is_file()


def test_what_holds_no_trained_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"training\.json"):
        exporting.export_policy(tmp_path, tmp_path / "trained", print)
    log_of(tmp_path / "none", prepare_model("tiny", tmp_path / "tiny", vocab=512))
    with pytest.raises(InputError, match="checkpoint_every"):
        exporting.export_policy(tmp_path / "none", tmp_path / "trained", print)
