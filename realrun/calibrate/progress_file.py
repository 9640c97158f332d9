"""The repeats of a calibration in progress: a line each, appended at once; an interrupt loses none."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tlt.realrun.calibrate.measurement_plan import Arrival, Cell
from tlt.realrun.calibrate.time_steps import Block, EngineKind, MixedBlock, PrefillBlock
from tlt.traces.common.migrate import upgraded, upgraded_settings_text
from tltsched.errors import InputError

CHUNK_TOKENS = 8192.0  # vLLM's own default on a large GPU, where an engine does not tell


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="header"):
    """First line: the settings that the repeats depend on."""

    settings: str


class Stuck(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="stuck"):
    """A cell that an engine cannot run whole."""

    engine: EngineKind
    cell: Cell


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="facts"):
    """What an engine says of itself."""

    engine: EngineKind = "speculating"
    version: str = ""
    graph_tokens: float | None = None  # largest CUDA graph; None: not known, or none
    chunk_tokens: float = CHUNK_TOKENS


Line = Header | Block | PrefillBlock | MixedBlock | Stuck | Facts


class PartialFile:
    """Reads what an earlier call left, and appends to it."""

    def __init__(self, path: Path, settings: str) -> None:
        """Raises InputError if the file is of other settings."""
        self.path = path
        self.blocks: list[Block] = []
        self.prefills: list[PrefillBlock] = []
        self.mixed: list[MixedBlock] = []
        self.stuck_cells: list[tuple[EngineKind, Cell]] = []
        self.engine = Facts()
        self.plain_graph_tokens: float | None = None
        self.notes: list[str] = []  # of this call alone
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_size:
            self._read(settings)
        else:
            self._write(Header(settings))

    def _read(self, settings: str) -> None:
        whole, _, _ = self.path.read_bytes().rpartition(b"\n")  # a line that was cut off is measured again
        lines = [self._line(line) for line in whole.split(b"\n")] if whole else []
        if not lines or lines[0] != Header(settings):
            raise InputError(
                "partial calibration", str(self.path), "one of the same settings",
                "delete it to measure anew, or restore the settings",
            )  # fmt: skip
        for line in lines[1:]:
            self._keep(line)
        self.path.write_bytes(whole + b"\n")

    def _line(self, line: bytes) -> Line:
        try:
            entry: Line = msgspec.convert(upgraded(msgspec.json.decode(line), Line), Line)
        except msgspec.MsgspecError as error:
            raise InputError(
                "partial calibration", f"{self.path}: {error}", "lines of a calibration", "delete it"
            ) from None
        return Header(upgraded_settings_text(entry.settings)) if isinstance(entry, Header) else entry

    def _keep(self, line: Line) -> None:
        match line:
            case Block():
                self.blocks.append(line)
            case PrefillBlock():
                self.prefills.append(line)
            case MixedBlock():
                self.mixed.append(line)
            case Stuck():
                self.stuck_cells.append((line.engine, line.cell))
            case Facts():
                if line.engine == "plain":
                    self.plain_graph_tokens = line.graph_tokens
                graphs = [facts.graph_tokens for facts in (self.engine, line) if facts.graph_tokens]
                self.engine = msgspec.structs.replace(line, graph_tokens=max(graphs, default=None))
            case Header():
                pass

    def _write(self, line: Line) -> None:
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def add(self, block: Block | PrefillBlock | MixedBlock) -> None:
        """Append one repeat."""
        self._write(block)
        self._keep(block)

    def facts(self, facts: Facts) -> None:
        """Note what the engine that starts says of itself; of two engines the larger graph counts."""
        self._write(facts)
        self._keep(facts)

    def stuck(self, kind: EngineKind, cell: Cell) -> None:
        """Note that an engine cannot run a cell, so that nobody tries again."""
        line = Stuck(kind, cell)
        self._write(line)
        self._keep(line)

    def note(self, text: str) -> None:
        """Keep a sentence for the notes of the calibration."""
        self.notes.append(text)

    def has(self, kind: EngineKind, cell: Cell, k: int, repeat: int) -> bool:
        """Return whether a repeat of a point is on file."""
        wanted = (kind, cell, k, repeat)
        return any((block.engine, block.cell, block.k, block.repeat) == wanted for block in self.blocks)

    def has_prefill(self, cell: Cell, repeat: int) -> bool:
        """Return whether a repeat of a prefill is on file."""
        return any((block.cell, block.repeat) == (cell, repeat) for block in self.prefills)

    def has_mixed(self, kind: EngineKind, arrival: Arrival, k: int, repeat: int) -> bool:
        """Return whether a repeat of an arrival is on file."""
        wanted = (kind, arrival, k, repeat)
        return any((block.engine, block.arrival, block.k, block.repeat) == wanted for block in self.mixed)

    def is_stuck(self, kind: EngineKind, cell: Cell) -> bool:
        """Return whether the engine could not run the cell whole."""
        return (kind, cell) in self.stuck_cells

    def remove(self) -> None:
        """Delete the file once the points are written."""
        self.path.unlink()
