"""Model folders that are cut, spoiled or of another kind are refused by name, never by a traceback."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tlt.realrun.config import ModelConfig, RealConfig
from tlt.realrun.engine.model_files import require_whole
from tlt.realrun.models.drafter import make_draft_model, make_head
from tlt.realrun.models.target import prepare_model, target_config
from tlt.realrun.prompts import vocabulary
from tltsched.errors import InputError

torch = pytest.importorskip("torch")
heads = pytest.importorskip("tlt.realrun.training.head.module")

VALUES: tuple[Any, ...] = (
    None, 0, -1, 1, 8, 64, 128, 2**40, 1e300, 0.5, "x", "", True, [], {}, [1], {"a": 1},
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("models")
    make_head(prepare_model("tiny", top / "model", vocab=512), top / "head", 256)
    return top


def spoil(path: Path, rng: Random) -> None:
    """Change a field of a config.json, or bytes of any file."""
    content = bytearray(path.read_bytes())
    kind = rng.randrange(4 if path.suffix == ".json" else 3)
    if kind == 0:
        content = content[: rng.randrange(len(content))]
    elif kind == 1:
        content[rng.randrange(min(len(content), 2000))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        content[:8] = bytes(rng.randrange(256) for _ in range(8))
    else:
        fields = msgspec.json.decode(content)
        fields[rng.choice(sorted(fields))] = rng.choice(VALUES)
        if rng.random() < 0.2:
            del fields[rng.choice(sorted(fields))]
        content = bytearray(msgspec.json.encode(fields))
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(60))
def test_spoiled_folders_work_or_are_refused(whole: Path, tmp_path: Path, seed: int) -> None:
    rng = Random(seed)  # noqa: S311
    top = tmp_path / "models"
    shutil.copytree(whole, top)
    spoil(rng.choice(sorted(path for path in top.glob("*/*") if path.name != "prepared.json")), rng)
    ids = torch.arange(256)
    for read in (
        lambda: heads.load_head(top / "head"),
        lambda: heads.new_head(top / "model", ids),
        lambda: heads.export_weights(top / "head" / "model.safetensors", tmp_path / "out", top / "model"),
        lambda: make_draft_model(top / "model", tmp_path / "draft"),
        lambda: make_head(top / "model", tmp_path / "made", 256),
        lambda: vocabulary(top / "model"),
        lambda: prepare_model(str(top / "model" / "config.json"), tmp_path / "published"),
    ):
        with suppress(InputError):
            read()


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("vocab_size", "many", "vocab_size"),
        ("vocab_size", None, "without vocab_size"),
        ("hidden_size", 2**40, "a whole number from 1"),
        ("rms_norm_eps", -1.0, "rotary embedding"),
        ("rope_parameters", [1], "rotary embedding"),
    ],
)
def test_a_field_that_cannot_be_is_named(
    whole: Path, tmp_path: Path, field: str, value: object, told: str
) -> None:
    shutil.copytree(whole / "model", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    fields = msgspec.json.decode(path.read_bytes()) | {field: value}
    path.write_bytes(msgspec.json.encode(fields))
    with pytest.raises(InputError, match=told):
        target_config(tmp_path / "model")
    assert target_config(whole / "model")["vocab_size"] == vocabulary(whole / "model") == 512


def test_a_head_that_drafts_tokens_beyond_the_vocabulary_is_refused(whole: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(whole / "head", tmp_path / "head")
    path = tmp_path / "head" / "model.safetensors"
    state: dict[str, Any] = load_file(path)
    state["d2t"][3] = 512
    save_file(state, path)
    with pytest.raises(InputError, match="of 512 that there are"):
        heads.load_head(tmp_path / "head")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("hidden_size", 128, "the sizes that its config.json has"),
        ("vocab_size", 500, "its output layer.*the sizes that its config.json has"),
        ("intermediate_size", None, "without intermediate_size"),
        ("num_hidden_layers", 40, r"without model\.layers\.39"),
        ("torch_dtype", "floa|32", "float32, bfloat16"),
    ],
)
def test_a_head_is_not_made_from_weights_that_do_not_fit(
    whole: Path, tmp_path: Path, field: str, value: object, told: str
) -> None:
    shutil.copytree(whole / "model", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | {field: value}))
    with pytest.raises(InputError, match=told):
        heads.new_head(tmp_path / "model", torch.arange(256))


def test_fields_that_nobody_looks_into_are_left_alone(whole: Path, tmp_path: Path) -> None:
    """Some architectures have a number a layer where others have one."""
    (tmp_path / "config.json").write_text('{"vocab_size": 7, "intermediate_size": [1, 2], "rope_theta": "x"}')
    assert vocabulary(tmp_path) == 7


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.json", b"{", r"config\.json"),
        ("model.safetensors", b"\xff" * 20, "a whole safetensors file"),
        ("model.safetensors", None, "a whole safetensors file"),
    ],
)
def test_an_engine_is_not_started_on_what_was_cut(
    whole: Path, tmp_path: Path, name: str, content: bytes | None, told: str
) -> None:
    shutil.copytree(whole / "model", tmp_path / "model")
    require_whole(tmp_path / "model")
    path = tmp_path / "model" / name
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    with pytest.raises(InputError, match=told):
        require_whole(tmp_path / "model")
    pytest.importorskip("vllm")
    from tlt.realrun.engine.vllm_engine import make_engine

    config = RealConfig(model=ModelConfig(folder=str(tmp_path / "model"), name="tiny", dtype="float32"))
    with pytest.raises(InputError, match=told):
        make_engine(config, False)
