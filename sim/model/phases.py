"""How long the phases after the rollout take.

A phase that the user gives in seconds takes that long. Otherwise it follows from the tokens of the step and
the roofline of the cluster: assumed. Log-probabilities are forward passes (2 operations a parameter and
token), the update is forward and backward (6), weight sync moves the bf16 weights once.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from tlt.sim.steptimes.roofline import GpuSpec
from tlt.traces.common.models import BF16_BYTES, ModelShape
from tltsched.errors import InputError

OTHER = "other"  # what a log books to no phase: as long as the log says, else nothing
PHASES = ("reward", "logprob", "policy_update", "weight_sync", OTHER)
Seconds = Annotated[float, Meta(ge=0.0)]


class PhaseConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations of reward, log-probabilities, update and weight sync. All defaults are assumed."""

    reward_s: Annotated[Seconds, Meta(description="GPUs wait this long for rewards, each step")] = 5.0
    reward_s_per_response: Annotated[
        Seconds, Meta(description="added for each response of the step (serial scoring); 0: hidden")
    ] = 0.0
    logprob_s: Annotated[Seconds | None, Meta(description="fixed seconds; unset: from the roofline")] = None
    logprob_passes: Annotated[int, Meta(ge=0, description="forward passes: old and reference policy")] = 2
    policy_update_s: Annotated[
        Seconds | None, Meta(description="fixed seconds; unset: from the roofline")
    ] = None
    training_efficiency: Annotated[
        float, Meta(gt=0.0, le=1.0, description="share of dense bf16 throughput that the update reaches")
    ] = 0.35
    forward_efficiency: Annotated[
        float, Meta(gt=0.0, le=1.0, description="share of dense bf16 throughput in log-probability passes")
    ] = 0.45
    weight_sync_s: Annotated[Seconds | None, Meta(description="fixed seconds; unset: from the weights")] = (
        None
    )
    sync_bytes_per_s: Annotated[float, Meta(gt=0.0, description="bytes a second of the weight broadcast")] = (
        25e9
    )
    by_step_s: Annotated[
        dict[str, tuple[Seconds, ...]],
        Meta(description="seconds of a phase in each step, as a log has them: in place of the fields above"),
    ] = {}

    def __post_init__(self) -> None:
        unknown = [phase for phase in self.by_step_s if phase not in PHASES]
        if unknown:
            raise InputError("phases.by_step_s", unknown, ", ".join(PHASES), "leave out what is not listed")


class Phases(Protocol):
    """How long a phase takes."""

    def seconds(self, phase: str, responses: int, tokens: int) -> float:
        """Return the seconds of `phase` for a step of `responses` with `tokens` in all, prompts included."""


class NoPhases:
    """Rollouts alone, one after the other: no phase ever begins."""

    def seconds(self, phase: str, responses: int, tokens: int) -> float:
        """Refuse: there is no such phase."""
        raise AssertionError(f"phase {phase} of {responses} responses, {tokens} tokens")


class PhaseTimes:
    """Seconds of each phase for one model and cluster."""

    def __init__(self, config: PhaseConfig, shape: ModelShape, gpu: GpuSpec, gpus: int) -> None:
        self.config = config
        self.flops = gpu.bf16_flops * gpus
        self.parameters = shape.parameters()

    def seconds(self, phase: str, responses: int, tokens: int) -> float:
        """Return the seconds of `phase` for a step of `responses` with `tokens` in all, prompts included."""
        config = self.config
        if phase == "reward":
            return config.reward_s + config.reward_s_per_response * responses
        if phase == "logprob":
            if config.logprob_s is not None:
                return config.logprob_s
            operations = 2.0 * config.logprob_passes * self.parameters * tokens
            return operations / (self.flops * config.forward_efficiency)
        if phase == "policy_update":
            if config.policy_update_s is not None:
                return config.policy_update_s
            return 6.0 * self.parameters * tokens / (self.flops * config.training_efficiency)
        if phase == OTHER:
            return 0.0
        assert phase == "weight_sync"
        if config.weight_sync_s is not None:
            return config.weight_sync_s
        return self.parameters * BF16_BYTES / config.sync_bytes_per_s


class LoggedPhases:
    """Phases as a log timed them; what it does not have is left to the model.

    Every phase is asked for once a step, in the order of the steps.
    """

    def __init__(self, by_step_s: dict[str, tuple[float, ...]], modelled: Phases) -> None:
        self._left = {phase: iter(seconds) for phase, seconds in by_step_s.items()}
        self._modelled = modelled

    def seconds(self, phase: str, responses: int, tokens: int) -> float:
        """Return the seconds of `phase` in the next step of it."""
        left = self._left.get(phase)
        return self._modelled.seconds(phase, responses, tokens) if left is None else next(left)


def phases_of(config: PhaseConfig, shape: ModelShape, gpu: GpuSpec, gpus: int) -> Phases:
    """Return the phases that the settings describe."""
    modelled = PhaseTimes(config, shape, gpu, gpus)
    return LoggedPhases(config.by_step_s, modelled) if config.by_step_s else modelled
