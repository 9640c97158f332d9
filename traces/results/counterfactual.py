"""An observed run, how well the model reproduces it, and what its figures rest on: counterfactual.json.

The file lies in a comparison folder: the run folders beside it are the same lengths under other policies and
schedules, the first of them the observed one again. Steps are in the order of the run.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tlt.traces.results.predicted_training import Figure, PredictionError
from tlt.traces.runs.runfolder import FORMAT_VERSION, read_struct

COUNTERFACTUAL = "counterfactual.json"
OBSERVED_TRACE = "observed.parquet"


class LengthFacts(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Response lengths in tokens. `max_response_tokens` None: not known."""

    responses: int
    prompts: int
    prompt_tokens_mean: float | None  # None: not known
    mean: float
    median: float
    p90: float
    p99: float
    longest: int
    truncated: int
    max_response_tokens: int | None


class LoggedTime(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a log says of a step, its rollout or a phase. by_step_s: empty where only the mean is used."""

    name: str  # step, gen, or a phase
    mean_s: float
    by_step_s: tuple[float, ...] = ()


class ObservedStep(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One step: what was observed, and what the model says of it. Times are None where the log has none."""

    step: int
    responses: int
    response_tokens: int
    longest_tokens: int
    rollout_s: float | None
    step_s: float | None
    modelled_rollout_s: float
    modelled_step_s: float


class LogFit(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One factor on all step times of the engine: logged over modelled rollout seconds.

    For the errors it is fitted to the first half of the steps and judged by the second; all policies are
    simulated with the factor of all steps.
    """

    scale: Figure  # of all steps
    fitted_scale: Figure | None  # of the fitted steps; None: there is no step to judge
    fitted_steps: tuple[int, ...]  # empty: no single steps of the log are known
    judged_steps: tuple[int, ...]
    errors: tuple[PredictionError, ...]  # over the judged steps; empty: nothing is left to check
    generations: float = 1.0  # of a step, one after the other, each as modelled times the factor
    fixed_s: tuple[float, float] = (0.0, 0.0)  # of a logged rollout, that no draft shortens: least and most


class Counterfactual(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """All that is known of the observed run and of the model. Sentences in `flags` belong to any figure."""

    format_version: int = FORMAT_VERSION
    source: str
    read_as: str
    policy: str  # what the run was observed under
    lengths: LengthFacts
    lengths_source: str
    times_source: str  # empty: no times
    times: tuple[LoggedTime, ...]
    steps: tuple[ObservedStep, ...]
    fit: LogFit | None  # None: the log has no rollout seconds, so nothing can be checked
    cost_source: str
    acceptance_source: str
    price_usd_per_gpu_hour: float | None
    assumptions: tuple[str, ...]
    flags: tuple[str, ...]
    needed: tuple[str, ...] = ()  # what a ranking would need; not empty: nothing is ranked

    def logged(self, name: str) -> LoggedTime | None:
        """Return what the log says of the step, its rollout ("gen") or a phase."""
        return next((time for time in self.times if time.name == name), None)

    def amdahl(self) -> tuple[float, float] | None:
        """Return the share of a step in which responses are generated, and the speedup if that took no time.

        Of the logged rollout what no draft shortens is left out. None where the log does not have both.
        """
        step, rollout = self.logged("step"), self.logged("gen")
        if step is None or rollout is None or not 0 < rollout.mean_s < step.mean_s:
            return None
        fixed_s = 0.0 if self.fit is None else self.fit.fixed_s[0]
        share = (rollout.mean_s - fixed_s) / step.mean_s
        return share, 1.0 / (1.0 - share)


def read_counterfactual(folder: Path) -> Counterfactual:
    """Read counterfactual.json; raises InputError if it is missing or of another form."""
    return read_struct(folder / COUNTERFACTUAL, Counterfactual)
