"""Designs of a cluster under a budget of GPUs, and the configuration that each stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tlt.sim.config import Config, resolve
from tlt.sim.defaults import AUTO, ROOFLINE, SPREADS, TREES, source_of, with_kind
from tlt.sim.model.phases import ON_TRAINERS, PhaseConfig
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.calibration import Calibration, load
from tlt.traces.catalogue.gpus import gpu_spec, is_known_gpu
from tlt.traces.common.settings import merge
from tlt.traces.lengths.schema import Trace
from tltsched.errors import InputError
from tltsched.written.policy_name import PolicyName


class Design(msgspec.Struct, frozen=True, order=True):
    """One cluster and how it is run."""

    gpu: str
    tp: int
    engines: int
    schedule: str
    policy: str
    groups: int = 1  # of tp GPUs in an engine: hardware.pp x hardware.attention_dp

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return self.tp * self.groups * self.engines

    @property
    def hardware(self) -> str:
        """Return the part that step times depend on."""
        return f"{self.gpu} TP{self.tp}" + (f"x{self.groups}" if self.groups > 1 else "")

    @property
    def run(self) -> str:
        """Return policy and schedule as `--policies` takes them."""
        return str(PolicyName(self.policy, self.schedule))

    def __str__(self) -> str:
        return f"{self.run} on {self.engines} x {self.hardware}"


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """What the search chooses from. `engines` empty: as many as the budget allows."""

    gpus_budget: int
    gpus: tuple[str, ...]
    tp: tuple[int, ...]
    engines: tuple[int, ...]
    schedules: tuple[str, ...]
    policies: tuple[str, ...]
    only_on_policy: bool = False
    groups: int = 1

    def designs(self) -> list[Design]:
        """Return every design, those that break the budget included; raises InputError for unknown GPUs."""
        designs = []
        for gpu in self.gpus:
            gpu_spec(gpu, "--gpu")
            for tp in self.tp:
                for engines in self.engines or (max(self.gpus_budget // (tp * self.groups), 1),):
                    designs += [
                        Design(gpu, tp, engines, schedule, policy, self.groups)
                        for schedule in self.schedules
                        for policy in self.policies
                    ]
        return designs


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A design that can be simulated."""

    design: Design
    simulation: Simulation
    on_policy: str

    @property
    def config(self) -> Config:
        """The configuration that the design stands for."""
        return self.simulation.config

    @property
    def calibration(self) -> Calibration | None:
        """Where the step times come from; None: a roofline."""
        return self.simulation.calibration

    @property
    def provenance(self) -> str:
        """Return whether the step times are measured, published or assumed."""
        return "assumed" if self.calibration is None else self.calibration.provenance


def candidates(
    settings: dict[str, Any], space: Space, trace: Trace
) -> tuple[list[Candidate], dict[Design, str]]:
    """Resolve and check every design on the same lengths, once.

    Returns those that can run, and for every other one the reason why not.
    """
    settings = with_kind(settings, space.policies)
    runnable, left_out = [], {}
    sources: dict[str, str] = {}
    for design in space.designs():
        if design.gpus > space.gpus_budget:
            left_out[design] = f"{design.gpus} GPUs are more than the budget of {space.gpus_budget}"
            continue
        if design.hardware not in sources:
            sources[design.hardware] = cost_source(settings, design)
        try:
            config = resolve(_settings(settings, design, sources[design.hardware]), design.run)
            simulation = Simulation(config, trace)
        except InputError as error:
            left_out[design] = f"{error.field}: got {error.got}, needs {error.allowed}"
            continue
        if config.cluster.knows_lengths():
            left_out[design] = "it places by lengths known in advance: nobody can run it"
            continue
        on_policy = config.cluster.schedule_spec().on_policy
        if space.only_on_policy and on_policy != "yes":
            left_out[design] = f"not on-policy ({on_policy}), and --on-policy was asked for"
            continue
        runnable.append(Candidate(design=design, simulation=simulation, on_policy=on_policy))
    return runnable, left_out


def cost_source(settings: Mapping[str, Any], design: Design) -> str:
    """Return the calibration of this model, GPU and TP: the configured one, the latest shipped one, or none.

    Without one the step times are those of a roofline, which are assumed.
    """
    config = Config()
    model = settings.get("hardware", {}).get("model", config.hardware.model)
    configured = str(settings.get("cost", {}).get("source", AUTO))
    if configured not in (AUTO, ROOFLINE) and load(configured).is_of(model, design.gpu, design.tp):
        return configured
    trees = settings.get("acceptance", {}).get("kind", config.acceptance.kind) == TREES
    spread = any(settings.get("hardware", {}).get(field, 1) != 1 for field in SPREADS)
    return source_of(AUTO, model, design.gpu, design.tp, trees=trees, spread=spread)


def _settings(settings: dict[str, Any], design: Design, source: str) -> dict[str, Any]:
    hardware = {"gpu": design.gpu, "tp": design.tp, "gpus": design.gpus}
    cost: dict[str, Any] = {"source": source}
    configured, default = settings.get("hardware", {}), Config().hardware
    timed_on = (configured.get("gpu", default.gpu), configured.get("tp", default.tp))
    if timed_on != (design.gpu, design.tp):  # what was timed holds for the hardware that is configured
        cost["known"] = {"plain_step_s": None, "draft_step_s": None}
    return merge(settings, {"hardware": hardware, "cost": cost, "phases": _given_phases(settings, design)})


def _given_phases(settings: dict[str, Any], design: Design) -> dict[str, Any]:
    """Return given seconds of log-probabilities and update for the GPUs of a design.

    They are of the configured cluster, and taken to need the same work on another: as many operations.
    """
    phases, hardware = settings.get("phases", {}), Config().hardware
    configured = settings.get("hardware", {})
    gpu, gpus = configured.get("gpu", hardware.gpu), configured.get("gpus", hardware.gpus)
    if (gpu, gpus) == (design.gpu, design.gpus) or not is_known_gpu(gpu):
        return {}
    work = gpus * gpu_spec(gpu).bf16_flops / (design.gpus * gpu_spec(design.gpu).bf16_flops)
    longer = work ** phases.get("trainer_scaling", PhaseConfig().trainer_scaling)
    names = [f"{name}_s" for name in ON_TRAINERS if phases.get(f"{name}_s") is not None]
    return {name: phases[name] * longer for name in names}
