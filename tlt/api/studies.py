"""The studies of `tlt sim run`, `compare` and `recommend`, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tlt.api.lengths import Lengths, Source, load
from tlt.api.results import Comparison, Recommendation, Run
from tlt.api.temporary import TemporaryFolder
from tlt.sim import studies
from tlt.sim.config import resolve
from tlt.sim.policy_set import policy_set
from tlt.sim.simulation import Simulation
from tlt.sim.workload import load_workload
from tlt.traces.common.migrate import upgraded_settings
from tlt.traces.common.settings import merge, settings_of
from tlt.traces.lengths.schema import Trace
from tltsched.errors import InputError

Settings = Mapping[str, Any]


def simulate(
    lengths: Lengths | Source | None = None,
    policy: str | None = None,
    *,
    config: str | Path | None = None,
    settings: Settings | None = None,
    out: str | Path | None = None,
    stage: studies.Stage = studies.silent,
) -> Run:
    """Simulate one policy, as `tlt sim run` does.

    lengths: what `load` returns or takes; None: what the configuration names. A trace with prompts and steps
    is sampled like any lengths unless the settings have workload.replay_steps.
    policy: POLICY or POLICY@SCHEDULE; None: the configuration's.
    config: a TOML file; settings: on top of it, sections or dotted names ({"hardware.gpus": 8}).
    out: the run folder; None: a temporary one, kept for as long as the result is held.
    stage: shows progress (tlt.sim.studies.Stage).
    Raises InputError that names the field.
    """
    held = _lengths(lengths)
    checked = _settings(held, config, settings)
    resolved = resolve(checked, policy)
    folder, kept = _folder(out)
    label = policy or studies.label_of(checked)
    studies.run(
        Simulation(resolved, load_workload(resolved.workload, resolved.run.seed)), label, folder, stage
    )
    return Run(folder, kept)


def compare(
    lengths: Lengths | Source | None = None,
    policies: Sequence[str] | None = None,
    *,
    config: str | Path | None = None,
    settings: Settings | None = None,
    out: str | Path | None = None,
    draws: int = studies.COMPARE_DRAWS,
    stage: studies.Stage = studies.silent,
) -> Comparison:
    """Simulate policies on the same lengths, as `tlt sim compare` does; the first is the baseline.

    policies: None takes those that suit the acceptance law. draws: of the step times within their error, by
    linear response; 0: intervals cover the spread over steps alone. The rest is as in `simulate`.
    """
    held = _lengths(lengths)
    folder, kept = _folder(out)
    studies.compare(policy_set(_settings(held, config, settings), policies), folder, draws, stage)
    return Comparison(folder, kept)


def recommend(
    lengths: Lengths | Source | None = None,
    policies: Sequence[str] | None = None,
    *,
    config: str | Path | None = None,
    settings: Settings | None = None,
    out: str | Path | None = None,
    draws: int = studies.RECOMMEND_DRAWS,
    stage: studies.Stage = studies.silent,
) -> Recommendation:
    """Name the policy, and the draft configuration by batch size, as `tlt sim recommend` does.

    draws: simulations under step times drawn within their error. The rest is as in `compare`.
    """
    held = _lengths(lengths)
    folder, kept = _folder(out)
    studies.recommend(policy_set(_settings(held, config, settings), policies), folder, draws, stage)
    return Recommendation(folder, kept)


def _lengths(lengths: Lengths | Source | None) -> Lengths | None:
    """Return lengths whose file, if it is a temporary one, stays for as long as they are held."""
    return lengths if lengths is None or isinstance(lengths, Lengths) else load(lengths)


def _settings(
    lengths: Lengths | None, config: str | Path | None, settings: Settings | None
) -> dict[str, Any]:
    """Return the file's settings with those given on top, and the lengths on top of both."""
    merged = settings_of(Path(config) if config is not None else None, ())
    for name, value in (settings or {}).items():
        nested: Any = dict(value) if isinstance(value, Mapping) else value
        for part in reversed(str(name).split(".")):
            nested = {part: nested}
        merged = merge(merged, upgraded_settings(nested))
    if lengths is None:
        return merged
    if not isinstance(lengths.recorded, Trace) and merged.get("workload", {}).get("replay_steps"):
        raise InputError(
            "workload.replay_steps",
            True,
            "lengths with steps and prompts",
            f"{lengths.source} has counts alone",
        )
    return merge(merged, {"workload": {"lengths": lengths.source}})


def _folder(out: str | Path | None) -> tuple[Path, TemporaryFolder | None]:
    """Return the folder of a study, and what keeps a temporary one alive."""
    if out is not None:
        return Path(out), None
    kept = TemporaryFolder()
    return kept.path / "study", kept
