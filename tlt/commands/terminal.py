"""What reaches a terminal: names and texts of files can set no title, move no cursor and hide nothing.

Whatever a command prints goes through `harmless_streams`. Tables and bars of rich carry sequences of their
own and are printed past it, by a console that cleans the texts in them (tlt.commands.harmless_console).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

# Control characters but tabs and ends of lines; what turns the direction of writing; ends of lines that a
# terminal may take for such.
_ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
INSTEAD = "?"


def harmless(text: str) -> str:
    """Return a text with every character replaced that could act on a terminal."""
    return _ACTS.sub(INSTEAD, text)


class HarmlessStream:
    """A text stream that writes harmless text; in all else the stream that it stands for."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write what is left of a text."""
        return self.stream.write(harmless(text))

    def writelines(self, lines: list[str]) -> None:
        """Write what is left of some texts."""
        self.stream.writelines(map(harmless, lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def harmless_streams() -> Iterator[None]:
    """Let nothing that acts on a terminal through stdout and stderr while inside; either may be closed."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (each and HarmlessStream(each) for each in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
