"""Small heads and responses for tests, and an EAGLE-3 head computed one position at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tlt.realrun.models.target import prepare_model

torch = pytest.importorskip("torch")
heads = pytest.importorskip("tlt.realrun.training.head.module")
features = pytest.importorskip("tlt.realrun.training.features")

VOCAB, HIDDEN = 64, 64
DRAFT_IDS = tuple(range(1, VOCAB, 2))


def tiny_model(root: Path) -> Path:
    return prepare_model("tiny", root / "tiny", vocab=VOCAB)


def tiny_head(model: Path, seed: int = 0, noise: float = 0.1) -> Any:
    """Return a new head all of whose weights matter."""
    head = heads.new_head(model, torch.tensor(DRAFT_IDS), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator)
    return head


def target(model: Path) -> Any:
    """Return the embedding [vocabulary, H], which is the output layer too."""
    from safetensors.torch import load_file

    return load_file(model / "model.safetensors")["model.embed_tokens.weight"]


def response(prompt: int, length: int, seed: int, step: int = 0) -> Any:
    """Return features of `prompt` + `length` tokens; the states are noise."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (prompt + length,), generator=generator)
    aux = torch.randn((prompt + length, 2 * HIDDEN), generator=generator)
    last = torch.randn((prompt + length, HIDDEN), generator=generator)
    return features.Features(step, tokens, prompt, aux, last)


def drafting(head: Any, embedding: Any, each: Any, start: int, steps: int) -> list[Any]:
    """Return the states after the norm [H] of each draft of one chain, as an engine with a cache does it."""
    cache: list[tuple[Any, Any]] = []
    normed = state = None
    for place in range(start + 1):
        normed, state = _position(
            head, embedding[each.tokens[place + 1]], head.fc(each.aux[place]), place, cache
        )
    found = [normed]
    for step in range(2, steps + 1):
        normed, state = _position(head, embedding[each.tokens[start + step]], state, start + step - 1, cache)
        found.append(normed)
    return found


def _position(head: Any, embedded: Any, state: Any, place: int, cache: list[Any]) -> tuple[Any, Any]:
    layer, config = head.midlayer, head.config
    attention, size = layer.self_attn, config["head_dim"]
    x = torch.cat([_norm(layer.input_layernorm, embedded), _norm(layer.hidden_norm, state)])
    key = _turned(attention.k_proj(x).view(-1, size), place, config)
    cache.append((key, attention.v_proj(x).view(-1, size)))
    mixed = []
    for number, query in enumerate(_turned(attention.q_proj(x).view(-1, size), place, config)):
        shared = number * config["num_key_value_heads"] // config["num_attention_heads"]
        scores = torch.stack([query @ keys[shared] for keys, _ in cache]) / size**0.5
        mixed.append(scores.softmax(0) @ torch.stack([values[shared] for _, values in cache]))
    state = state + attention.o_proj(torch.cat(mixed))
    y = _norm(layer.post_attention_layernorm, state)
    gate = layer.mlp.gate_proj(y)
    state = state + layer.mlp.down_proj(gate * gate.sigmoid() * layer.mlp.up_proj(y))
    return _norm(head.norm, state), state


def _norm(norm: Any, x: Any) -> Any:
    return x / (x.square().mean() + norm.epsilon).sqrt() * norm.weight


def _turned(x: Any, place: int, config: dict[str, Any]) -> Any:
    """Rotate pairs (d, d + half) as complex numbers."""
    half = x.shape[-1] // 2
    speeds = config["rope_parameters"]["rope_theta"] ** (-torch.arange(half) / half)
    turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones(half), place * speeds)
    return torch.cat([turned.real, turned.imag], -1)
