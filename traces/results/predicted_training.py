"""What the simulator learned from the first half of a measured training run, and how it did on the second.

A folder of training policies that were simulated again holds predicted_training.json (PredictedTraining)
beside their run folders. Lengths count the bonus token. An update is the policy_update phase of one RL step.
"""

from __future__ import annotations

from typing import Literal

import msgspec

PREDICTED_TRAINING = "predicted_training.json"
Verdict = Literal["falls", "rises", "none visible"]
Quantity = Literal["rollout seconds", "step seconds", "acceptance length"]


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure with its 95 % interval over steps; None: too few."""

    value: float
    interval: tuple[float, float] | None


class Median(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The median of something that was timed in `steps` of the fitted steps, with its quartiles."""

    name: str
    unit: str
    value: float
    low: float
    high: float
    steps: int


class DriftPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Acceptance of one head in one step, as the exponent on the acceptance of all steps together."""

    step: int
    head: Literal["serving", "initial"]
    source: Literal["rollout", "probe"]
    exponent: float
    length: float  # as measured


class EntropyLaw(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How acceptance goes with the entropy of the policy, between the steps of one run.

    The exponent of the served head goes as entropy ** elasticity. Steps differ in their prompts as well as in
    the policy, so that this is what goes together, within the entropies seen, and not what an update does.
    """

    elasticity: Figure
    lowest_nats: float  # entropy of a response token, of the steps that were fitted
    highest_nats: float
    explained: float  # share of the variance of log exponents
    steps: int


class DriftFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How acceptance follows the policy's updates and the drafter's training (law: tlt.sim.model.drafter).

    The exponent of a head is 1 when it is trained in full, `initial_exponent` at step 0, and grows by
    `per_update`.
    """

    steps: tuple[int, ...]  # that were fitted
    measured_on: str  # what the drift was read from
    per_update: Figure
    verdict: Verdict  # of acceptance, as the policy is updated
    initial_exponent: Figure
    recovery_tokens: Figure | None  # None: no training, or none that was seen to help
    recovery_resolved: bool  # False: helped to the last step, so that recovery_tokens is a lower bound
    residual: float  # root mean square of log exponents, measured less fitted
    points: tuple[DriftPoint, ...]
    entropy: EntropyLaw | None = None  # None: not recorded, or too few steps

    def simulated_per_update(self) -> float:
        """Return what the simulator adds to the exponent at each update.

        It is the end of the interval that is nearer to 0, and 0 where 0 lies inside: which prompts a step
        happens to have moves acceptance more than a few updates do, and what is simulated goes on for many.
        """
        if self.per_update.interval is None:
            return 0.0 if self.verdict == "none visible" else self.per_update.value
        low, high = self.per_update.interval
        return max(low, 0.0) + min(high, 0.0)


class TrainingFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that was fitted on some steps of one policy."""

    steps: tuple[int, ...]
    survival_by_position: tuple[float, ...]  # of a head that is trained in full; empty: nothing was drafted
    drift: DriftFit | None
    no_drift_because: str  # empty where there is a fit
    medians: tuple[Median, ...]
    acceptance_parameters: dict[str, Figure] = {}  # of how requests differ, by field of acceptance.*
    alike_because: str = ""  # why they are taken to be alike, where that is so


class StepPrediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step, measured and simulated. A length is None where nothing was drafted."""

    step: int
    judged: bool  # not one of the steps that were fitted
    measured_rollout_s: float
    simulated_rollout_s: float
    measured_step_s: float
    simulated_step_s: float
    measured_length: float | None
    simulated_length: float | None


class PredictionError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Simulated over measured, less 1, over all judged steps together."""

    quantity: Quantity
    measured: float  # mean of a judged step
    simulated: float
    error: Figure


class PredictedPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy, by the name of its run folder."""

    run: str
    policy: str
    fit: TrainingFit
    # Seconds of fitted rollouts over what the calibration says of their engine steps; older files took none.
    engine_factor: float = 1.0
    steps: tuple[StepPrediction, ...]
    errors: tuple[PredictionError, ...]
    same_placement: bool  # every request ran on the worker that it was simulated on


class PredictedTraining(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the simulation rests on, and every policy."""

    calibration: str  # one line: engine, device, date
    step_time_error: float  # mean of the calibration on points that its fit did not see, as a share
    policies: tuple[PredictedPolicy, ...]
    warnings: tuple[str, ...]


def sentences(told: PredictedTraining) -> list[str]:
    """Return in words how well every policy was predicted, what its drafter did, and what to keep in mind."""
    found = [
        sentence
        for policy in told.policies
        for sentence in (prediction_sentence(policy), drift_sentence(policy))
    ]
    return [*found, *(f"Note: {warning}." for warning in told.warnings)]


def prediction_sentence(policy: PredictedPolicy) -> str:
    """Return how far simulated and measured lie apart in the steps that were not fitted."""
    judged = [step.step for step in policy.steps if step.judged]
    errors = ", ".join(f"{signed(error.error)} in {error.quantity}" for error in policy.errors)
    return (
        f"{policy.policy}: fitted on {len(policy.fit.steps)} steps, the prediction of steps {judged[0]} to "
        f"{judged[-1]} is off by {errors} (95 % intervals over steps). In the fitted steps rollouts took "
        f"{policy.engine_factor:.2f} times what the calibration says of their engine steps, and so all do."
    )


def signed(error: Figure) -> str:
    """Return `+2.1 % [-0.3 %, +4.0 %]`."""
    return figure(error, "+z.1%")


def drift_sentence(policy: PredictedPolicy) -> str:
    """Return what the drafter's acceptance did as the policy was updated."""
    drift = policy.fit.drift
    if drift is None:
        return f"{policy.policy}: no drift is fitted, since {policy.fit.no_drift_because}."
    seen = {
        "falls": "acceptance falls as the policy is updated",
        "rises": "acceptance rises as the policy is updated",
        "none visible": "no drift of acceptance is visible, and none is simulated",
    }[drift.verdict]
    per_update = f"exponent {figure(drift.per_update, '+.4f')} an update, from {drift.measured_on}"
    words = f"{policy.policy}: {seen} ({per_update})"
    words += entropy_words(drift.entropy)
    if drift.recovery_tokens is None:
        return f"{words}."
    bound = "" if drift.recovery_resolved else "no fewer than "
    return (
        f"{words}; training shrinks the lag to 1/e in {bound}{figure(drift.recovery_tokens, ',.0f')} tokens, "
        f"from an exponent of {figure(drift.initial_exponent, '.3f')} at the start."
    )


def entropy_words(law: EntropyLaw | None) -> str:
    """Return what follows a statement on drift: how the exponent goes with entropy; empty if unknown."""
    if law is None:
        return ""
    return (
        f"; between its steps the exponent goes as entropy to the {figure(law.elasticity, '.2f')} "
        f"({law.lowest_nats:.3f} to {law.highest_nats:.3f} nats a token, {law.explained:.0%} of its variance)"
    )


def figure(value: Figure, form: str) -> str:
    """Return `0.0123 [0.0100, 0.0150]`."""
    words = f"{value.value:{form}}"
    if value.interval is None:
        return words
    low, high = value.interval
    return f"{words} [{low:{form}}, {high:{form}}]"
