"""How long the phases after the rollout take.

A phase that the user gives in seconds takes that long on all GPUs of the cluster. Where a share of them
trains while the others generate, log-probabilities and the update take (1 / share) ** trainer_scaling times
as long. Otherwise a phase follows from the tokens of the step and the roofline of the GPUs that train: it is
assumed.
Log-probabilities are forward passes (2 operations a token and parameter that it passes: of experts its own),
the update is forward and backward (6), weight sync moves the bf16 weights once (sim.model.transports).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tlt.sim.model.transports import TransportName, sync_s
from tlt.traces.catalogue.gpus import GpuSpec
from tlt.traces.catalogue.shape import BF16_BYTES, ModelShape
from tltsched.errors import InputError

UPDATE = "policy_update"
ON_TRAINERS = ("logprob", UPDATE)  # done by the GPUs that train
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
    training_bytes_per_parameter: Annotated[
        float, Meta(ge=2.0, description="assumed: bytes of weights and gradients of the update (bf16 both)")
    ] = 4.0
    optimizer_bytes_per_parameter: Annotated[
        float, Meta(ge=0.0, description="assumed: bytes of Adam's states (float32 weights and two moments)")
    ] = 12.0
    weight_sync_s: Annotated[Seconds | None, Meta(description="fixed seconds; unset: from the weights")] = (
        None
    )
    sync_transport: Annotated[
        TransportName,
        Meta(description="how weights travel: bytes over bandwidth, plus a latency, as published or assumed "
             "(docs/asynchronous.md); assumed: 25 GB/s"),
    ] = "assumed"  # fmt: skip
    sync_bytes_per_s: Annotated[
        Annotated[float, Meta(gt=0.0)] | None,
        Meta(description="bytes a second of the weights; unset: those of sync_transport"),
    ] = None
    sync_pause_s: Annotated[
        Seconds,
        Meta(description="trainers wait this long for engines to pause before each sync under rollouts that "
             "go on: a grace, a barrier; engines generate meanwhile"),
    ] = 0.0  # fmt: skip
    lend_s: Annotated[
        Seconds,
        Meta(description="assumed: seconds in which a trainer GPU changes sides, each way, where a schedule "
             "lends it to generation"),
    ] = 0.0  # fmt: skip
    trainer_scaling: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1.0,
            description="given seconds of logprob and policy_update on a share of the GPUs: 1 takes the same "
            "GPU-seconds, so 1 / share times as long; 0 leaves them as given (intervals reach to that)",
        ),
    ] = 1.0
    by_step_s: Annotated[
        dict[str, tuple[Seconds, ...]],
        Meta(description="seconds of a phase in each step, as a log has them: in place of the fields above"),
    ] = {}

    def __post_init__(self) -> None:
        unknown = [phase for phase in self.by_step_s if phase not in PHASES]
        if unknown:
            raise InputError("phases.by_step_s", unknown, ", ".join(PHASES), "leave out what is not listed")


class Phases:
    """How long a phase takes; here there are rollouts alone, and no phase ever begins."""

    sync_pause_s = 0.0  # before weights go out under rollouts that go on
    lend_s = 0.0  # in which a trainer changes sides
    reward_times_s = (0.0, 0.0)  # from a response's end to its reward; of it, what no other may overlap

    def seconds(self, phase: str, responses: int, tokens: int, share: float = 1.0) -> float:
        """Return the seconds of `phase` for a step of `responses` with `tokens` in all, prompts included.

        They are this share of a whole batch: given seconds of what trainers do are for the whole.
        """
        raise AssertionError(f"phase {phase} of {responses} responses, {tokens} tokens, {share}")


class PhaseTimes(Phases):
    """Seconds of each phase for one model and the GPUs that train.

    longer: that seconds given for the whole cluster take so many times as long on them.
    """

    def __init__(
        self, config: PhaseConfig, shape: ModelShape, gpu: GpuSpec, gpus: int, longer: float = 1.0
    ) -> None:
        self.config = config
        self.sync_pause_s, self.lend_s = config.sync_pause_s, config.lend_s
        self.reward_times_s = (config.reward_s, config.reward_s_per_response)
        self.longer = longer
        self.flops = gpu.bf16_flops * gpus
        # A dense model's embedding table is counted in, as a token's share of all weights.
        self.active = shape.active_parameters() + shape.parameters() - shape.read_parameters()
        self.parameters = shape.parameters()

    def seconds(self, phase: str, responses: int, tokens: int, share: float = 1.0) -> float:
        """Return the seconds of `phase`: given ones, or what follows from the tokens."""
        config = self.config
        if phase == "reward":
            return config.reward_s + config.reward_s_per_response * responses
        if phase == "logprob":
            if config.logprob_s is not None:
                return config.logprob_s * self.longer * share
            operations = 2.0 * config.logprob_passes * self.active * tokens
            return operations / (self.flops * config.forward_efficiency)
        if phase == "policy_update":
            if config.policy_update_s is not None:
                return config.policy_update_s * self.longer * share
            return 6.0 * self.active * tokens / (self.flops * config.training_efficiency)
        if phase == OTHER:
            return 0.0
        assert phase == "weight_sync"
        if config.weight_sync_s is not None:
            return config.weight_sync_s
        return sync_s(config.sync_transport, self.parameters * BF16_BYTES, config.sync_bytes_per_s)


class LoggedPhases(Phases):
    """Phases as a log timed them; what it does not have is left to the model.

    Every phase is asked for once a step, in the order of the steps.
    """

    def __init__(self, by_step_s: dict[str, tuple[float, ...]], modelled: PhaseTimes) -> None:
        self._left = {phase: iter(seconds) for phase, seconds in by_step_s.items()}
        self._modelled = modelled
        self.sync_pause_s, self.lend_s = modelled.sync_pause_s, modelled.lend_s
        logged = by_step_s.get("reward")
        self.reward_times_s = (sum(logged) / len(logged), 0.0) if logged else modelled.reward_times_s

    def seconds(self, phase: str, responses: int, tokens: int, share: float = 1.0) -> float:
        """Return the seconds of `phase` in the next step of it."""
        left = self._left.get(phase)
        if left is None:
            return self._modelled.seconds(phase, responses, tokens, share)
        return next(left) * (self._modelled.longer * share if phase in ON_TRAINERS else 1.0)


def phases_of(config: PhaseConfig, shape: ModelShape, gpu: GpuSpec, gpus: int, training_gpus: int) -> Phases:
    """Return the phases that the settings describe, where `training_gpus` of the `gpus` train."""
    modelled = PhaseTimes(config, shape, gpu, training_gpus, (gpus / training_gpus) ** config.trainer_scaling)
    return LoggedPhases(config.by_step_s, modelled) if config.by_step_s else modelled


def given_on_trainers(config: PhaseConfig) -> tuple[str, ...]:
    """Return the phases whose seconds are given and depend on how many GPUs train."""
    fixed = {"logprob": config.logprob_s, "policy_update": config.policy_update_s}
    given = {name: fixed[name] or 0.0 for name in ON_TRAINERS}
    given |= {name: sum(seconds) for name, seconds in config.by_step_s.items() if name in given}
    return tuple(name for name, seconds in given.items() if seconds > 0)
