"""Whether the update of the policy fits into the GPUs that train, and with what.

Assumed, as the settings of `phases` say: weights, gradients and the states of Adam are cut over all GPUs that
train (ZeRO 3, FSDP); activations are those of one sequence at the cap, checkpointed at every layer, with the
logits of it, cut over as many GPUs as an engine's tensor parallelism. The engine's own memory is released
meanwhile.
"""

from __future__ import annotations

import msgspec

from tlt.sim.config import Config
from tlt.sim.model.phases import UPDATE
from tlt.traces.catalogue.gpus import GpuSpec
from tlt.traces.catalogue.shape import BF16_BYTES, ModelShape
from tltsched.errors import InputError

LOGIT_BYTES = 6  # of a token and entry of the vocabulary: bf16, and float32 for the loss
LAYER_STATES = (
    17  # of a token in the layer that is calculated again, in hidden sizes (Korthikanti et al., 2022)
)


class TrainingMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on each GPU that trains."""

    weights_and_gradients: float
    optimizer: float
    activations: float
    usable: float

    @property
    def offloads(self) -> bool:
        """Whether it fits only with the states of the optimizer in the host's memory."""
        return self.weights_and_gradients + self.optimizer + self.activations > self.usable

    def text(self) -> str:
        """Return the figures in words."""
        return (
            f"{self.weights_and_gradients / 1e9:,.1f} GB of weights and gradients, "
            f"{self.optimizer / 1e9:,.1f} GB of optimizer states and {self.activations / 1e9:,.1f} GB of "
            f"activations on each, {self.usable / 1e9:,.1f} GB to use"
        )


def training_memory(
    config: Config, shape: ModelShape, gpu: GpuSpec, gpus: int, longest_tokens: int
) -> TrainingMemory | None:
    """Return what the update holds on each of `gpus`; None: the update is not modelled, or there is none.

    Raises InputError if it does not fit even with the optimizer's states elsewhere.
    """
    phases = config.phases
    if (
        UPDATE not in config.cluster.phases
        or phases.policy_update_s is not None
        or UPDATE in phases.by_step_s
    ):
        return None
    here = shape.parameters() / gpus
    cut = min(config.hardware.tp, gpus)
    states = shape.hidden * BF16_BYTES * (shape.layers + LAYER_STATES) + shape.vocab * LOGIT_BYTES
    held = TrainingMemory(
        weights_and_gradients=here * phases.training_bytes_per_parameter,
        optimizer=here * phases.optimizer_bytes_per_parameter,
        activations=longest_tokens * states / cut,
        usable=gpu.memory_bytes * config.engine.memory_fraction,
    )
    if held.weights_and_gradients + held.activations > held.usable:
        raise InputError(
            "hardware", f"an update of {shape.name} on {gpus} x {gpu.name}: {held.text()}",
            "memory for weights, gradients and activations (optimizer states may lie in the host's)",
            "take more GPUs or larger ones, lower workload.max_response_tokens, or give "
            "phases.policy_update_s if your trainer fits",
        )  # fmt: skip
    return held
