"""What a command says while it works, on stderr: a bar on a terminal, elsewhere a plain line now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EVERY_S = 5.0  # between plain lines; what ends sooner says nothing


class Line(Protocol):
    """What shows how far a command is."""

    def show(self, text: str | None, done: float) -> None:
        """Show what is being done (None: as before), and how much is."""


class Shown:
    """The line that is shown; each method changes it."""

    def __init__(self, line: Line) -> None:
        self._line, self._done = line, 0.0

    def say(self, text: str) -> None:
        """Say what is being done."""
        self._line.show(text, self._done)

    def step(self, text: str) -> None:
        """Say what is being done, one unit further."""
        self.reach(self._done + 1, text)

    def reach(self, done: float, text: str) -> None:
        """Say what is being done, with so much of the total behind it."""
        self._done = done
        self._line.show(text, done)

    def count(self, more: int) -> None:
        """Count so many more."""
        self._done += more
        self._line.show(None, self._done)


class _Bar:
    """A line of a terminal."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def show(self, text: str | None, done: float) -> None:
        if text is not None:
            self._bar.update(self._task, description=text)
        self._bar.update(self._task, completed=done)


class PlainLine:
    """Plain lines for files and pipes, where a bar would leave blank ones behind."""

    def __init__(
        self, text: str, total: float | None, counting: str, clock: Callable[[], float] = monotonic
    ) -> None:
        self._text, self._total, self._counting, self._clock = text, total, counting, clock
        self._began_s = self._told_s = clock()
        self._done = 0.0
        self._found: float | None = None  # done at the start: what an earlier call left

    def show(self, text: str | None, done: float) -> None:
        """Print a line, unless the last one is too fresh."""
        self._text = self._text if text is None else text
        self._done = done
        self._found = max(done - 1.0, 0.0) if self._found is None else self._found
        self.tell()

    def tell(self) -> None:
        """Print how far it is, unless the last line is too fresh."""
        now_s = self._clock()
        if now_s - self._told_s < EVERY_S:
            return
        self._told_s = now_s
        click.echo(f"{self._text}: {self._far(self._done)}{now_s - self._began_s:.0f} s", err=True)

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Print a line now and then while inside, also where nothing is shown for long."""
        over = Event()

        def tell() -> None:
            while not over.wait(EVERY_S):
                self.tell()

        thread = Thread(target=tell, name="tlt-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _far(self, done: float) -> str:
        if self._total:
            own = done - (done if self._found is None else self._found)
            passed_s = self._told_s - self._began_s
            left = f", about {passed_s * (self._total - done) / own:.0f} s left" if own else ""
            return f"{done:,.0f} of {self._total:,.0f} ({done / self._total:.0%}){left}, after "
        return f"{done:,.0f} {self._counting}, after " if self._counting else "after "


@contextmanager
def progress(text: str, total: float | None = None, counting: str = "") -> Iterator[Shown]:
    """Show a bar with the time left; without a total a spinner, with a count of `counting` if it is named.

    Not on a terminal: a plain line at most every EVERY_S seconds.
    """
    from tlt.commands.harmless_console import console

    shown_on = console(stderr=True)
    if not shown_on.is_terminal:
        line = PlainLine(text, total, counting)
        with line.kept_alive():
            yield Shown(line)
        return
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
    with Progress(*columns, console=shown_on, transient=True) as bar:
        yield Shown(_Bar(bar, bar.add_task(text, total=total)))


@contextmanager
def stage(text: str, units: int) -> Iterator[Callable[[str], None]]:
    """Show one stage of a study (tlt.sim.studies.Stage)."""
    with progress(text, units) as shown:
        yield shown.step
