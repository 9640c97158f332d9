"""Studies of policies on the same lengths, each into a folder: what the commands and the Python API run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tlt.sim import comparison
from tlt.sim.advise.advice import advise, write_advice
from tlt.sim.advise.bounds import write_bounds
from tlt.sim.advise.sensitivity import write_cost_draws
from tlt.sim.advise.what_if import what_if
from tlt.sim.config import Config
from tlt.sim.parallel.executors import SERIAL, Executor
from tlt.sim.policy_set import PolicySet
from tlt.sim.simulation import Simulation
from tlt.traces.common.lock import holding
from tlt.traces.common.manifest import sealed
from tlt.traces.common.seeds import ADVICE, generator
from tlt.traces.results.what_if import WHAT_IF
from tlt.traces.runs.runfolder import write_json

COMPARE_DRAWS, RECOMMEND_DRAWS = 99, 39

# Shows one stage of a study, of so many units: what it yields is called with a text after each of them.
Stage = Callable[[str, int], AbstractContextManager[Callable[[str], None]]]


@contextmanager
def silent(text: str, units: int) -> Iterator[Callable[[str], None]]:
    """Show nothing."""
    del text, units
    yield lambda _: None


def label_of(settings: dict[str, Any]) -> str:
    """Return the name under which the policy that the settings give is reported."""
    named = settings.get("policy", Config().policy)
    return named if isinstance(named, str) else str(named["kind"])


def run(simulation: Simulation, label: str, out: Path, stage: Stage) -> None:
    """Simulate one policy into a run folder, unless it holds the same run already."""
    with holding(out), stage(label, simulation.config.workload.steps) as advance:
        comparison.run_policy(simulation, label, out, lambda policy, _: advance(policy))


def compare(policies: PolicySet, out: Path, draws: int, stage: Stage) -> None:
    """Simulate every policy into a comparison folder, with bounds, and `draws` of the step times within their
    error by linear response. What an earlier, stopped call finished is kept.
    """
    with holding(out), sealed(out):
        _simulate(policies, out, stage)
        write_bounds(policies.baseline, out)
        with stage("probing step times", len(policies.names)) as advance:
            write_cost_draws(policies, out, draws, advance)
        write_what_if(policies, out, stage)


def recommend(policies: PolicySet, out: Path, draws: int, stage: Stage, executor: Executor = SERIAL) -> None:
    """Compare the policies, each also under `draws` of the step times, and write what to draft at which
    batch.
    """
    with holding(out), sealed(out):
        _simulate(policies, out, stage)
        with stage("probing step times", len(policies.names)) as advance:
            write_cost_draws(policies, out, draws, advance, executor)
        write_what_if(policies, out, stage)
        write_advice(out, advise(policies.baseline, generator(policies.baseline.config.run.seed, ADVICE)))
        write_bounds(policies.baseline, out)


def write_what_if(policies: PolicySet, out: Path, stage: Stage) -> None:
    """Write what_if.json of a comparison."""
    with stage("other acceptance and GPUs", len(policies.names)) as advance:
        write_json(out / WHAT_IF, what_if(policies, advance))


def _simulate(policies: PolicySet, out: Path, stage: Stage) -> None:
    steps = policies.baseline.config.workload.steps
    with stage("simulating", steps * len(policies.names)) as advance:
        comparison.compare(policies, out, lambda policy, _: advance(policy))
