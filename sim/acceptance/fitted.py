"""Fitted laws of acceptance as files: what was found, with errors, and what it rests on.

Files are JSON in the form of `FittedAcceptance`, written by `tlt sim fit-acceptance`; those that come with
the package lie in sim/acceptance/fits. `acceptance.law = "NAME"` in a configuration puts one in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tlt.sim.acceptance.fit import Estimate, Fit, fit
from tlt.sim.acceptance.observations import Observed, observed
from tlt.traces.common.arrays import Ints
from tlt.traces.common.shipped import filled_in, load_named, names_in
from tlt.traces.runs.acceptance import length_with_bonus
from tlt.traces.runs.runfolder import RunFolder, Summary
from tlt.traces.sources import open_runs
from tlt.version import VERSION
from tltsched.errors import InputError

MEASURED = "measured: "
SHIPPED = Path(__file__).parent / "fits"
WORDS = {
    "request_spread": "spread between requests (sd of the log exponent)",
    "length_correlation": "its correlation with the rank of the response's length",
    "group_correlation": "correlation inside a prompt's group of what is left",
    "position_spread": "spread between bins of a response",
    "position_slope": "slope over a bin (a doubling from 128 tokens on); below 0: acceptance rises",
    "start_excess": "excess in the first 128 tokens",
}


class FittedAcceptance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fit with all that it rests on."""

    name: str
    provenance: str  # one line: what was measured, on which engine and device, when
    model: str
    policies: tuple[str, ...]
    steps: tuple[int, ...]
    by_request: bool  # drafts by request were recorded; else stretches of engine steps
    requests: int
    observations: int
    mean_length_with_bonus: float  # over all engine steps that drafted
    longest_tokens: int  # of a response
    survival_by_position: tuple[float, ...]  # of the median request
    parameters: dict[str, Estimate]  # of tlt.sim.acceptance.population
    overdispersion: float  # variance inside a bin over that of independent drafts
    levels: dict[str, float]  # log exponent of each RL step over the mean of all
    tool_version: str

    def settings(self) -> dict[str, Any]:
        """Return the fields of acceptance.* that the fit sets."""
        return {
            "kind": "per_position",
            "survival_by_position": list(self.survival_by_position),
            "survival_of": "request",
            "measured": self.provenance.partition(MEASURED)[2],
            **{name: each.value for name, each in self.parameters.items()},
        }

    def describe(self) -> str:
        """Return some lines: where it comes from, each parameter with its 95 % interval, what to mind."""
        lines = [
            f"acceptance of {self.model} ({self.provenance}; {self.name}): {self.requests:,} responses, "
            f"mean length {self.mean_length_with_bonus:.2f} with the bonus token",
            "median request, P(drafts up to position j accepted): "
            + " ".join(f"{each:.3f}" for each in self.survival_by_position),
        ]
        for name, each in self.parameters.items():
            reach = "not to be known from this run, or at its bound" if each.error is None else (
                f"[{each.value - 1.96 * each.error:+.3f}, {each.value + 1.96 * each.error:+.3f}]"
            )  # fmt: skip
            lines.append(f"{name:<19} {each.value:+.3f} {reach}  {WORDS[name]}")
        lines.append(f"inside a bin drafts vary {self.overdispersion:.1f} times as much as independent ones")
        if not self.by_request:
            lines.append("positions are interpolated: the run kept drafts by engine step, not by request")
        return "\n".join(lines)


def fit_runs(folder: Path, name: str, steps: Ints | None = None) -> FittedAcceptance:
    """Fit all policies of a run or a comparison that drafted, on some of its RL steps, [n], or all.

    Raises InputError if none drafted, or they do not say whose drafts were accepted.
    """
    source = open_runs(folder)
    found: list[tuple[Path, Summary, Observed]] = []
    for each in source.folders:
        summary = RunFolder(each).summary()
        if summary.acceptance_source != "not used" and _drafted(each):
            found.append((each, summary, observed(each, steps)))
    if not found:
        raise InputError(
            "run", str(folder), "a run whose policy drafted", "name a run of static:4 or another that drafts"
        )  # fmt: skip
    return _written(name, found, fit([each for _, _, each in found]))


def steps_between(written: str) -> Ints:
    """Return the steps of FIRST-LAST, both counted, [n]; raises InputError for other text."""
    first, dash, last = written.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)) or int(last or first) < int(first):
        raise InputError("--steps", written, "FIRST-LAST, as in 0-9", "give two numbers of RL steps")
    return np.arange(int(first), int(last or first) + 1)


def _drafted(folder: Path) -> bool:
    return bool(RunFolder(folder).steps()["accepted_tokens"].sum())


def _written(name: str, found: Sequence[tuple[Path, Summary, Observed]], fitted: Fit) -> FittedAcceptance:
    first, counts = found[0][1], sum((each.positions for _, _, each in found[1:]), found[0][2].positions)
    length = length_with_bonus(int(counts.accepted.sum()), int(counts.engine_steps[0]))
    responses = RunFolder(found[0][0]).responses()
    longest = responses.loc[responses["step"].isin(fitted.levels), "response_tokens"].max()
    return FittedAcceptance(
        name=name,
        provenance=first.cost_source if first.kind == "measured" else f"simulated: {first.acceptance_source}",
        model=first.model,
        policies=tuple(summary.policy for _, summary, _ in found),
        steps=tuple(fitted.levels),
        by_request=all(each.by_request for _, _, each in found),
        requests=fitted.requests,
        observations=fitted.observations,
        mean_length_with_bonus=length or 1.0,
        longest_tokens=int(longest),
        survival_by_position=tuple(fitted.survival.tolist()),
        parameters=fitted.parameters,
        overdispersion=fitted.overdispersion,
        levels={str(step): level for step, level in fitted.levels.items()},
        tool_version=VERSION,
    )


def shipped_laws() -> tuple[str, ...]:
    """Return the names of the fits that come with the package."""
    return names_in(SHIPPED)


def load_law(name_or_path: str) -> FittedAcceptance:
    """Read a shipped fit by name, or a file by path; raises InputError."""
    return load_named(
        SHIPPED, name_or_path, FittedAcceptance, field="acceptance.law", what="a fitted law",
        again="fit it again", fix="name one of these or give the path of what `tlt sim fit-acceptance` wrote",
    )  # fmt: skip


def with_law(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration with the law that they name, if any, filled in.

    Raises InputError if there is no such law, or a field that it sets is set to something else.
    """
    return filled_in(settings, "acceptance", "law", lambda named: load_law(named).settings())
