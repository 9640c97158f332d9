"""What a study returns: a run, a comparison, a recommendation; each is a folder of files and a view of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from tlt.analysis.comparison.compare import ComparisonTable, Row
from tlt.analysis.comparison.compare import compare as compare_runs
from tlt.analysis.comparison.ranking import judge
from tlt.analysis.load import RunSet, load_runs
from tlt.api.temporary import TemporaryFolder
from tlt.traces.common.intervals import Estimate
from tlt.traces.common.regret import Regrets
from tlt.traces.results.answer import Answer
from tlt.traces.runs.runfolder import Advice, RunFolder, Summary
from tltsched.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Run:
    """One simulated policy. `folder` holds its files (tlt.traces.runs.runfolder)."""

    folder: Path
    _kept: TemporaryFolder | None = field(default=None, repr=False)

    @cached_property
    def summary(self) -> Summary:
        """Who ran what, on how many GPUs, for how long, and the warnings that go with every figure."""
        return RunFolder(self.folder).summary()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences to be read with the figures."""
        return self.summary.warnings

    def to_pandas(self) -> pd.DataFrame:
        """Return a row an RL step: STEP_COLUMNS, and step_s and rollout_s in seconds."""
        steps = RunFolder(self.folder).steps()
        return steps.assign(
            step_s=steps["end_s"] - steps["start_s"], rollout_s=steps["rollout_end_s"] - steps["start_s"]
        )

    def responses(self) -> pd.DataFrame:
        """Return a row a response (RESPONSE_COLUMNS)."""
        return RunFolder(self.folder).responses()

    def intervals(self) -> pd.DataFrame:
        """Return a row an interval of a worker's time and its cause (INTERVAL_COLUMNS)."""
        return RunFolder(self.folder).intervals()

    def report(self) -> Path:
        """Write report.html, pictures and trace.json into the folder; return the page's path."""
        return _report(self.folder)

    def _repr_html_(self) -> str:
        """Show the table and the verdict in a notebook."""
        return Comparison(self.folder)._repr_html_()


@dataclass(frozen=True)
class Comparison:
    """Policies on the same lengths, each against the first. `folder` holds a run folder a policy."""

    folder: Path
    _kept: TemporaryFolder | None = field(default=None, repr=False)

    @cached_property
    def runs(self) -> RunSet:
        """The runs as they were written."""
        return load_runs(self.folder)

    @cached_property
    def table(self) -> ComparisonTable:
        """A typed row a policy, with the interval of its speedup and its GPU time by cause."""
        return compare_runs(self.runs)

    @cached_property
    def verdict(self) -> Answer:
        """What to run and by how much, every policy with its rank and figures, and the same in words."""
        return judge(self.table, self.runs)

    @property
    def regrets(self) -> Regrets | None:
        """What the recommended policy may lose, what others would lose instead, and which are ties; None:
        there is no other policy.
        """
        return self.verdict.regrets

    @property
    def answer(self) -> str:
        """The answer in one sentence, as the report begins."""
        return self.verdict.sentence

    @property
    def warnings(self) -> Mapping[str, tuple[str, ...]]:
        """Sentences to be read with the figures, by policy; those of the comparison under ``."""
        return {"": self.table.warnings} | {row.policy: row.warnings for row in self.table.rows}

    def run(self, policy: str) -> Run:
        """Return the run of one policy, as it was named; raises InputError for another name."""
        for run in self.runs.runs:
            if run.policy == policy:
                return Run(run.path, self._kept)
        names = ", ".join(run.policy for run in self.runs.runs)
        raise InputError("policy", policy, names, "name one of the compared policies")

    def to_pandas(self) -> pd.DataFrame:
        """Return a row a policy: seconds, speedup with its 95 % interval, idle share, tokens/s, acceptance
        length, what taking it instead of the recommended one loses (share of time), and whether it is a tie.

        Ends of intervals (_low, _high) are NaN where there are too few steps for an interval.
        """
        rows = [_figures(row) | _instead(self.verdict.regrets, row.policy) for row in self.table.rows]
        return pd.DataFrame(rows).set_index("policy")

    def report(self) -> Path:
        """Write report.html, pictures and a trace.json a run into the folder; return the page's path."""
        return _report(self.folder)

    def _repr_html_(self) -> str:
        """Show the verdict, the table and what has to be read with them in a notebook."""
        from tlt.analysis.comparison.shared_warnings import shared_warnings
        from tlt.analysis.comparison.tables import policy_table
        from tlt.analysis.drawing.html import page

        return page(
            "comparison/notebook.html",
            answer=self.answer,
            table=policy_table(self.table),
            warnings=shared_warnings(self.table),
        )


@dataclass(frozen=True)
class Recommendation(Comparison):
    """A comparison that also says what to draft at which batch size."""

    @cached_property
    def advice(self) -> Advice:
        """What to draft at which batch, the gain with its interval, what may be lost, and what ties."""
        advice = self.runs.advice()
        assert advice is not None, "recommend wrote it"
        return advice

    def advice_to_pandas(self) -> pd.DataFrame:
        """Return a row a batch size: draft configuration, gain over no speculation, its interval, the
        runner-up.
        """
        names = self.advice.rows[0].__struct_fields__ if self.advice.rows else ()
        return pd.DataFrame([{name: getattr(row, name) for name in names} for row in self.advice.rows])


def _figures(row: Row) -> dict[str, object]:
    low, high = row.speedup.interval or (float("nan"), float("nan"))
    return {
        "policy": row.policy,
        "step_s": row.mean_step_s,
        "total_s": row.total_s,
        "rollout_s": row.rollout_s,
        "speedup": row.speedup.value,
        "speedup_low": low,
        "speedup_high": high,
        "idle_share": row.idle_share,
        "tokens_per_s": row.tokens_per_s,
        "acceptance_length_with_bonus": row.acceptance_length_with_bonus,
        "schedule": row.schedule.name,
        "seconds_per_million_tokens": row.schedule.seconds_per_million_tokens,
    }


def _instead(found: Regrets | None, policy: str) -> dict[str, object]:
    """Return what taking a policy instead of the chosen one loses; of the chosen one itself 0."""
    if found is None or policy == found.chosen:
        lost, tie = Estimate(0.0, (0.0, 0.0)), False
    else:
        lost, tie = found.instead[policy], policy in found.group
    low, high = lost.interval or (float("nan"), float("nan"))
    return {"lost": lost.value, "lost_low": low, "lost_high": high, "tie": tie}


def _report(folder: Path) -> Path:
    from tlt.analysis.report import write_report  # draws: matplotlib is loaded only for this

    return write_report(folder)
