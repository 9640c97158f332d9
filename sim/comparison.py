"""Runs several policies on the same lengths, each into its own run folder beside comparison.json."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec

import tltsched
from tlt import sim
from tlt.sim.policy_set import PolicySet
from tlt.sim.simulation import Simulation
from tlt.sim.write_run import run_into
from tlt.traces.common.manifest import MANIFEST, is_whole, sealed
from tlt.traces.common.writing import write_file
from tlt.traces.lengths.files import write_trace
from tlt.traces.results.counterfactual import COUNTERFACTUAL
from tlt.traces.results.what_if import WHAT_IF
from tlt.traces.runs.runfolder import Comparison, run_name, write_json

FINGERPRINT = "fingerprint.txt"
# of an earlier call into the same folder
STALE = ("advice.json", "cost_draws.parquet", "cost_error.json", "bounds.json", WHAT_IF, COUNTERFACTUAL)
Progress = Callable[[str, int], None]


@cache
def code_digest() -> str:
    """Hash the code that results follow from."""
    digest = hashlib.sha256()
    for package in (sim, tltsched):
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _fingerprint(simulation: Simulation) -> str:
    """Hash everything that the results of a run follow from: settings, step times, lengths, and the code."""
    digest = hashlib.sha256(msgspec.json.encode(simulation.config) + code_digest().encode())
    digest.update(msgspec.json.encode((simulation.coefficients, simulation.setup)))
    for column in ("step", "prompt_id", "prompt_tokens", "response_tokens"):
        digest.update(simulation.trace.rows[column].to_numpy().tobytes())
    if simulation.sessions is not None:
        for column in ("turn_offsets", "input_tokens", "kept_tokens", "response_tokens", "wait_s"):
            digest.update(getattr(simulation.sessions, column).tobytes())
    return digest.hexdigest()


def run_policy(simulation: Simulation, label: str, folder: Path, progress: Progress) -> bool:
    """Simulate one policy into `folder`, unless it holds the same run already; returns whether it ran."""
    fingerprint = _fingerprint(simulation)
    stamp = folder / FINGERPRINT
    if stamp.is_file() and stamp.read_bytes() == fingerprint.encode() and is_whole(folder):
        return False
    stamp.unlink(missing_ok=True)
    with sealed(folder):
        run_into(simulation, folder, label, lambda step: progress(label, step))
    write_file(stamp, fingerprint.encode())  # last: a run that was stopped or damaged is done again
    return True


def compare(policies: PolicySet, out: Path, progress: Progress) -> None:
    """Simulate every policy on the same lengths; finished policies of an earlier, stopped call are kept.

    `progress(policy, step)` is called after each step.
    """
    out.mkdir(parents=True, exist_ok=True)
    for stale in (MANIFEST, *STALE):
        (out / stale).unlink(missing_ok=True)
    write_trace(policies.trace, out / "lengths.parquet", force=True)
    for name, simulation in policies.simulations.items():
        run_policy(simulation, name, out / run_name(name), progress)
    runs = tuple(run_name(name) for name in policies.names)
    write_json(out / "comparison.json", Comparison(name=policies.baseline.config.run.name, runs=runs))
