"""Facts and records of one engine, written by a thread so that no disk can hold the engine up."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from multiprocessing import util
from pathlib import Path
from typing import BinaryIO

import msgspec

from .facts import ENGINE, ENGINES, FACTS, RECORDS, AnyFact, EngineFacts

MOST_WAITING = 200_000  # lines that the disk may be behind; some 50 MB
EVERY_S = 0.2  # lines are gathered for so long
END = ""
ENGINES_PER_JOB = 10_000


class Writer:
    """Writes into a folder of its own. What goes wrong stands in `fault`; nothing is raised."""

    def __init__(self, out: Path) -> None:
        """Take the next number among the engines of a job; raises OSError if `out` cannot be written."""
        self.number, self.folder = _take_number(out / ENGINES)
        self.fault = ""
        self._lines: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        self._encode = msgspec.json.Encoder().encode
        self._files: dict[str, BinaryIO] = {
            name: (self.folder / name).open("wb") for name in (FACTS, RECORDS)
        }
        self._thread = threading.Thread(target=self._run, name="tlt-facts", daemon=True)
        self._thread.start()
        # A process that multiprocessing started ends without atexit, any other without util.
        self._final = util.Finalize(None, self.close, exitpriority=10)
        atexit.register(self.close)

    def begin(self, facts: EngineFacts) -> None:
        """Say, or say anew, who writes here; raises OSError."""
        new = self.folder / f"{ENGINE}.new"
        new.write_bytes(msgspec.json.format(self._encode(facts), indent=2) + b"\n")
        os.replace(new, self.folder / ENGINE)

    def fact(self, fact: AnyFact) -> None:
        """Write a line of facts.jsonl."""
        self._put(FACTS, self._encode(fact) + b"\n")

    def record(self, line: bytes) -> None:
        """Write a line of records.jsonl."""
        self._put(RECORDS, line)

    def works(self) -> bool:
        """Return whether lines still arrive; `fault` says why not."""
        if not self.fault and not self._thread.is_alive():
            self.fault = "the thread that writes has ended"
        return not self.fault

    def close(self) -> None:
        """Write what is waiting, for two seconds at most."""
        if self._thread.is_alive():
            self._lines.put((END, b""))
            self._thread.join(2.0)

    def _put(self, name: str, line: bytes) -> None:
        self._lines.put((name, line))
        if self._lines.qsize() > MOST_WAITING and not self.fault:
            self.fault = f"the disk of {self.folder} is {MOST_WAITING} lines behind"

    def _run(self) -> None:
        try:
            while self._write_some():
                pass
        except Exception as error:
            self.fault = self.fault or f"{type(error).__name__}: {error}"
        finally:
            for file in self._files.values():
                try:
                    file.close()
                except OSError:
                    self.fault = self.fault or f"{self.folder} cannot be written"

    def _write_some(self) -> bool:
        """Write what has gathered; returns whether to go on."""
        waiting = threading.Event()
        blocks: dict[str, list[bytes]] = {name: [] for name in self._files}
        name, line = self._lines.get()
        if name != END:
            waiting.wait(EVERY_S)
        while name != END:
            blocks[name].append(line)
            try:
                name, line = self._lines.get_nowait()
            except queue.Empty:
                break
        for each, lines in blocks.items():
            if lines:
                file = self._files[each]
                file.write(b"".join(lines))
                file.flush()
                if os.fstat(file.fileno()).st_nlink == 0:
                    raise FileNotFoundError(f"{self.folder} is gone")
        return name != END


def _take_number(engines: Path) -> tuple[int, Path]:
    """Make the folder of the next engine; two that start at once get two."""
    engines.mkdir(parents=True, exist_ok=True)
    number = sum(1 for _ in engines.iterdir())
    while number < ENGINES_PER_JOB:
        folder = engines / f"{number:04}"
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return number, folder
    raise FileExistsError(f"{engines} has folders for {ENGINES_PER_JOB} engines: take a new one")
