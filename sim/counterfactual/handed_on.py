"""What a log and a counterfactual hand on to other studies: seconds of phases, and the fitted factor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tlt.sim.counterfactual.log_times import logged_of, phases_by_step_s
from tlt.sim.model.phases import OTHER
from tlt.traces.importers.phases import PhaseTimes, find_phases
from tlt.traces.results.counterfactual import COUNTERFACTUAL, read_counterfactual
from tlt.traces.runs.runfolder import read_struct
from tltsched.cluster_config import ClusterConfig
from tltsched.errors import InputError


def settings_of_phases(path: Path, steps: int) -> dict[str, Any]:
    """Return the settings that make phases take as long as in a log, in the mean of its steps.

    path: what `tlt trace import --phases` wrote, or a log. What the log books to no phase is kept in each of
    the `steps`. Raises InputError if it has no times.
    """
    times = read_struct(path, PhaseTimes) if path.suffix == ".json" else find_phases(path)
    if times is None or not times.phases:
        raise InputError("--phases", str(path), "a file or log with seconds of phases", "check the file")
    logged = sorted(set(times.steps)) or [0]
    by_step_s, _ = phases_by_step_s(logged_of(times, logged), len(logged))
    mean_s = {name: sum(seconds) / len(seconds) for name, seconds in by_step_s.items()}
    other_s = mean_s.pop(OTHER, 0.0)
    phases: dict[str, Any] = {f"{name}_s": seconds for name, seconds in mean_s.items()}
    if other_s <= 0.0:
        return {"phases": phases}
    phases["by_step_s"] = {OTHER: (other_s,) * steps}
    return {"phases": phases, "cluster": {"phases": [*ClusterConfig().phases, OTHER]}}


def fitted_scale(folder: Path) -> float:
    """Return the factor on step times that a counterfactual fitted; raises InputError if there is none."""
    if not (folder / COUNTERFACTUAL).is_file():
        raise InputError("--fitted", str(folder), "a folder of `tlt sim counterfactual`", "name one")
    fit = read_counterfactual(folder).fit
    if fit is None:
        raise InputError("--fitted", str(folder), "one whose log times rollouts", "leave --fitted out")
    return fit.scale.value
