"""The EAGLE-3 head as a trainable module; its parameters carry vLLM's names, so an export is served as it is.

Theory of operation. At position i the head reads the target's hidden states of token i and the embedding of
token i + 1, and predicts what the target predicts after token i + 1. Drafting on, the k-th step reads its own
last state in place of the target's, and the embedding of token i + k. Training unrolls these steps on the
recorded tokens (EAGLE-3's training-time test): a chain that starts at i attends to the first-step keys of
positions up to i and to the later keys of its own chain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tlt.realrun.engine.model_files import RESTORE, checked, named_tensors, read_config, read_tensors
from tlt.realrun.models.drafter import HEAD_FIELDS, head_config, rope_theta
from tlt.realrun.models.folder import Prepared, making, save_weights
from tlt.realrun.models.target import target_config
from tlt.realrun.training.flat_state import State
from tlt.traces.runs.runfolder import write_json
from tltsched.errors import InputError

NOISE_STD = 0.01  # of weights that read what the target's layer did not
GIVE = "give a head of one Llama layer that was made for this target and shares its embedding"


def draft_ids(
    responses: Iterable[Sequence[int]], size: int, vocab: int, always: Iterable[int] = ()
) -> torch.Tensor:
    """Return the `size` ids [size] that a head drafts, ascending.

    They are `always`, then those that responses use most, then the lowest unused ones.
    """
    counts = Counter(token for response in responses for token in response)
    chosen = dict.fromkeys(always)
    for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        chosen.setdefault(token)
    for token in range(vocab):
        if len(chosen) >= size:
            break
        chosen.setdefault(token)
    return torch.tensor(sorted(list(chosen)[:size]))


class Norm(nn.Module):
    """Root-mean-square norm, in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [..., size] over its root mean square, scaled."""
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.epsilon)


class Attention(nn.Module):
    """Projections of one attention layer over embedding and state side by side."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, size = config["hidden_size"], config["head_dim"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.q_proj = nn.Linear(2 * hidden, self.heads * size, bias=False)
        self.k_proj = nn.Linear(2 * hidden, self.kv_heads * size, bias=False)
        self.v_proj = nn.Linear(2 * hidden, self.kv_heads * size, bias=False)
        self.o_proj = nn.Linear(self.heads * size, hidden, bias=False)

    def project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values [B, heads, T, D] of x [B, T, 2 H]; keys repeated for each query."""
        batch, tokens, _ = x.shape
        query = self.q_proj(x).view(batch, tokens, self.heads, -1).transpose(1, 2)
        key = self.k_proj(x).view(batch, tokens, self.kv_heads, -1).transpose(1, 2)
        value = self.v_proj(x).view(batch, tokens, self.kv_heads, -1).transpose(1, 2)
        each = self.heads // self.kv_heads
        return query, key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)


class Mlp(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output [..., H]."""
        down: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Layer(nn.Module):
    """The one decoder layer."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, epsilon = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn = Attention(config)
        self.mlp = Mlp(hidden, config["intermediate_size"])
        self.input_layernorm = Norm(hidden, epsilon)
        self.hidden_norm = Norm(hidden, epsilon)
        self.post_attention_layernorm = Norm(hidden, epsilon)


class Head(nn.Module):
    """An EAGLE-3 head; `draft_ids` [draft vocabulary] are the target's ids it can predict, ascending."""

    draft_ids: torch.Tensor

    def __init__(self, config: dict[str, Any], draft_ids: torch.Tensor) -> None:
        super().__init__()
        hidden, states = config["hidden_size"], len(config["eagle_aux_hidden_state_layer_ids"])
        self.config = config
        self.midlayer = Layer(config)
        self.norm = Norm(hidden, config["rms_norm_eps"])
        self.fc = nn.Linear(states * hidden, hidden, bias=False)
        self.lm_head = nn.Linear(hidden, len(draft_ids), bias=False)
        self.register_buffer("draft_ids", draft_ids.long(), persistent=False)
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default":
            fix = "train a new head: its rotary embedding is plain"
            raise InputError("rope_type of the head", rope["rope_type"], "default", fix)
        self._theta = rope_theta(config)

    def unrolled(
        self, embedded: torch.Tensor, aux: torch.Tensor, documents: torch.Tensor, steps: int
    ) -> Iterator[torch.Tensor]:
        """Yield the states [B, S, H] after the head's norm of each drafting step, the first one first.

        `aux` [B, S, A x H] are the target's states at S chain starts; `embedded` [B, S + steps, H] are the
        embeddings of the tokens from the first start on. Starts see those of their own document alone:
        `documents` [B, S] numbers them.
        """
        layer, attention = self.midlayer, self.midlayer.self_attn
        starts = aux.shape[1]
        state = self.fc(aux.to(self.fc.weight.dtype)).float()
        later: list[tuple[torch.Tensor, torch.Tensor]] = []
        first: tuple[torch.Tensor, torch.Tensor] | None = None
        hidden = _hidden(documents)
        turns = self._turns(starts + steps, aux.device)
        for step in range(1, steps + 1):
            x = torch.cat(
                [layer.input_layernorm(embedded[:, step : step + starts]), layer.hidden_norm(state)], -1
            )
            query, key, value = attention.project(x)
            here = (turns[0][step - 1 : step - 1 + starts], turns[1][step - 1 : step - 1 + starts])
            query, key = _rotate(query, *here), _rotate(key, *here)
            if first is None:
                first = (key, value)
            else:
                later.append((key, value))
            mixed = _attend(query, first, later, hidden)
            batch, heads, _, size = mixed.shape
            out = attention.o_proj(mixed.transpose(1, 2).reshape(batch, starts, heads * size)).float()
            state = state + out
            state = state + layer.mlp(layer.post_attention_layernorm(state)).float()
            yield self.norm(state)

    def _turns(self, positions: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosine and sine [positions, D / 2] of the rotary embedding."""
        half = int(self.config["head_dim"]) // 2
        powers = torch.arange(half, device=device, dtype=torch.float32) / half
        angles = torch.arange(positions, device=device).float()[:, None] * self._theta ** -powers[None]
        return angles.cos(), angles.sin()

    def vllm_state(self, dtype: torch.dtype) -> State:
        """Return the weights as an engine loads them."""
        state = {name: tensor.detach().to(dtype) for name, tensor in self.named_parameters()}
        count = len(self.draft_ids)
        if count != self.config["vocab_size"]:
            state["d2t"] = self.draft_ids - torch.arange(count, device=self.draft_ids.device)
        return state


def _rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Return x [B, heads, T, D] with rotary embedding (halves, as Llama does); both [T, D / 2].

    Only differences of positions count, so that a document may begin anywhere in its row.
    """
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def _hidden(documents: torch.Tensor) -> torch.Tensor:
    """Return what is added to first-step scores [B, 1, S, S]: nothing, or minus infinity.

    A start sees those before it, and itself, in its document.
    """
    starts = documents.shape[1]
    others = documents[:, :, None] != documents[:, None, :]
    later = torch.ones((starts, starts), dtype=torch.bool, device=documents.device).triu(1)
    return torch.zeros(others.shape, device=documents.device).masked_fill(others | later, -math.inf)[:, None]


def _attend(
    query: torch.Tensor,
    first: tuple[torch.Tensor, torch.Tensor],
    later: list[tuple[torch.Tensor, torch.Tensor]],
    hidden: torch.Tensor,
) -> torch.Tensor:
    """Return attention [B, heads, S, D] over first-step keys not hidden, and its chain's later ones."""
    scale = query.shape[-1] ** -0.5
    half = first[1].dtype
    scores = [torch.matmul(query.to(half), first[0].to(half).transpose(-1, -2)).float() * scale + hidden]
    scores += [(query * key).sum(-1, keepdim=True) * scale for key, _ in later]
    weights = torch.cat(scores, -1).softmax(-1)
    starts = hidden.shape[-1]
    mixed = torch.matmul(weights[..., :starts].to(half), first[1]).float()
    for place, (_, value) in enumerate(later):
        mixed = mixed + weights[..., starts + place, None] * value.float()
    return mixed


def new_head(model_folder: Path, draft_ids: torch.Tensor, seed: int = 0) -> Head:
    """Return a head for `draft_ids` [size] that starts from the target's last layer, norm and output layer.

    So it learns in few tokens: what reads the target's last state is the target's own, the rest is noise.
    """
    target = target_config(model_folder)
    config = checked(head_config(target, len(draft_ids)), model_folder / "config.json", *HEAD_FIELDS)
    generator = torch.Generator().manual_seed(seed)
    hidden, last = config["hidden_size"], f"model.layers.{target['num_hidden_layers'] - 1}."
    projections = ("q_proj", "k_proj", "v_proj")
    copied = {
        "midlayer.self_attn.o_proj": f"{last}self_attn.o_proj",
        "midlayer.mlp.gate_proj": f"{last}mlp.gate_proj",
        "midlayer.mlp.up_proj": f"{last}mlp.up_proj",
        "midlayer.mlp.down_proj": f"{last}mlp.down_proj",
        "midlayer.input_layernorm": "model.layers.0.input_layernorm",
        "midlayer.hidden_norm": f"{last}input_layernorm",
        "midlayer.post_attention_layernorm": f"{last}post_attention_layernorm",
        "norm": "model.norm",
    }
    wanted = [*copied.values(), *(f"{last}self_attn.{name}" for name in projections)]
    weights = named_tensors(model_folder, [f"{name}.weight" for name in wanted])
    output = _output_layer(model_folder)
    with torch.device("meta"):  # sizes alone: those of a damaged config.json may be any
        sized = Head(config, draft_ids)
    slots = {f"{its}.weight": sized.get_submodule(mine).weight for mine, its in copied.items()}
    for name in projections:
        slots[f"{last}self_attn.{name}.weight"] = getattr(sized.midlayer.self_attn, name).weight[:, hidden:]
    odd = [name for name, slot in slots.items() if slot.shape != weights[name].shape]
    if odd or output.shape != (config["vocab_size"], hidden):
        told = odd[0] if odd else "its output layer"
        raise InputError("weights", f"{model_folder}: {told}", "the sizes that its config.json has", RESTORE)
    head = Head(config, draft_ids)
    with torch.no_grad():
        for name in projections:
            weight = getattr(head.midlayer.self_attn, name).weight
            weight[:, :hidden] = torch.randn(weight[:, :hidden].shape, generator=generator) * NOISE_STD
            weight[:, hidden:] = weights[f"{last}self_attn.{name}.weight"].float()
        for mine, its in copied.items():
            head.get_submodule(mine).weight.copy_(weights[f"{its}.weight"])
        head.lm_head.weight.copy_(output[draft_ids])
        fc = torch.randn(head.fc.weight.shape, generator=generator) * NOISE_STD / 5
        fc[:, -hidden:] += torch.eye(hidden)  # the latest of the target's states
        head.fc.weight.copy_(fc)
    return head


def _output_layer(model_folder: Path) -> torch.Tensor:
    """Return the target's output layer [vocabulary, H]; where it has none, its embedding."""
    names = ("lm_head.weight", "model.embed_tokens.weight")
    tensors = named_tensors(model_folder, names, may_lack=names)
    if not tensors:
        allowed = f"{names[0]} or {names[1]}"
        raise InputError("weights", f"{model_folder} without an output layer", allowed, RESTORE)
    return tensors[min(tensors)]  # lm_head comes first


def export_head(head: Head, folder: Path, model_folder: Path) -> Path:
    """Write a folder that stock vLLM serves as the eagle3 drafter of `model_folder`; returns it."""
    record = Prepared(
        kind="eagle3", name=str(model_folder), weights="trained", draft_vocab=len(head.draft_ids)
    )
    with making(folder, record, lambda _: None) as place:
        if place is not None:
            write_json(place / "config.json", head.config)
            dtype = getattr(torch, head.config["torch_dtype"])
            state = {name: each.cpu().contiguous() for name, each in head.vllm_state(dtype).items()}
            save_weights(place, state)
    return folder


def export_weights(weights: Path, folder: Path, model_folder: Path) -> Path:
    """Write a folder as export_head does, from a file that a training run left in its heads folder."""
    state = read_tensors(weights)
    if "lm_head.weight" not in state:
        raise InputError(f"weights in {weights}", "no lm_head.weight", "those of an EAGLE-3 head", GIVE)
    config = head_config(target_config(model_folder), state["lm_head.weight"].shape[0])
    head = _head(checked(config, model_folder / "config.json", *HEAD_FIELDS), state, weights)
    return export_head(head, folder, model_folder)


def load_head(folder: Path) -> Head:
    """Return the head in a folder that export_head or `tlt real model` wrote; raises InputError if none."""
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise InputError("drafter.folder", str(folder), "a folder with an EAGLE-3 head", "prepare one")
    return _head(read_config(folder, *HEAD_FIELDS), read_tensors(weights), weights)


def _head(config: dict[str, Any], state: State, source: Path) -> Head:
    """Return the head of these weights, in float32; raises InputError if they are others than it has."""
    count, vocab = config["draft_vocab_size"], config["vocab_size"]
    state.pop("t2d", None)  # the same the other way round
    offsets = state.pop("d2t", torch.zeros(min(count, vocab), dtype=torch.long))
    ids = torch.arange(len(offsets)) + offsets
    if ids.shape != (count,) or ids.is_floating_point() or not ((ids >= 0) & (ids < vocab)).all():
        what = f"{count} tokens to predict, of {vocab} that there are"
        raise InputError(f"d2t in {source}", f"shape {tuple(offsets.shape)}", what, GIVE)
    with torch.device("meta"):  # sizes alone: those of a damaged config.json may be any
        wanted = {name: tuple(each.shape) for name, each in Head(config, ids).state_dict().items()}
    given = {name: tuple(each.shape) for name, each in state.items()}
    if given != wanted:
        odd = sorted(name for name in wanted | given if wanted.get(name) != given.get(name))
        raise InputError(f"weights in {source}", ", ".join(odd), "those of an EAGLE-3 head", GIVE)
    head = Head(config, ids)
    head.load_state_dict(state)
    return head
