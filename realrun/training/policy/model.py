"""The policy as a trainable model of transformers: float32 weights, computed in the engine's number format.

Log-probabilities are those of the distribution that the engine samples from: logits over the temperature. A
temperature of 0 (greedy) is taken as 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch.utils.checkpoint import checkpoint

from tlt.realrun.config import Dtype
from tlt.realrun.engine import vllm_compat
from tlt.realrun.training.features import Features
from tlt.realrun.training.policy import packed_attention
from tlt.realrun.training.policy.packing import Pack, pack, plan
from tlt.realrun.training_config import Attention, TrainConfig
from tltsched.errors import InputError

LOGIT_ROWS = 2048  # rows of logits that exist at a time: [2048, vocabulary] in float32


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One response, as token ids; its prompt has one at least, for the first token to follow."""

    id: int
    prompt: tuple[int, ...]
    response: tuple[int, ...]


class Scored(NamedTuple):
    """A response with the policy's log-probability of each of its tokens [response], on the host."""

    sample: Sample
    log_probs: torch.Tensor
    features: Features | None


class Rows(NamedTuple):
    """What a forward pass says about the response tokens of a pack, sample after sample: [rows] each."""

    log_probs: torch.Tensor
    entropy: torch.Tensor


class PolicyModel:
    """A causal language model and what training asks of it."""

    def __init__(
        self, folder: Path, device: str, dtype: Dtype, token_budget: int, attention: Attention
    ) -> None:
        """Load the model in `folder`; `token_budget` bounds one packed pass.

        Raises InputError for the varlen kernel on CUDA in float32. A CPU has masks alone.
        """
        self._varlen = attention == "varlen" and device != "cpu"
        if self._varlen and dtype == "float32":
            fix = "set the section's attention to masked"
            raise InputError("attention", attention, "masked for a float32 model", fix)
        vllm_compat.hide_cuda_companions()
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # one for each worker, in one terminal
        self.device = device
        self.dtype = getattr(torch, dtype)
        self.token_budget = token_budget
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        ).to(device)
        self.model.config.use_cache = False
        if self._varlen:
            packed_attention.use(self.model)
        self.layers = int(self.model.config.num_hidden_layers)
        self.tied = bool(self.model.config.tie_word_embeddings)

    def embedding(self) -> torch.Tensor:
        """Return the input embedding [vocabulary, H]."""
        weight: torch.Tensor = self.model.get_input_embeddings().weight.detach()
        return weight

    def output_layer(self) -> torch.Tensor:
        """Return the output layer [vocabulary, H]; the embedding where they are tied."""
        weight: torch.Tensor = self.model.get_output_embeddings().weight.detach()
        return weight

    def state(self) -> dict[str, torch.Tensor]:
        """Return the weights for an engine, under the names of a checkpoint and in the engine's format."""
        return {
            name: tensor.detach().to(self.dtype)
            for name, tensor in self.model.state_dict().items()
            if not (self.tied and name == "lm_head.weight")
        }

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass in the engine's number format."""
        return torch.autocast(self.device, self.dtype, enabled=self.dtype != torch.float32)

    def packs(self, samples: Sequence[Sample]) -> Iterator[Pack]:
        """Yield the samples in packed rows."""
        sequences = [(*sample.prompt, *sample.response) for sample in samples]
        for indices in plan([len(sequence) for sequence in sequences], self.token_budget):
            yield pack(sequences, indices, self.device)

    def hidden(self, packed: Pack) -> torch.Tensor:
        """Return the states after the final norm [T, H] of a pack."""
        more = packed_attention.borders(packed) if self._varlen else {}
        output = self.model.model(
            input_ids=packed.tokens, position_ids=packed.positions, use_cache=False, **more
        )
        states: torch.Tensor = output.last_hidden_state[0]
        return states

    def rows(self, packed: Pack, hidden: torch.Tensor, prompts: Sequence[int], temperature: float) -> Rows:
        """Return log-probabilities and entropies of the response tokens of a pack from `hidden` [T, H].

        `prompts` are the prompt lengths of its sequences. Logits are made some rows at a time, and again in
        the backward pass, so that they never all exist.
        """
        at, wanted = [], []
        for (start, end), prompt in zip(packed.spans, prompts, strict=True):
            at.append(torch.arange(start + prompt - 1, end - 1))
            wanted.append(torch.arange(start + prompt, end))
        states = hidden[torch.cat(at).to(self.device)]
        tokens = packed.tokens[0, torch.cat(wanted).to(self.device)]
        weight = self.model.get_output_embeddings().weight
        again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        parts = [
            again(_log_probs, part, labels, weight, temperature or 1.0)
            for part, labels in zip(states.split(LOGIT_ROWS), tokens.split(LOGIT_ROWS), strict=True)
        ]
        return Rows(torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]))

    @torch.no_grad()
    def log_probs(
        self, samples: Sequence[Sample], temperature: float, aux_layers: tuple[int, ...] = (), step: int = 0
    ) -> Iterator[Scored]:
        """Yield the samples with their log-probabilities, in any order.

        With `aux_layers` the inputs of those layers and the last states come along as features of RL step
        `step`, without another pass.
        """
        for packed in self.packs(samples):
            mine = [samples[index] for index in packed.indices]
            with self.autocast(), _Inputs(self.model.model.layers, aux_layers) as inputs:
                hidden = self.hidden(packed)
                rows = self.rows(packed, hidden, [len(sample.prompt) for sample in mine], temperature)
            features: Sequence[Features | None] = [None] * len(mine)
            if aux_layers:
                features = self._features(mine, packed, inputs.states, hidden, step)
            # Waits for all that the device was told before, the copies of features too.
            by_sample = rows.log_probs.float().cpu().split([len(sample.response) for sample in mine])
            for sample, log_probs, known in zip(mine, by_sample, features, strict=True):
                yield Scored(sample, log_probs.clone(), known)

    def _features(
        self, samples: Sequence[Sample], packed: Pack, states: Sequence[torch.Tensor], hidden: torch.Tensor,
        step: int,
    ) -> list[Features]:  # fmt: skip
        """Return the features of a pack on the host; on a GPU they are still on their way there."""
        aux, last = torch.cat(tuple(states), -1).to(self.dtype), hidden.to(self.dtype)
        tokens = packed.tokens[0]
        return [
            Features(
                step, self._to_host(tokens[start:end]), len(sample.prompt), self._to_host(aux[start:end]),
                self._to_host(last[start:end]),
            )
            for sample, (start, end) in zip(samples, packed.spans, strict=True)
        ]  # fmt: skip

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host, of its own memory; from a GPU it is done when the stream is."""
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.device == "cuda")
        return copy.copy_(tensor, non_blocking=True)


def load_policy(config: TrainConfig) -> PolicyModel:
    """Return the policy that a training run starts from."""
    return PolicyModel(
        Path(config.model.folder), config.engine.device, config.model.dtype, config.update.token_budget,
        config.update.attention,
    )  # fmt: skip


def _log_probs(
    states: torch.Tensor, tokens: torch.Tensor, weight: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies [rows] of `tokens` after `states` [rows, H]."""
    logits = torch.nn.functional.linear(states, weight).float() / temperature
    total = logits.logsumexp(-1)
    log_probs = logits.gather(-1, tokens[:, None])[:, 0] - total
    with torch.no_grad():
        entropy = total - ((logits - total[:, None]).exp() * logits).sum(-1)
    return log_probs, entropy


class _Inputs:
    """Keeps what goes into some layers while it is entered."""

    def __init__(self, layers: Any, wanted: tuple[int, ...]) -> None:
        self._layers = layers
        self._wanted = wanted
        self._inputs: dict[int, torch.Tensor] = {}
        self._hooks: list[Any] = []

    @property
    def states(self) -> list[torch.Tensor]:
        """The inputs [T, H] of each wanted layer, in order."""
        return [self._inputs[layer] for layer in self._wanted]

    def __enter__(self) -> _Inputs:
        for number in self._wanted:
            self._hooks.append(self._layers[number].register_forward_pre_hook(self._keep(number)))
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _keep(self, number: int) -> Any:
        def hook(_layer: Any, arguments: tuple[torch.Tensor, ...]) -> None:
            self._inputs[number] = arguments[0][0].detach()

        return hook
