"""A counterfactual in sentences: how well the model reproduces the run, and what would have paid."""

from __future__ import annotations

from tlt.analysis.drawing.estimates import number
from tlt.traces.common.intervals import Estimate
from tlt.traces.results.answer import Answer, PolicyAnswer
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
    """Return the answer, what it saves and costs, and what of all that keeps order and policy is fastest."""
    best, base = answer.of(answer.best), answer.of(answer.baseline)
    if best is base:
        return [answer.sentence]
    found = [answer.sentence, _saved(best, answer)]
    kept = [policy for policy in answer.policies if policy.rank and _keeps_all(policy) and policy is not base]
    if kept and not _keeps_all(best):
        plain = min(kept, key=lambda policy: policy.rank)
        found.append(
            f"Of what keeps order and policy, {plain.policy} is the fastest: {_speedup(plain.speedup)}."
        )
    return found


def limit_sentence(case: Counterfactual, answer: Answer) -> str:
    """Say how far anything could go."""
    amdahl = case.amdahl()
    if amdahl is None:
        return answer.ceiling
    share, ceiling = amdahl
    logged = (
        f"Logged: rollouts are {share:.1%} of a step, so that no rollout whatever makes it more than "
        f"{ceiling:.2f}x as fast (Amdahl), where training waits for it."
    )
    return f"{answer.ceiling} {logged}".strip()


def _saved(best: PolicyAnswer, answer: Answer) -> str:
    money = "" if best.saved_usd is None else f", {_amount(best.saved_usd, '{:,.2f}')} USD"
    saved = _amount(best.saved_gpu_hours, "{:,.3g}")
    tokens = " and as many trained tokens" if answer.by_token else ""
    return f"In {_count(answer.steps, 'step')}{tokens} {best.policy} saves {saved} GPU-hours{money}."


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
