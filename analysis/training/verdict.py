"""The answer of a training comparison in words."""

from __future__ import annotations

import numpy as np

from tlt.analysis.drawing.estimates import change, interval_words, more_tokens, number, outside
from tlt.analysis.training.acceptance import FrozenPair
from tlt.analysis.training.facts import PolicyFacts
from tlt.analysis.training.figures import TrainFacts
from tlt.traces.common.intervals import FEW_STEPS, Estimate, few_words


def judge_training(facts: TrainFacts) -> str:
    """Return what the comparison shows, or what stops a conclusion."""
    return " ".join(training_sentences(facts))


def training_sentences(facts: TrainFacts) -> list[str]:
    """Return the answer sentence by sentence, the headline first."""
    stops = [flag.text for flag in facts.flags if flag.stops]
    if stops:
        return [f"No conclusion: {'; '.join(stops)}."]
    baseline = facts.policies[0]
    best = max(facts.policies[1:], key=lambda policy: policy.time.step_speedup.value, default=baseline)
    sentences = [
        _alone(baseline) if best is baseline else _speed(best, baseline, facts.steps),
        _bound(best),
        _reward(best, baseline),
        _drafter(best),
        *(_trained(pair) for pair in facts.against_frozen),
        _idle(best),
        f"{few_words(facts.steps, 'step').capitalize()}." if 2 <= facts.steps < FEW_STEPS else "",
    ]
    return [sentence for sentence in sentences if sentence]


def _trained(pair: FrozenPair) -> str:
    words = (
        f"Training the drafter gets {more_tokens(pair.difference)} accepted than with a frozen one "
        f"({pair.trained} over {pair.frozen}), and RL steps were {interval_words(pair.step_speedup)} as fast"
    )
    if pair.equal_lengths is not None:
        words += f"; at equal lengths a worker's rollout was {interval_words(pair.equal_lengths)} as fast"
    if pair.pace is None or not pair.pace.unlike:
        return f"{words}."
    return (
        f"{words}; but the machine ran {change(pair.pace.slower, 'faster', 'slower')} meanwhile, and with "
        f"engine steps at one pace they are {interval_words(pair.pace.step_speedup)} as fast."
    )


def _alone(policy: PolicyFacts) -> str:
    share = policy.time.rollout_s.value / policy.time.step_s.value
    return (
        f"Under {policy.policy} an RL step takes {interval_words(policy.time.step_s, ' s')}, {share:.1%} of "
        "it rollout. A speedup needs a second policy."
    )


def _speed(best: PolicyFacts, baseline: PolicyFacts, steps: int) -> str:
    whole, rollout = interval_words(best.time.step_speedup), interval_words(best.time.rollout_speedup)
    speeds = f"{whole} end to end and {rollout} in the rollout"
    if best.time.step_speedup.above(1.0):
        return f"{best.policy} trains faster than {baseline.policy}: {speeds}, over {steps} RL steps."
    if best.time.step_speedup.value <= 1.0:
        none = f"No policy was faster than {baseline.policy} over {steps} RL steps."
        return f"{none} {best.policy} is at {speeds}."
    return f"No gain over {baseline.policy} is shown in {steps} RL steps: {best.policy} is at {speeds}."


def _bound(best: PolicyFacts) -> str:
    law = best.amdahl
    if law is None:
        return ""
    words = (
        f"Rollout is {law.rollout_share.value:.1%} of the baseline's step, so Amdahl's law gives "
        f"{law.predicted.value:.2f}x for this rollout"
    )
    if np.isnan(law.ceiling.value):
        return f"{words}."
    return f"{words}, and {law.ceiling.value:.2f}x for one that takes no time."


def _reward(best: PolicyFacts, baseline: PolicyFacts) -> str:
    difference = best.rewards.final_difference
    if difference is None or np.isnan(difference.value):
        return ""
    count = best.rewards.final_steps
    where = "of the last step" if count == 1 else f"over the last {count} steps"
    mine, theirs = best.rewards.final.value, baseline.rewards.final.value
    words = f"The mean reward {where} is {mine:.3f} against {theirs:.3f}"
    if difference.interval is None:
        return f"{words}; whether they differ is unknown ({difference.reason})."
    low, high = difference.interval
    said = "the policies differ" if outside(difference, 0.0) else "no difference is seen"
    return f"{words}: {said} (difference {difference.value:+.3f}, 95 % interval {low:+.3f} to {high:+.3f})."


def _drafter(best: PolicyFacts) -> str:
    if best.acceptance is None:
        return ""
    length, gain = best.acceptance.length, best.acceptance.probe_gain_sampled
    words = f"Its acceptance length is {interval_words(length, '')}, the bonus token counted"
    if best.head is None or np.isnan(gain.value):
        return f"{words}."
    return f"{words}; on the same responses its trained head gets {more_tokens(gain)} than its first."


def _idle(best: PolicyFacts) -> str:
    if best.head is None:
        return ""
    wait = best.wait
    used = (
        f"The drafter and early log-probabilities used {_percent(best.idle.used_share)} of the otherwise "
        "idle GPU time of the rollouts. "
        if best.idle.drafter_gpu_s > 0.0
        else ""
    )
    mean_ms, longest_ms = number(1000 * wait.handover_s.value), number(1000 * wait.handover_max_s)
    return (
        f"{used}Between the last response and the next phase passed {mean_ms} ms a step "
        f"({wait.handover_share.value:.2%} of it), at most {longest_ms} ms."
    )


def _percent(estimate: Estimate) -> str:
    if estimate.interval is None:
        return f"{estimate.value:.1%}"
    low, high = estimate.interval
    return f"{estimate.value:.1%} (95 % interval {low:.1%} to {high:.1%})"
