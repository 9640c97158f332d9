"""What a choice of design is unsure of, and how each design's time answers to it.

Every input is a number that is 0 at the fit. A design's time is taken to be linear in each: the response is
simulated once, at PROBE of the input, on the first few RL steps. The spreads of step times come from their
calibration; all others are assumed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from tlt.sim.advise.sensitivity import PROBE, probed
from tlt.sim.advise.what_if import ACCEPTANCE_SD, with_exponent
from tlt.sim.config import Config
from tlt.sim.search.space import Candidate
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.errors import FACTORS
from tlt.traces.common.arrays import Floats
from tlt.traces.lengths.schema import Trace

PROBE_DRIFT = 0.01  # exponent a policy update
DRIFT_SD = 0.01  # assumed: exponent a policy update
REWARD_SD = 0.5  # assumed: of the logarithm
PHASES_SD = 0.2  # assumed: of the logarithm, as of a roofline
LENGTHS = "lengths"


class Uncertain(msgspec.Struct, frozen=True, kw_only=True):
    """One input: its parts move on their own but are measured together."""

    name: str
    spread: str
    command: str
    sd: float | tuple[float, ...]  # of all parts, or of each
    parts: tuple[str, ...]
    means: float | tuple[float, ...] = 0.0  # not 0: the fit is known to be off
    log: bool = True  # whether exp(sd x normal) - 1 is drawn, or sd x normal
    hardware: str = ""  # the designs that it concerns; empty: all

    def draw(self, draws: int, rng: np.random.Generator) -> Floats:
        """Return values of the parts, [draws, parts]."""
        normal = np.array(self.means) + np.array(self.sd) * rng.standard_normal((draws, len(self.parts)))
        return np.expm1(normal) if self.log else normal


def inputs_of(finalists: list[Candidate]) -> list[Uncertain]:
    """Return the uncertain inputs of a choice among some designs, lengths left out."""
    step_times = []
    hardware = {each.design.hardware: each for each in finalists}
    for name, each in hardware.items():
        error = each.simulation.cost_error()
        step_times.append(
            Uncertain(
                name=f"step times of {each.config.hardware.model} on {name}",
                spread=f"{error.text()}, {error.source}",
                command=f"tlt real calibrate --set model.name={each.config.hardware.model} "
                f"--set engine.device=cuda --out calibration (on {each.design.tp} x {each.design.gpu})",
                sd=error.sds,
                means=error.biases,
                parts=FACTORS,
                hardware=name,
            )
        )
    kind = finalists[0].config.acceptance.kind
    law = "published" if kind == "published_tree" else kind
    return [
        *step_times,
        Uncertain(
            name="acceptance", spread=f"exponent {ACCEPTANCE_SD:.0%}, assumed ({law})", sd=ACCEPTANCE_SD,
            command="tlt real drafter measure --out acceptance", parts=("acceptance",),
        ),
        Uncertain(
            name="drift of the drafter", spread=f"exponent {DRIFT_SD:g} an update, assumed", sd=DRIFT_SD,
            command="tlt real train --out run && tlt sim validate-training run --calibration NAME --out fit "
            "--save-drift drift.json",
            parts=("drift",), log=False,
        ),
        Uncertain(
            name="reward time", spread=f"{REWARD_SD:.0%}, assumed", sd=REWARD_SD, parts=("reward",),
            command="tlt trace import LOGS --phases phases.json --out lengths.parquet",
        ),
        Uncertain(
            name="log-probabilities and update", spread=f"{PHASES_SD:.0%}, assumed", sd=PHASES_SD,
            command="tlt trace import LOGS --phases phases.json --out lengths.parquet", parts=("phases",),
        ),
    ]  # fmt: skip


def probes(candidate: Candidate, inputs: list[Uncertain], trace: Trace) -> dict[tuple[str, str], Simulation]:
    """Return what to simulate for the answers of one design, by (input, part). The others answer 0."""
    simulation = candidate.simulation.on(trace)
    probes = {}
    for each in inputs:
        if each.hardware and each.hardware != candidate.design.hardware:
            continue
        for part in each.parts:
            if part in FACTORS:
                probes[each.name, part] = probed(simulation, part)
            else:
                probes[each.name, part] = simulation.changed(_CHANGES[part](simulation.config))
    return probes


def _less_accepted(config: Config) -> Config:
    return with_exponent(config, 1.0 + PROBE)


def _drifting(config: Config) -> Config:
    drift = config.drafter.drift_per_update + PROBE_DRIFT
    return msgspec.structs.replace(
        config, drafter=msgspec.structs.replace(config.drafter, drift_per_update=drift)
    )


def _slower_reward(config: Config) -> Config:
    phases = config.phases
    slower = msgspec.structs.replace(
        phases,
        reward_s=phases.reward_s * (1.0 + PROBE),
        reward_s_per_response=phases.reward_s_per_response * (1.0 + PROBE),
    )
    return msgspec.structs.replace(config, phases=slower)


def _slower_phases(config: Config) -> Config:
    phases, factor = config.phases, 1.0 + PROBE
    slower = msgspec.structs.replace(
        phases,
        logprob_s=None if phases.logprob_s is None else phases.logprob_s * factor,
        policy_update_s=None if phases.policy_update_s is None else phases.policy_update_s * factor,
        training_efficiency=phases.training_efficiency / factor,
        forward_efficiency=phases.forward_efficiency / factor,
    )
    return msgspec.structs.replace(config, phases=slower)


_CHANGES: dict[str, Callable[[Config], Config]] = {
    "acceptance": _less_accepted,
    "drift": _drifting,
    "reward": _slower_reward,
    "phases": _slower_phases,
}
# What a part is moved by in its probe.
MOVED = dict.fromkeys((*FACTORS, "acceptance", "reward", "phases"), PROBE) | {"drift": PROBE_DRIFT}
