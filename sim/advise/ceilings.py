"""The bounds of a comparison: what no schedule and no policy could beat, for each step of its baseline."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tlt.sim.advise.advice import candidate_draft_configs
from tlt.sim.advise.bounds import RolloutBound, clairvoyant_bound
from tlt.sim.config import Config
from tlt.sim.model.acceptance import Acceptance
from tlt.sim.model.drafter import SMALLEST_EXPONENT
from tlt.sim.model.phases import Phases, phases_of
from tlt.sim.model.requests import StepRequests
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.tables import StepCosts
from tlt.sim.workload import steps_of
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.bounds import BOUNDS, Bounds, StepBound
from tlt.traces.runs.runfolder import write_json
from tltsched.draft_config import OFF, DraftConfig

# With requests of unequal acceptance all are taken to be as good as the best in a thousand.
BEST_REQUEST_SDS = 3.09


def bounds_of(config: Config, trace: Trace) -> Bounds:
    """Return the bounds of all steps of `trace` on the cluster of `config`; its policy does not matter.

    Drafts out of history have no bound: what they cost depends on what was generated before. The whole
    cluster rolls out and then takes part in the phases.
    """
    simulation = Simulation(config, trace)
    engine = config.engine
    plain = StepCosts(
        simulation.coefficients, "not_configured", engine.max_running, engine.chunk_tokens, 0,
        simulation.coefficients.eager_s,
    )  # fmt: skip
    policies = () if config.drafter.kind == "history" else _covered(simulation)
    acceptance = Acceptance(simulation.law, 0.0)
    phases = phases_of(config.phases, simulation.shape, simulation.gpu, config.hardware.gpus)
    rows = []
    for number, step in enumerate(steps_of(trace)):
        bound = clairvoyant_bound(step, plain, config.workers)
        drafted = None
        if policies:
            exponent = _best_exponent(config, number)
            drafted = clairvoyant_bound(step, plain, config.workers, (OFF, *policies), acceptance, exponent)
        rows.append(_row(number, step, config, phases, bound, drafted))
    return Bounds(workers=config.workers, draft_configs=tuple(map(str, policies)), rows=tuple(rows))


def write_bounds(config: Config, trace: Trace, out: Path) -> None:
    """Write bounds.json of a comparison whose baseline has this configuration."""
    write_json(out / BOUNDS, bounds_of(config, trace))


def _covered(simulation: Simulation) -> tuple[DraftConfig, ...]:
    """Return the drafting policies of the advice and of the policy."""
    own = [policy for policy in simulation.policy.draft_configs if policy.depth]
    return tuple(dict.fromkeys((*candidate_draft_configs(simulation.config), *own)))


def _best_exponent(config: Config, step: int) -> float:
    """Return the smallest exponent of acceptance that any drafter can have in a step."""
    drafter = config.drafter
    drifted = drafter.initial_exponent + min(drafter.drift_per_update * step, 0.0)
    # Training takes a drafter back to 1 at best, where drift has not taken it below.
    exponent = min(drifted, 1.0)
    return max(
        exponent * float(np.exp(-BEST_REQUEST_SDS * config.acceptance.request_spread)), SMALLEST_EXPONENT
    )


def _row(
    number: int,
    step: StepRequests,
    config: Config,
    phases: Phases,
    bound: RolloutBound,
    drafted: RolloutBound | None,
) -> StepBound:
    tokens = int((step.response_tokens + step.prompt_tokens).sum())
    count = len(step.response_tokens)
    given = {"logprob": config.phases.logprob_s, "policy_update": config.phases.policy_update_s}
    seconds = {phase: phases.seconds(phase, count, tokens) for phase in config.cluster.phases}
    return StepBound(
        step=number,
        phases_s=sum(seconds.values()),
        compute_s=sum(
            seconds[phase]
            for phase, fixed_s in given.items()
            if fixed_s is None and phase in seconds and phase not in config.phases.by_step_s
        ),
        longest_s=bound.longest_s,
        work_s=bound.work_s,
        drafted_longest_s=None if drafted is None else drafted.longest_s,
        drafted_work_s=None if drafted is None else drafted.work_s,
    )
