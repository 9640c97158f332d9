"""What a command says while it works, on stderr; nothing where stderr is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Shown:
    """The line that is shown; each method changes it."""

    def __init__(self, line: Progress, task: TaskID) -> None:
        self._line, self._task = line, task

    def say(self, text: str) -> None:
        """Say what is being done."""
        self._line.update(self._task, description=text)

    def step(self, text: str) -> None:
        """Say what is being done, one unit further."""
        self._line.update(self._task, advance=1, description=text)

    def reach(self, done: float, text: str) -> None:
        """Say what is being done, with so much of the total behind it."""
        self._line.update(self._task, completed=done, description=text)

    def count(self, more: int) -> None:
        """Count so many more."""
        self._line.advance(self._task, more)


@contextmanager
def progress(text: str, total: float | None = None, counting: str = "") -> Iterator[Shown]:
    """Show a bar with the time left; without a total a spinner, with a count of `counting` if it is named."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    words = TextColumn("{task.description}", markup=False)
    columns: tuple[ProgressColumn, ...] = (SpinnerColumn(), words, TimeElapsedColumn())
    if total is not None:
        columns = (words, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    elif counting:
        number = TextColumn("{task.completed:,.0f} " + counting, markup=False)
        columns = (SpinnerColumn(), words, number, TimeElapsedColumn())
    console = Console(stderr=True)
    # In a pipe a bar leaves blank lines behind, and scripts read errors from there.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as line:
        yield Shown(line, line.add_task(text, total=total))


@contextmanager
def stage(text: str, units: int) -> Iterator[Callable[[str], None]]:
    """Show one stage of a study (tlt.sim.studies.Stage)."""
    with progress(text, units) as shown:
        yield shown.step
