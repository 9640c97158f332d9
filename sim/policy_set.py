"""Policies under comparison: each resolved once, and checked against the lengths that all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tlt.sim.config import Config, resolve
from tlt.sim.defaults import with_kind
from tlt.sim.simulation import Simulation
from tlt.sim.unused import refuse_unused
from tlt.sim.workload import load_workload
from tlt.traces.lengths.schema import Trace
from tlt.traces.runs.runfolder import run_name
from tltsched.errors import InputError

TREE_POLICIES = ("none", "static:10_8_16", "tlt_released", "tlt", "goodput_trees")
CHAIN_POLICIES = ("none", "static:2", "static:4", "tlt_chains", "goodput")


@dataclass(frozen=True)
class PolicySet:
    """Simulations on the same lengths, by the name of their policy; the first is the baseline."""

    simulations: dict[str, Simulation]

    @property
    def names(self) -> list[str]:
        """The policies as they were named, in order."""
        return list(self.simulations)

    @property
    def baseline(self) -> Simulation:
        """The simulation of the first policy."""
        return next(iter(self.simulations.values()))

    @property
    def trace(self) -> Trace:
        """The lengths that all of them roll out."""
        return self.baseline.trace

    def scaled(self, factor: float) -> Self:
        """Return the same policies with all step times times a factor."""
        return type(self)({name: each.scaled(factor) for name, each in self.simulations.items()})


def policy_set(settings: dict[str, Any], names: Sequence[str] | None = None) -> PolicySet:
    """Resolve the policies (None: those that suit the acceptance law), and check each against the workload.

    Raises InputError.
    """
    configs = resolve_policies(settings, names)
    first = next(iter(configs.values()))
    return checked(configs, load_workload(first.workload, first.run.seed))


def checked(configs: Mapping[str, Config], trace: Trace) -> PolicySet:
    """Check every policy against the same lengths; raises InputError."""
    return PolicySet({name: Simulation(config, trace) for name, config in configs.items()})


def resolve_policies(settings: dict[str, Any], names: Sequence[str] | None = None) -> dict[str, Config]:
    """Return the configuration of each policy; raises InputError unless there is one or more, each once."""
    settings = with_kind(settings, [*(names or ()), settings.get("policy")])
    if names is None:
        plain = resolve(settings, TREE_POLICIES[0])
        refuse_unused(settings, plain)
        return {name: resolve(settings, name) if name != TREE_POLICIES[0] else plain
                for name in default_policies(plain)}  # fmt: skip
    check_names(names)
    configs = {name: resolve(settings, name) for name in names}
    refuse_unused(settings, *configs.values())
    return configs


def default_policies(config: Config) -> tuple[str, ...]:
    """Return the policies that suit the acceptance law, no drafts first."""
    return TREE_POLICIES if config.acceptance.kind == "published_tree" else CHAIN_POLICIES


def check_names(names: Sequence[str]) -> None:
    """Raise InputError unless there is one policy or more, each in a run folder of its own."""
    if not names or len({run_name(name) for name in names}) != len(names):
        raise InputError(
            "--policies", ",".join(names), "one policy or more, each once", "remove the repeated one"
        )
