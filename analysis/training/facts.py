"""The figures of one policy of a training comparison. Estimates have 95 % intervals over RL steps."""

from __future__ import annotations

import msgspec

from tlt.analysis.comparison.pace import PaceFacts
from tlt.analysis.training.acceptance import AcceptanceFacts
from tlt.analysis.training.lengths import LengthFacts
from tlt.analysis.training.rewards import RewardFacts
from tlt.traces.common.intervals import Estimate


class PhaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One phase: seconds a step, and its share of the step."""

    phase: str
    seconds: Estimate
    share: Estimate


class TimeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds a step in the mean; speedups are over the baseline, paired by step."""

    step_s: Estimate
    rollout_s: Estimate
    phases: tuple[PhaseFacts, ...]  # in the order of PHASES; those that never occurred are left out
    step_speedup: Estimate
    rollout_speedup: Estimate
    tokens_per_s: Estimate  # response tokens / time of the steps, whole cluster
    rollout_tokens_per_s: Estimate  # response tokens / time of the rollouts
    token_speedup: Estimate  # of the rollout's tokens a second: free of how many tokens were generated
    pace: PaceFacts | None  # None: the baseline, or no record of single engine steps
    equal_lengths: Estimate | None  # speedup of a worker's rollout; None: equal anyway, or not to be told


class IdleFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Idle GPU time. Otherwise idle is what in a rollout is idle, drafter training or early scoring."""

    idle_share: Estimate  # of all GPU time: tail_idle and preempt_wait
    used_share: (
        Estimate  # of the otherwise idle GPU-seconds of the rollouts: drafter, early log-probabilities
    )
    drafter_gpu_s: float  # in the rollouts
    early_logprob_gpu_s: float
    idle_gpu_s: float
    scored_early_share: float  # of the responses


class WaitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Hand-over: the last response to the last trainer's stop. Medians and maxima are over steps."""

    handover_s: Estimate  # a step in the mean
    handover_share: Estimate  # of the step
    handover_median_s: float
    handover_max_s: float
    stop_median_s: float | None  # reading the order to leaving training; None: nobody trained
    stop_max_s: float | None
    publish_median_s: float | None  # None: nothing was published
    publish_max_s: float | None


class HeadFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Training of the drafter; losses are means over the tokens of the first and the last step with any."""

    training_steps: int
    tokens: int
    tokens_per_step: float  # of RL
    first_loss: float
    last_loss: float


class AmdahlFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What Amdahl's law makes of the rollout's speedup s and the baseline's rollout share r."""

    rollout_share: Estimate  # r, of the baseline
    rollout_speedup: Estimate  # s
    predicted: Estimate  # 1 / ((1 - r) + r / s)
    measured: Estimate  # end to end
    measured_over_predicted: Estimate  # above 1: the other phases got shorter as well
    ceiling: Estimate  # 1 / (1 - r): a rollout that takes no time


class PolicyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. None are `amdahl` of the baseline, `acceptance` without drafts, `head` without training."""

    policy: str
    steps: int
    kind: str  # measured or simulated; this and the sources are those of the run's summary
    cost_source: str
    lengths_source: str
    acceptance_source: str
    time: TimeFacts
    idle: IdleFacts
    wait: WaitFacts
    lengths: LengthFacts
    rewards: RewardFacts
    acceptance: AcceptanceFacts | None
    head: HeadFacts | None
    amdahl: AmdahlFacts | None
    accounting_error: float  # relative, as check_accounting returns it
