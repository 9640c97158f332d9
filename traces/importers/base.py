"""What an importer is: the description of one file format."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Reader
from tlt.traces.lengths.schema import Kind

Lengths = Literal["exact", "re-tokenised", "generated"]
WHOLE_NAME = re.compile("")  # fits any name: a format whose files are named freely


@dataclass(frozen=True, kw_only=True)
class Importer:
    """One format.

    written_by: the setting of the framework that writes the file.
    detect: returns "" if the head of a file fits, else why it does not.
    read: yields responses and skips in the order of the file, in bounded memory.
    lost: sentences on what the file does not hold.
    file_name: fits the path of a file in a folder, with `/`; a group named `step` is the RL step.
    waits: what the format says of waits between turns; empty: it has no turns, or does not tell them apart.
    signs: names of fields, columns or metrics by which a file that does not fit is known to be near.
    """

    name: str
    framework: str
    file: str
    written_by: str
    kind: Kind
    lengths: Lengths
    lost: tuple[str, ...]
    detect: Callable[[Head], str]
    read: Reader
    file_name: re.Pattern[str] = WHOLE_NAME
    signs: tuple[str, ...] = ()
    waits: str = ""
