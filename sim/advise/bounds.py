"""How far any schedule could go: a lower bound on every step of a workload whose lengths are known.

No rollout ends before its longest request has been prefilled and generated on an engine of its own, nor
before the workers have done all the work at the cheapest price: a token of a request in a batch costs no
less than the smallest share of an engine step, F(b) / b over all batches b, and what reading its own
context takes; a token of a prompt what it adds at least to an engine step that decodes anyway. Both hold
for every placement, order and number of moves. Groups never part, and where the prefix cache is on a prompt
is computed once for all of its responses, so the bound is below what can be reached.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tlt.sim.acceptance.process import Acceptance
from tlt.sim.advise.best_draft import candidate_draft_configs
from tlt.sim.advise.least_work import LeastWork
from tlt.sim.config import Config
from tlt.sim.model.drafter import SMALLEST_EXPONENT
from tlt.sim.model.phases import Phases, phases_of
from tlt.sim.model.requests import StepRequests
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.tables import StepCosts
from tlt.sim.workload import steps_of
from tlt.traces.common.arrays import Floats, Ints
from tlt.traces.results.bounds import BOUNDS, Bounds, StepBound
from tlt.traces.runs.runfolder import write_json
from tlt.traces.sessions.schema import Sessions
from tltsched.draft_config import OFF, DraftConfig


class RolloutBound(msgspec.Struct, frozen=True):
    """Seconds that no schedule goes below, and why: the larger of the two."""

    longest_s: float  # the longest request alone
    work_s: float  # all work, spread evenly over the workers

    @property
    def seconds(self) -> float:
        """Return the bound."""
        return max(self.longest_s, self.work_s)


def clairvoyant_bound(
    requests: StepRequests,
    costs: StepCosts,
    workers: int,
    draft_configs: tuple[DraftConfig, ...] = (OFF,),
    acceptance: Acceptance | None = None,
    drafter_exponent: float = 1.0,
    *,
    prefix_caching: bool = True,
    sessions: Sessions | None = None,
) -> RolloutBound:
    """Return the bound of one rollout in which every token may be generated under the cheapest
    of `draft_configs`.

    With drafts a request takes the engine steps that requests of its length take in the mean, so the bound is
    one of expectations: a step whose requests happen to be easy may go below. `acceptance` may be None if
    none drafts. Turns of `sessions` follow one another at once: tools take no time.
    """
    work = LeastWork.of(requests, sessions, costs.chunk_tokens)
    tokens = work.tokens
    alone_s, shared_s, context_s = [], [], []  # of all tokens and all context of each request, [n] each
    for draft_config in draft_configs:
        price = costs.of(draft_config)
        engine_steps = np.ones(len(tokens))  # a token
        if draft_config.depth:
            assert acceptance is not None, "drafts need an acceptance law"
            engine_steps = acceptance.engine_steps_per_token(
                draft_config, requests.response_tokens, drafter_exponent
            )
        fixed_s = price.fixed_s[1:]
        alone_s.append(tokens * float(fixed_s[0]) * engine_steps)
        shared_s.append(tokens * float((fixed_s / np.arange(1, len(fixed_s) + 1)).min()) * engine_steps)
        context_s.append(work.contexts * price.context_s_per_token * engine_steps)
    read_s = np.min(context_s, axis=0)
    first_s, added_s = _prefill_s(work, requests.group, costs, prefix_caching)
    return RolloutBound(
        longest_s=float((first_s + np.min(alone_s, axis=0) + read_s).max(initial=0.0)),
        work_s=(added_s + float((np.min(shared_s, axis=0) + read_s).sum())) / workers,
    )


def _prefill_s(work: LeastWork, group: Ints, costs: StepCosts, prefix_caching: bool) -> tuple[Floats, float]:
    """Return the seconds that each request is prefilled, [n], and those of all prompts together, at least.

    Nobody decodes before its prompt was computed, for itself or for its group. Beside a batch that decodes a
    prompt's token adds the least that any token adds to an engine step.
    """
    law = costs.coefficients
    first_s = np.zeros(len(group))
    for part in (work.shared, work.own):
        first_s += part.chunks * law.prefill_chunk_s + part.tokens * law.prefill_s_per_token
        first_s += part.pairs * law.prefill_s_per_pair
    token_s = law.prefill_s_per_token
    if costs.mixes:
        token_s = min(token_s, law.mixed_token_share * min(*law.slopes_s_per_token, token_s))
    counted = np.unique(group, return_index=True)[1] if prefix_caching else slice(None)
    shared_s, own_s = (
        part.tokens * token_s + part.pairs * law.prefill_s_per_pair for part in (work.shared, work.own)
    )
    return first_s, float(shared_s[counted].sum() + own_s.sum())


def bounds_of(simulation: Simulation) -> Bounds:
    """Return the bounds of all steps on the cluster of a simulation; its policy does not matter.

    Drafts out of history have no bound: what they cost depends on what was generated before. The whole
    cluster rolls out and then takes part in the phases.
    """
    config, engine = simulation.config, simulation.config.engine
    plain = StepCosts(
        simulation.coefficients, "not_configured", engine.max_running, engine.chunk_tokens, 0,
        simulation.coefficients.eager_s,
    )  # fmt: skip
    draft_configs = () if config.drafter.model_free else _covered(simulation)
    acceptance = simulation.acceptance
    phases = phases_of(
        config.phases, simulation.shape, simulation.gpu, config.hardware.gpus, config.hardware.gpus
    )
    rows = []
    for number, step in enumerate(steps_of(simulation.trace, simulation.sessions)):
        given: dict[str, Any] = {"prefix_caching": engine.prefix_caching, "sessions": simulation.sessions}
        bound = clairvoyant_bound(step, plain, config.workers, **given)
        drafted = None
        if draft_configs:
            exponent = _best_exponent(config, number)
            allowed = (OFF, *draft_configs)
            drafted = clairvoyant_bound(step, plain, config.workers, allowed, acceptance, exponent, **given)
        rows.append(_row(number, step, config, phases, bound, drafted))
    return Bounds(workers=config.workers, draft_configs=tuple(map(str, draft_configs)), rows=tuple(rows))


def write_bounds(baseline: Simulation, out: Path) -> None:
    """Write bounds.json of a comparison with this baseline."""
    write_json(out / BOUNDS, bounds_of(baseline))


def _covered(simulation: Simulation) -> tuple[DraftConfig, ...]:
    """Return the draft configurations of the advice and of the policy, off left out."""
    own = [draft_config for draft_config in simulation.policy.draft_configs if draft_config.depth]
    return tuple(dict.fromkeys((*candidate_draft_configs(simulation.config), *own)))


def _best_exponent(config: Config, step: int) -> float:
    """Return the smallest exponent of acceptance that any drafter can have in a step."""
    drafter = config.drafter
    drifted = drafter.initial_exponent + min(drafter.drift_per_update * step, 0.0)
    # Training takes a drafter back to 1 at best, where drift has not taken it below.
    exponent = min(drifted, 1.0)
    return max(exponent, SMALLEST_EXPONENT)


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
        # fsum: the same last digit in every version of Python
        phases_s=math.fsum(seconds.values()),
        compute_s=math.fsum(
            seconds[phase]
            for phase, fixed_s in given.items()
            if fixed_s is None and phase in seconds and phase not in config.phases.by_step_s
        ),
        longest_s=bound.longest_s,
        work_s=bound.work_s,
        drafted_longest_s=None if drafted is None else drafted.longest_s,
        drafted_work_s=None if drafted is None else drafted.work_s,
    )
