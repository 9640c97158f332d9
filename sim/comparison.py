"""Runs several policies on the same lengths, each into its own run folder beside comparison.json."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

import tltsched
from tlt import sim
from tlt.sim.config import Config, resolve
from tlt.sim.simulation import Simulation
from tlt.sim.workload import load_workload
from tlt.traces.lengths.files import write_trace
from tlt.traces.lengths.schema import Trace
from tlt.traces.results.counterfactual import COUNTERFACTUAL
from tlt.traces.runs.runfolder import Comparison, run_name, write_json
from tltsched.errors import InputError

FINGERPRINT = "fingerprint.txt"
Progress = Callable[[str, int], None]


def resolve_policies(settings: dict[str, Any], policies: Sequence[str]) -> dict[str, Config]:
    """Return the configuration of each policy; raises InputError unless there is one or more, each once."""
    names = [run_name(policy) for policy in policies]
    if not policies or len(set(names)) != len(names):
        raise InputError(
            "--policies", ",".join(policies), "one policy or more, each once", "remove the repeated one"
        )
    return {policy: resolve(settings, policy) for policy in policies}


def _fingerprint(simulation: Simulation) -> str:
    """Hash everything that the results of a run follow from: settings, step times, lengths, and the code."""
    digest = hashlib.sha256(msgspec.json.encode(simulation.config))
    for package in (sim, tltsched):
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(path.read_bytes())
    digest.update(msgspec.json.encode((simulation.coefficients, simulation.setup)))
    for column in ("step", "prompt_id", "prompt_tokens", "response_tokens"):
        digest.update(simulation.trace.rows[column].to_numpy().tobytes())
    return digest.hexdigest()


def run_policy(config: Config, trace: Trace, label: str, folder: Path, progress: Progress) -> bool:
    """Simulate one policy into `folder`, unless it holds the same run already; returns whether it ran."""
    simulation = Simulation(config, trace)
    fingerprint = _fingerprint(simulation)
    stamp = folder / FINGERPRINT
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == fingerprint:
        return False
    stamp.unlink(missing_ok=True)
    simulation.run_into(folder, label, lambda step: progress(label, step))
    stamp.write_text(fingerprint, encoding="utf-8")  # last: a run that was stopped is done again
    return True


def compare(settings: dict[str, Any], policies: Sequence[str], out: Path, progress: Progress) -> Trace:
    """Simulate every policy on the same lengths; finished policies of an earlier, stopped call are kept.

    `progress(policy, step)` is called after each step. Returns the lengths. Raises InputError.
    """
    configs = resolve_policies(settings, policies)
    first = next(iter(configs.values()))
    trace = load_workload(first.workload, first.run.seed)
    for config in configs.values():
        Simulation(config, trace)  # every policy is checked before the first one runs
    out.mkdir(parents=True, exist_ok=True)
    # of an earlier call
    for stale in ("advice.json", "cost_draws.parquet", "cost_error.json", "bounds.json", COUNTERFACTUAL):
        (out / stale).unlink(missing_ok=True)
    write_trace(trace, out / "lengths.parquet", force=True)
    for policy, config in configs.items():
        run_policy(config, trace, policy, out / run_name(policy), progress)
    names = tuple(run_name(policy) for policy in configs)
    write_json(out / "comparison.json", Comparison(name=first.run.name, runs=names))
    return trace
