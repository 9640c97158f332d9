"""What-if: each policy at other acceptances and on other numbers of GPUs, over the first RL steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from tlt.sim.advise.sensitivity import first_steps
from tlt.sim.config import Config
from tlt.sim.model.phases import ON_TRAINERS
from tlt.sim.policy_set import PolicySet
from tlt.sim.simulation import Simulation
from tlt.traces.results.what_if import PolicyWhatIf, WhatIf
from tltsched.errors import InputError

ACCEPTANCE_SD = 0.2  # assumed: of the logarithm of the exponent that acceptance carries
EXPONENTS = (0.4, 0.7, 1.0, 1.5, 2.5, 5.0)
GPU_FACTORS = (0.5, 1.0, 2.0)
STEPS = 1


def with_exponent(config: Config, power: float) -> Config:
    """Return a configuration whose survivals are raised to a power: above 1 fewer drafts are accepted."""
    replace = msgspec.structs.replace
    history, law = config.drafter.history, config.acceptance
    older = tuple(survival**power for survival in history.survival_by_position)
    drafter = replace(config.drafter, history=replace(history, survival_by_position=older))
    if law.kind == "published_tree":
        drafter = replace(drafter, initial_exponent=drafter.initial_exponent * power)
    positions = tuple(survival**power for survival in law.survival_by_position)
    acceptance = replace(law, survival_by_position=positions, rate=law.rate**power)
    return replace(config, drafter=drafter, acceptance=acceptance)


def with_gpus(config: Config, gpus: int) -> Config:
    """Return a configuration with other GPUs; given seconds of training take as many operations on them."""
    replace, phases = msgspec.structs.replace, config.phases
    longer = (config.hardware.gpus / gpus) ** phases.trainer_scaling
    given = {
        name: None if seconds is None else seconds * longer
        for name in (f"{each}_s" for each in ON_TRAINERS)
        for seconds in (getattr(phases, name),)
    }
    by_step_s = {
        name: tuple(each * longer for each in seconds) if name in ON_TRAINERS else seconds
        for name, seconds in phases.by_step_s.items()
    }
    return replace(
        config,
        hardware=replace(config.hardware, gpus=gpus),
        phases=replace(phases, by_step_s=by_step_s, **given),
    )


def what_if(policies: PolicySet, progress: Callable[[str], None]) -> WhatIf:
    """Simulate the grid; `progress(policy)` is called once a policy."""
    probe = first_steps(policies.trace, STEPS)
    hardware = policies.baseline.config.hardware
    each = hardware.parallel.gpus
    engines = sorted({max(round(hardware.gpus // each * factor), 1) for factor in GPU_FACTORS})
    gpus = tuple(count * each for count in engines)
    rows = []
    for name, simulation in policies.simulations.items():
        part = simulation.on(probe)
        fit = _s_per_token(part)
        assert fit is not None, "it has been simulated on all steps"
        rows.append(
            PolicyWhatIf(
                policy=name,
                by_acceptance=tuple(_at_exponent(part, power, fit) for power in EXPONENTS),
                by_gpus=tuple(_at_gpus(part, count, fit) for count in gpus),
            )
        )
        progress(name)
    first, error = _first_accepted(policies)
    return WhatIf(
        steps=STEPS,
        exponents=EXPONENTS,
        first_accepted=tuple(first**power for power in EXPONENTS),
        exponent_error=error,
        gpus=gpus,
        policies=tuple(rows),
    )


def _first_accepted(policies: PolicySet) -> tuple[float, float]:
    """Return the chance of the first draft as configured, and the error of the exponent; 1, 0: no drafts."""
    for each in policies.simulations.values():
        for draft in each.policy.draft_configs:
            if draft.depth:
                first = float(np.atleast_1d(each.law.survival(draft))[0])
                known = each.law.source.startswith(("measured", "fitted"))
                return first**each.config.drafter.initial_exponent, 0.0 if known else ACCEPTANCE_SD
    return 1.0, 0.0


def _at_exponent(part: Simulation, power: float, fit: float) -> float | None:
    if power == 1.0 or not part.drafts:
        return 1.0
    found = _s_per_token(part.changed(with_exponent(part.config, power)))
    return None if found is None else found / fit


def _at_gpus(part: Simulation, gpus: int, fit: float) -> float | None:
    if gpus == part.config.hardware.gpus:
        return 1.0
    try:
        found = _s_per_token(part.changed(with_gpus(part.config, gpus)))
    except InputError:  # too few for the schedule
        return None
    return None if found is None else found / fit


def _s_per_token(simulation: Simulation) -> float | None:
    """Return the seconds of RL steps a trained token; None: it cannot run."""
    try:
        cluster = simulation.run()
    except InputError:
        return None
    tokens = sum(row["response_tokens"] for row in cluster.log.schedule_rows)
    seconds = sum(row["end_s"] - row["start_s"] for row in cluster.log.step_rows)
    return seconds / tokens if tokens and math.isfinite(seconds) else None
