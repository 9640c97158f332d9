"""How far any schedule could go: lower bounds on the RL steps of a comparison's baseline, bounds.json.

The seconds of a rollout are those of its longest response alone and of all its work spread evenly; no
schedule that ends each step's responses within the step goes below the larger of the two, and phases follow.
One that carries responses over to later steps, or rolls out while the policy is trained, is bound in the long
run by the work alone, that of the phases included.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tlt.traces.runs.runfolder import FORMAT_VERSION, read_struct

BOUNDS = "bounds.json"


class StepBound(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Seconds that the rollout of one RL step cannot go below, and those of the phases after it."""

    step: int
    phases_s: float  # of the baseline, one after the other
    compute_s: float  # of them, what follows from tokens and all GPUs: no layout saves it
    longest_s: float  # without drafts: the longest response alone
    work_s: float  # without drafts: all work over all workers
    drafted_longest_s: float | None  # under the best draft config at every moment; None: not known
    drafted_work_s: float | None

    def plain_s(self) -> float:
        """Return the bound of the step without drafts."""
        return max(self.longest_s, self.work_s) + self.phases_s

    def drafted_s(self) -> float | None:
        """Return the bound of the step under the best draft configuration at every moment."""
        if self.drafted_longest_s is None or self.drafted_work_s is None:
            return None
        return max(self.drafted_longest_s, self.drafted_work_s) + self.phases_s

    def carried_s(self) -> float:
        """Return the bound in the long run of any schedule, under the best drafts if those are known.

        The phases of a step follow one another wherever they run, and a share of the GPUs is not faster.
        """
        work_s = self.work_s if self.drafted_work_s is None else min(self.work_s, self.drafted_work_s)
        return max(work_s + self.compute_s, self.phases_s)


class Bounds(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The bounds of every step of the baseline."""

    format_version: int = FORMAT_VERSION
    workers: int
    draft_configs: tuple[str, ...]  # that the drafted bound may choose from at every moment
    rows: tuple[StepBound, ...]


def read_bounds(folder: Path) -> Bounds | None:
    """Read bounds.json; None if the folder has none. Raises InputError if it is not of that form."""
    path = folder / BOUNDS
    return read_struct(path, Bounds) if path.is_file() else None
