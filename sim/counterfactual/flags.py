"""What must be read with the figures of a counterfactual."""

from __future__ import annotations

from tlt.sim.counterfactual.fitted import Fitted
from tlt.sim.counterfactual.observed_run import Observed
from tlt.sim.simulation import Simulation
from tlt.traces.common.intervals import few_words
from tlt.traces.lengths.schema import KIND_LABELS
from tlt.traces.results.counterfactual import Counterfactual

POOR = 0.1  # error of the reproduction, as a share
ODD_SCALE = (1 / 1.5, 1.5)
MOST_UNEXPLAINED = 0.5  # of a step
FEW_JUDGED = 5


def flags_of(answer: Counterfactual, observed: Observed, reordering: bool) -> tuple[str, ...]:
    """Return sentences; `reordering`: a policy has a schedule that changes the order of samples."""
    return (*_fit_flags(answer), *_length_flags(answer, observed, reordering), *_acceptance_flags(answer))


def _fit_flags(answer: Counterfactual) -> list[str]:
    fit = answer.fit
    if fit is None:
        return ["The log has no seconds of rollouts: nothing can be checked, and every figure is modelled."]
    flags = []
    if answer.logged("gen") is None:
        flags.append(
            "The log times steps and not their rollouts: intervals hold rollouts of half to twice what the "
            "model says, and nothing can be checked."
        )
    elif not fit.fitted_steps:
        flags.append("Times of the log match no single steps: means are fitted, so nothing is left to check.")
    elif not fit.judged_steps:
        flags.append("The log times one step: the factor is fitted to it, so nothing is left to check.")
    elif len(fit.judged_steps) < FEW_JUDGED:
        flags.append(f"{few_words(len(fit.judged_steps), 'judged step').capitalize()}.")
    flags += [
        f"The reproduction misses {error.quantity} by {error.error.value:+.1%}: gains within that of 1 mean "
        "little."
        for error in fit.errors
        if abs(error.error.value) > POOR
    ]
    low, high = ODD_SCALE
    if not low <= fit.scale.value <= high:
        flags.append(
            f"Step times had to be taken {fit.scale.value:.2f} times as long to fit the log: model, GPU, "
            "workers or engine may not be what ran."
        )
    return flags


def needed_of(observed: Observed, simulation: Simulation, fitted: Fitted | None) -> tuple[str, ...]:
    """Return what a ranking would need; empty where a reading of the log is near the model."""
    if fitted is None or fitted.readings.all or observed.logged is None:
        return ()
    unexplained = observed.logged.unexplained()
    if unexplained > MOST_UNEXPLAINED:
        return (
            f"what {unexplained:.0%} of a step is: no key of the log names it, though it times the training "
            "(or a time is in another unit than its name says)",
        )
    misfit, hardware = fitted.readings.misfit, simulation.config.hardware
    rows = observed.trace.rows
    responses = len(rows) / rows["step"].nunique()
    given = f"{hardware.gpus} x {hardware.gpu}, tensor parallelism {hardware.tp}, {hardware.model}"
    needed = [f"that this is what rolled out: {given} (--gpus, --tp, hardware.gpu, hardware.model)"]
    if simulation.calibration is None:
        needed.append("step times of that engine instead of a roofline (tlt real calibrate, cost.source)")
    if misfit > 1:
        needed += [
            "the seconds of the rollouts in which nothing is generated (tools, scoring, loading, a wait), "
            "logged under a key that the framework's page lists",
            f"all responses that were generated, if some were filtered out: {responses:,.0f} a step are read",
            "engine.max_running and engine.kv_tokens, if requests queued",
        ]
    else:
        needed += [
            f"the responses that were generated meanwhile: {responses:,.0f} a step are read (--responses)",
            "a log whose rollouts are a part of the step: of an asynchronous run they are a trainer's wait",
            "the policy that the run was under, if it drafted (--observed)",
        ]
    return tuple(needed)


def _length_flags(answer: Counterfactual, observed: Observed, reordering: bool) -> list[str]:
    rows, facts = observed.trace.rows, answer.lengths
    flags = []
    if observed.trace.origin.kind in ("serving", "generated"):
        flags.append(f"Lengths are {KIND_LABELS[observed.trace.origin.kind]}.")
    if len(answer.steps) == 1:
        flags.append(
            "The run has one step. Others are drawn from its prompts with replacement, and intervals come "
            "from these: they vary its longest responses too little."
        )
    why = observed.why_order_is_kept()
    if why:
        flags.append(f"{why[:1].upper()}{why[1:]}: schedules that change the order of samples are left out.")
    elif reordering and not rows.duplicated(["step", "prompt_id"]).any():
        flags.append("No prompt groups are known: schedules count each response as a prompt of its own.")
    if facts.truncated:
        flags.append(
            f"{facts.truncated / facts.responses:.1%} of the responses were cut: without a cap they are "
            f"longer."
        )
    flags += [f"{note[:1].upper()}{note[1:]}." for note in observed.notes if note]
    return flags


def _acceptance_flags(answer: Counterfactual) -> list[str]:
    source = answer.acceptance_source
    if source.startswith("assumed"):
        return [
            "Acceptance is assumed: measure it (tlt real drafter measure) before you trust a policy that "
            "drafts; acceptance.measured names where it was."
        ]
    if source.startswith("published"):
        return ["Acceptance is published, of another model and drafter: it is assumed to hold here."]
    return []
