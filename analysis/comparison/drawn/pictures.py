"""All pictures of a report, and their files."""

from __future__ import annotations

from tlt.analysis.comparison.drawn.by_step import draw_by_step
from tlt.analysis.comparison.drawn.gain_by_batch import draw_gain
from tlt.analysis.comparison.drawn.gantt import draw_gantt, median_step
from tlt.analysis.comparison.drawn.idle_bars import draw_bars
from tlt.analysis.comparison.drawn.lengths import draw_lengths
from tlt.analysis.comparison.drawn.running_requests import draw_running
from tlt.analysis.drawing.figure import Picture
from tlt.analysis.ledger import Ledger
from tlt.analysis.load import Run
from tlt.traces.results.bounds import Bounds
from tlt.traces.runs.runfolder import Advice


def draw_all(
    runs: tuple[Run, ...],
    ledgers: tuple[Ledger, ...],
    step: int | None = None,
    advice: Advice | None = None,
    bounds: Bounds | None = None,
) -> list[Picture]:
    """Draw every picture of `runs` and their `ledgers` (same order), and of the `advice` if it has rows.

    The bars show the `bounds`.

    `step` is the RL step that the Gantt and the running requests show; None takes the baseline's step of
    median duration. A run without steps has neither picture, and one step alone has no curves. Raises
    InputError if a run has no such step.
    """
    pictures = [draw_gain(runs, advice)] if advice is not None and advice.rows else []
    pictures.append(draw_bars(runs, ledgers, bounds))
    shown = median_step(runs[0]) if step is None else step
    if shown is not None:
        pictures += [draw_gantt(runs, shown), draw_running(runs, shown)]
    pictures.append(draw_lengths(runs))
    if len(runs[0].steps) > 1:
        pictures.append(draw_by_step(runs))
    return pictures
