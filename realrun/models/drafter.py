"""Drafters for a prepared model: EAGLE-3 heads of random weights, and draft models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tlt.realrun.engine.model_files import checked, read_tensors
from tlt.realrun.models.folder import Prepared, Report, making, save_weights, silent
from tlt.realrun.models.target import target_config
from tlt.realrun.models.weights import layer_weights
from tlt.traces.runs.runfolder import write_json
from tltsched.errors import InputError

DEFAULT_ROPE_THETA = 10_000.0  # what transformers takes where a config says nothing
HEAD_FIELDS = (
    "rms_norm_eps", "hidden_size", "head_dim", "num_attention_heads", "num_key_value_heads",
    "intermediate_size", "vocab_size", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids",
)  # fmt: skip
HEAD_STD = 0.02  # what transformers initialises linear layers with


def make_head(
    model_folder: Path, folder: Path, draft_vocab: int, seed: int = 0, report: Report = silent
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
        config = checked(head_config(target, draft_vocab), model_folder / "config.json", *HEAD_FIELDS[1:])
        write_json(place / "config.json", config)
        save_weights(place, _head_weights(config, target["vocab_size"], seed))
    return folder


def make_draft_model(
    model_folder: Path, folder: Path, noise: float = 0.1, seed: int = 0, report: Report = silent
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

        generator = torch.Generator().manual_seed(seed)
        weights = read_tensors(model_folder / "model.safetensors")
        for name, tensor in weights.items():
            if tensor.dim() == 2:  # norms stay
                shake = torch.randn(tensor.shape, generator=generator) * noise * tensor.float().std()
                weights[name] = (tensor.float() + shake).to(tensor.dtype)
        shutil.copy(model_folder / "config.json", place / "config.json")
        save_weights(place, weights)
    return folder


def aux_layers(layers: int) -> tuple[int, ...]:
    """Return the layers whose input an EAGLE-3 head reads: an early, a middle and a late one, each once."""
    return tuple(sorted({min(2, layers - 1), layers // 2, max(layers - 3, 0)}))


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


def rope_theta(config: dict[str, Any]) -> float:
    """Return the base of the rotary embedding; published configs hold it in one of two places."""
    return float((config.get("rope_parameters") or config).get("rope_theta") or DEFAULT_ROPE_THETA)


def _llama_fields(target: dict[str, Any]) -> dict[str, Any]:
    """Return what a head shares with its target; it is a Llama layer whatever the target is."""
    heads = target["num_attention_heads"]
    same = (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
        "max_position_embeddings", "rms_norm_eps", "hidden_act", "bos_token_id", "eos_token_id",
    )  # fmt: skip
    fields: dict[str, Any] = {"num_key_value_heads": heads}
    fields |= {name: target[name] for name in same if target.get(name) is not None}
    fields["rope_parameters"] = {"rope_type": "default", "rope_theta": rope_theta(target)}  # never scaled
    fields["head_dim"] = target.get("head_dim") or target["hidden_size"] // heads
    dtype = target.get("torch_dtype") or target.get("dtype") or "bfloat16"
    return {"model_type": "llama", "attention_bias": False, "mlp_bias": False, "torch_dtype": dtype, **fields}


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
    weights = layer_weights(
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
