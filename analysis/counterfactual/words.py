"""A counterfactual in sentences: how well the model reproduces the run, and what would have paid."""

from __future__ import annotations

from tlt.analysis.counterfactual.figures import Answer, PolicyAnswer
from tlt.analysis.drawing.estimates import number
from tlt.analysis.drawing.regrets import regret_sentences
from tlt.traces.common.intervals import Estimate
from tlt.traces.results.counterfactual import Counterfactual
from tlt.traces.results.predicted_training import figure, signed


def observed_sentence(case: Counterfactual) -> str:
    """Say what was read."""
    facts, steps = case.lengths, len(case.steps)
    words = (
        f"Observed under {case.policy}: {_count(steps, 'step')}, {facts.responses:,} responses to "
        f"{facts.prompts:,} prompts; tokens of a response: mean {facts.mean:,.0f}, median "
        f"{facts.median:,.0f}, p90 {facts.p90:,.0f}, p99 {facts.p99:,.0f}, longest {facts.longest:,} "
        f"({facts.truncated:,} cut)."
    )
    if not case.times:
        return f"{words} The log has no times."
    times = ", ".join(f"{time.name} {number(time.mean_s)} s" for time in case.times)
    return f"{words} Mean times of a step, {case.times_source}: {times}."


def reproduction_sentence(case: Counterfactual) -> str:
    """Say how far the model is from the log."""
    fit = case.fit
    if fit is None:
        return (
            "Reproduction: not checked, since the log has no rollout seconds. All that follows is modelled, "
            f"with step times {case.cost_source}."
        )
    scale = f"x {figure(fit.scale, '.3f')}"
    if case.needed:
        return (
            f"Reproduction: {_timed(case)} take {fit.scale.value:.3g} times as long as the model says of "
            f"{_made_of(case)}. The log is too far from the model, or from itself."
        )
    if case.logged("gen") is None:
        return (
            "Reproduction: not checked, since the log times steps and not their rollouts. "
            f"{_fixed(fit.fixed_s)} of a step beside its logged phases may be something else than decoding."
        )
    scale += _beside(case)
    if not fit.errors:
        return (
            f"Reproduction: all step times are taken {scale}, which makes the modelled rollouts as long as "
            "the logged ones. No step is left to judge that by."
        )
    errors = ", ".join(f"{signed(error.error)} in {error.quantity}" for error in fit.errors)
    assert fit.fitted_scale is not None, "there are errors"
    return (
        f"Reproduction of {case.policy}: {errors}, over {_count(len(fit.judged_steps), 'further step')} "
        "(modelled less logged; 95 % intervals over steps). One factor on all step times was "
        f"fitted to the {len(fit.fitted_steps)} before: x {figure(fit.fitted_scale, '.3f')}. Below it is "
        f"that of all steps, {scale}."
    )


def _timed(case: Counterfactual) -> str:
    return "logged steps, less their phases," if case.logged("gen") is None else "logged rollouts"


def _made_of(case: Counterfactual) -> str:
    """Say what a logged rollout is taken to be made of."""
    fit = case.fit
    assert fit is not None, "it was fitted"
    words = (
        "these responses" if fit.generations == 1 else f"{fit.generations:.3g} generations of these responses"
    )
    return words if fit.fixed_s[1] == 0 else f"{words}, {_fixed(fit.fixed_s)} of waiting left out"


def _beside(case: Counterfactual) -> str:
    """Say what a logged rollout holds beside one generation of its responses; empty: nothing."""
    fit = case.fit
    assert fit is not None, "it was fitted"
    parts = [f"{fit.generations:.3g} generations a step"] if fit.generations != 1 else []
    parts += [f"beside {_fixed(fit.fixed_s)} in which nothing is generated"] if fit.fixed_s[1] > 0 else []
    return f" ({', '.join(parts)})" if parts else ""


def _fixed(fixed_s: tuple[float, float]) -> str:
    low, high = (number(each) for each in fixed_s)
    return f"{low} s" if low == high else f"{low} to {high} s"


def answer_sentences(answer: Answer) -> list[str]:
    """Say what would have been fastest, what it saves and costs, what the choice may lose, and its ties."""
    policies = {policy.policy: policy for policy in answer.policies}
    best, base = policies[answer.best], answer.policies[0]
    if best is base:
        stay = f"Stay with {base.policy}: no other policy that is ranked is faster in the model."
        return [stay, *_regrets(answer)]
    found = [_gain(best, base, answer)]
    kept = [policy for policy in answer.policies if policy.rank and _keeps_all(policy) and policy is not base]
    if not _keeps_all(best):
        found.append(_costs(best))
        if kept:
            plain = min(kept, key=lambda policy: policy.step_s)
            found.append(
                f"Of what keeps order and policy, {plain.policy} is the fastest: {_speedup(plain.speedup)}."
            )
    return [*found, *_regrets(answer)]


def batch_sentences(answer: Answer) -> list[str]:
    """Say of each policy that trains on other responses how it is counted."""
    found = []
    for policy in answer.policies:
        if policy.keeps_order:
            continue
        words = (
            f"{policy.policy} trains on other responses than observed: its rollouts are counted "
            f"{policy.token_factor:.2f} times as long, so that all policies train on as many tokens."
        )
        if policy.left_behind:
            words += f" At its end {policy.left_behind:,} responses are under way or put off"
            words += ": too many to rank it, give more steps." if policy.unsettled else "."
        found.append(words)
    return found


def limit_sentence(case: Counterfactual, answer: Answer) -> str:
    """Say how far anything could go."""
    parts = [f"{each.speedup:.2f}x ({each.words})" for each in answer.ceilings]
    words = "Bounds, modelled: " + ", ".join(parts) + "." if parts else ""
    knowing = [f"{each.speedup.value:.2f}x ({each.policy})" for each in answer.policies if each.clairvoyant]
    if knowing:
        words += f" Schedules that know lengths in advance, which nobody can run: {', '.join(knowing)}."
    amdahl = case.amdahl()
    if amdahl is not None:
        share, ceiling = amdahl
        words += (
            f" Logged: rollouts are {share:.1%} of a step, so that no rollout whatever makes it more than "
            f"{ceiling:.2f}x as fast (Amdahl)."
        )
    return words.strip()


def _gain(best: PolicyAnswer, base: PolicyAnswer, answer: Answer) -> str:
    sure = best.speedup.above(1.0)
    money = "" if best.saved_usd is None else f", {_amount(best.saved_usd, '{:,.2f}')} USD"
    saved = _amount(best.saved_gpu_hours, "{:,.3g}")
    words = (
        f"{best.policy} is the fastest in the model: {_speedup(best.speedup)} over {base.policy}; in "
        f"{_count(answer.steps, 'step')} it saves {saved} GPU-hours{money}."
    )
    return words if sure else f"{words} The interval does not lie above 1: no gain is claimed."


def _costs(policy: PolicyAnswer) -> str:
    parts = []
    if policy.on_policy != "yes":
        parts.append(
            f"trains on responses that are {policy.staleness_mean:.2f} policy updates old in the mean and "
            f"{policy.staleness_max} at most"
        )
    if not policy.keeps_order:
        parts.append("changes the order of samples")
    if policy.wasted_share >= 0.001:
        parts.append(f"throws {policy.wasted_share:.1%} of the tokens away")
    return f"It {', and '.join(parts)}." if parts else ""


def _regrets(answer: Answer) -> list[str]:
    return [] if answer.regrets is None else regret_sentences(answer.regrets)


def _keeps_all(policy: PolicyAnswer) -> bool:
    return policy.on_policy == "yes" and policy.keeps_order and not policy.clairvoyant


def _speedup(estimate: Estimate) -> str:
    if estimate.interval is None:
        return f"{estimate.value:.2f}x (no interval: {estimate.reason})"
    low, high = estimate.interval
    return f"{estimate.value:.2f}x [{low:.2f}, {high:.2f}]"


def _amount(estimate: Estimate, form: str) -> str:
    if estimate.interval is None:
        return form.format(estimate.value)
    low, high = (form.format(end) for end in estimate.interval)
    return f"{form.format(estimate.value)} [{low}, {high}]"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
