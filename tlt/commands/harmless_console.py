"""The console of tables and bars: rich's, with the texts in them made harmless for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tlt.commands.terminal import harmless


class HarmlessConsole(Console):
    """Cleans the texts of what it prints; colours and moves of the cursor are rich's own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the pieces of what is printed."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else harmless(text), style, control)


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console on stdout or stderr."""
    stream = sys.stderr if stderr else sys.stdout
    return HarmlessConsole(file=getattr(stream, "stream", stream), stderr=stderr, quiet=quiet)
