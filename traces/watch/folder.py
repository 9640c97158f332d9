"""A folder that a run writes: by the plugin while it goes on, or a run folder that grows by steps."""

from __future__ import annotations

from pathlib import Path

from tlt.traces.doctor.subject import Subject, read_subject
from tlt.traces.importers.reading.items import Options
from tlt.traces.live.engines import is_live
from tlt.traces.watch.job import LiveJob
from tltsched.errors import InputError


class RunSoFar:
    """A run folder of this project, read again when its steps have changed."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError if it holds several runs, or what is no run."""
        self._folder = folder
        self._stamp = (0, 0)
        self._subject: Subject | None = None
        self.changed = False

    def read(self) -> Subject | None:
        """Return the run as far as it is written; None before its first step."""
        try:
            found = (self._folder / "steps.parquet").stat()
        except FileNotFoundError:
            return None
        stamp = (found.st_size, found.st_mtime_ns)
        self.changed = stamp != self._stamp
        if self.changed or self._subject is None:
            subject = read_subject(self._folder, Options())
            if len(subject.members) != 1 or subject.members[0].run is None:
                raise InputError(
                    "FOLDER", str(self._folder), "one run", "give the folder of one of its policies"
                )
            self._subject, self._stamp = subject, stamp
        return self._subject


def follow_folder(folder: Path) -> LiveJob | RunSoFar:
    """Return what reads this folder; one that holds nothing yet is taken for a job that begins.

    Raises InputError for a comparison, which holds several runs.
    """
    if (folder / "comparison.json").is_file():
        raise InputError("FOLDER", str(folder), "one run", "give the folder of one of its policies")
    if not is_live(folder) and (folder / "steps.parquet").is_file():
        return RunSoFar(folder)
    return LiveJob(folder)
