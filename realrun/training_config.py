"""Settings of RL training. Imports neither torch nor vllm, so that any machine can check a file."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from tlt.realrun.config import (
    Count,
    DrafterConfig,
    EngineConfig,
    ModelConfig,
    RealConfig,
    TasksConfig,
    WorkersConfig,
    WorkloadConfig,
)
from tlt.traces.common.settings import Section
from tltsched.drafter_choice import FallbackConfig
from tltsched.errors import InputError
from tltsched.spot import SpotConfig

Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Attention = Literal["varlen", "masked"]
PackedAttention = Annotated[
    Attention,
    Meta(description="kernel for packed rows: flash over borders (CUDA, 16 bit), or a mask (anywhere)"),
]


class AdamWConfig(Section, frozen=True, kw_only=True):
    """The optimizer, beside its learning rate."""

    weight_decay: Annotated[float, Meta(ge=0, description="AdamW")] = 0.0
    betas: Annotated[tuple[float, float], Meta(description="AdamW")] = (0.9, 0.95)
    grad_clip: Annotated[Positive, Meta(description="largest norm of the gradient")] = 1.0


class RolloutConfig(Section, frozen=True, kw_only=True):
    """What one step generates."""

    prompts: Annotated[Count, Meta(description="prompt groups of one step, over all workers")] = 8
    samples: Annotated[Count, Meta(description="responses of a group (G)")] = 8
    max_response_tokens: Annotated[Count, Meta(description="longest response")] = 1024
    forced_lengths: Annotated[
        str,
        Meta(description="a responses.parquet whose lengths are generated instead of natural ones, by step"),
    ] = ""


class UpdateConfig(AdamWConfig, frozen=True, kw_only=True):
    """GRPO."""

    learning_rate: Annotated[Positive, Meta(description="AdamW, constant after warm-up")] = 1e-6
    warmup_steps: Annotated[int, Meta(ge=0, description="RL steps of linear warm-up")] = 0
    clip_low: Annotated[Positive, Meta(description="probability ratio may fall by this")] = 0.2
    clip_high: Annotated[Positive, Meta(description="probability ratio may rise by this")] = 0.2
    kl_coefficient: Annotated[
        float, Meta(ge=0, description="weight of the low-variance KL to the initial policy; 0: no reference")
    ] = 0.0
    minibatches: Annotated[Count, Meta(description="optimizer steps that a step's groups are split over")] = 1
    token_budget: Annotated[Count, Meta(description="tokens of one packed forward and backward pass")] = 4096
    early_token_budget: Annotated[
        Count,
        Meta(description="tokens of one pass for log-probabilities in idle time: a hand-over waits for it"),
    ] = 4096
    attention: PackedAttention = "varlen"
    scale_advantages: Annotated[
        bool, Meta(description="divide by the group's standard deviation (GRPO); false: mean only (Dr. GRPO)")
    ] = True


class HeadConfig(AdamWConfig, frozen=True, kw_only=True):
    """Training of the EAGLE-3 head."""

    learning_rate: Annotated[Positive, Meta(description="AdamW, constant after warm-up")] = 5e-4
    warmup_steps: Annotated[int, Meta(ge=0, description="optimizer steps of linear warm-up")] = 20
    unroll_steps: Annotated[Count, Meta(description="drafting steps unrolled in training (EAGLE-3)")] = 3
    step_decay: Annotated[Share, Meta(description="weight of an unrolled step over the one before")] = 0.8
    logit_weight: Annotated[float, Meta(ge=0, description="cross entropy with the target's distribution")] = (
        1.0
    )
    hidden_weight: Annotated[
        float, Meta(ge=0, description="smooth L1 to the target's last hidden state (EAGLE; TLT 1.0 and 0.1)")
    ] = 0.0
    batch_tokens: Annotated[Count, Meta(description="tokens of one training step, prompts included")] = 2048
    window_tokens: Annotated[
        int, Meta(ge=0, description="a sample is cut to this many tokens (released TLT: 512); 0: whole")
    ] = 0
    buffer_bytes: Annotated[Count, Meta(description="host memory for hidden states on one worker")] = (
        2_000_000_000
    )
    last_step_share: Annotated[
        Share,
        Meta(description="share of training tokens from long responses of the steps before"),
    ] = 0.5
    kept_steps: Annotated[
        Count, Meta(description="steps before this one that responses are kept of (TLT, one-step-off: 1)")
    ] = 1


class TrainConfig(Section, frozen=True, kw_only=True):
    """A whole training run; policies differ in their rule and in whether they train the drafter."""

    name: Annotated[str, Meta(description="shown in reports")] = "training"
    seed: Annotated[int, Meta(ge=0, description="prompts, sampling and policies follow from it")] = 0
    steps: Annotated[Count, Meta(description="RL steps of each policy")] = 10
    model: ModelConfig = ModelConfig()
    drafter: DrafterConfig = DrafterConfig()
    engine: EngineConfig = EngineConfig()
    workers: WorkersConfig = WorkersConfig()
    tasks: TasksConfig = TasksConfig()
    rollout: RolloutConfig = RolloutConfig()
    update: UpdateConfig = UpdateConfig()
    head: HeadConfig = HeadConfig()
    spot: Annotated[SpotConfig, Meta(description="drafter training on idle workers")] = SpotConfig(
        enabled=True
    )
    fallback: Annotated[
        FallbackConfig,
        Meta(description="drafts without a model in online policies, until the head is better"),
    ] = FallbackConfig()
    checkpoint_every: Annotated[int, Meta(ge=0, description="steps between checkpoints; 0: none")] = 1

    def __post_init__(self) -> None:
        if self.drafter.synthetic_survival:
            raise InputError(
                "drafter.synthetic_survival", self.drafter.synthetic_survival, "none in training",
                "remove it: training measures what the drafter really gets accepted",
            )  # fmt: skip

        if self.workers.tp > 1:
            raise InputError(
                "workers.tp",
                self.workers.tp,
                "1 in training",
                "a trainer holds a whole model: add workers instead",
            )
        if self.engine.graphs != "every_k":
            raise InputError(
                "engine.graphs", self.engine.graphs, "every_k in training",
                "the engine shares its process with the trainer and a second engine: leave it out",
            )  # fmt: skip

    @property
    def prompts(self) -> int:
        """Prompts of one step."""
        return self.rollout.prompts

    def engine_settings(self) -> RealConfig:
        """Return the part that an engine and an executor read."""
        return RealConfig(
            name=self.name, seed=self.seed, model=self.model, drafter=self.drafter, engine=self.engine,
            workers=self.workers,
            workload=WorkloadConfig(requests=self.rollout.prompts * self.rollout.samples),
        )  # fmt: skip
