"""What a path means: a run folder, a comparison, a trace, or what a framework wrote.

A run folder has summary.json, a comparison has comparison.json and the run folders that it names beside it.
One of their files may be given in place of the folder. A trace has the columns of a trace and no others.
Anything else is for the importers, which look at its contents.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tlt.traces.importers.reading.head import holds_trace
from tlt.traces.live.run_folder import collect_if_new
from tlt.traces.results.study import wrote
from tlt.traces.runs.runfolder import Comparison, RunFolder, read_struct
from tltsched.errors import InputError

COMPARISON = "comparison.json"
SUMMARY = "summary.json"
OF_A_RUN = (SUMMARY, "responses.parquet")  # files that stand for their folder
RUNS = f"a folder with {SUMMARY} (a run) or {COMPARISON} (runs beside one another)"


@dataclass(frozen=True)
class RunSource:
    """One run folder."""

    path: Path
    what = "a run folder"

    @property
    def folders(self) -> tuple[Path, ...]:
        """The run folder."""
        return (self.path,)

    def comparison(self) -> Comparison:
        """Return the comparison of this run alone; raises InputError if its summary cannot be read."""
        return Comparison(name=RunFolder(self.path).summary().name, runs=(self.path.resolve().name,))


@dataclass(frozen=True)
class ComparisonSource:
    """Run folders beside one another; the first is the baseline. There is one or more, each once."""

    path: Path
    names: tuple[str, ...]
    what = "a comparison"

    @property
    def folders(self) -> tuple[Path, ...]:
        """The run folders, in their order."""
        return tuple(self.path / name for name in self.names)

    def comparison(self) -> Comparison:
        """Return what comparison.json says."""
        return read_struct(self.path / COMPARISON, Comparison)


@dataclass(frozen=True)
class TraceFile:
    """A file of lengths in this project's own columns."""

    path: Path
    what = "a trace"


@dataclass(frozen=True)
class FrameworkLog:
    """A file, or a folder of files, that is to be imported; whether it can be, the importers say."""

    path: Path
    what = "none of this project's files"


Runs = RunSource | ComparisonSource
Source = Runs | TraceFile | FrameworkLog


def open_source(path: Path) -> Source:
    """Return what a path means; the run folder of a job that the plugin watches is made first.

    Raises InputError if there is nothing there, or for a comparison that names no run, one twice, or one that
    does not lie beside it.
    """
    if not path.exists():
        raise InputError("PATH", str(path), "a file or folder that exists", "check the path")
    folder = path.parent if path.name in (COMPARISON, *OF_A_RUN) else path
    collect_if_new(folder)
    if (folder / COMPARISON).is_file() and path.name not in OF_A_RUN:
        return ComparisonSource(folder, _checked(folder, read_struct(folder / COMPARISON, Comparison).runs))
    if (folder / SUMMARY).is_file():
        return RunSource(folder)
    return TraceFile(path) if holds_trace(path) else FrameworkLog(path)


def open_runs(path: Path) -> Runs:
    """Return the run or comparison that a path means; raises InputError that says what it is instead."""
    source = open_source(path)
    if isinstance(source, RunSource | ComparisonSource):
        return source
    if command := wrote(path):
        fix = "give a folder of `tlt sim run` or compare that is finished, or read the tables there"
        raise InputError("run folder", f"{path}, where `{command}` left no runs", RUNS, fix)
    fix = "check the path: give the folder that a run was written to"
    raise InputError("run folder", f"{path} ({source.what})", RUNS, fix)


def open_run(path: Path, wanted: str) -> RunSource:
    """Return the one run that a path means; raises InputError, for the field `wanted`, if it is no run."""
    source = open_runs(path)
    if isinstance(source, RunSource):
        return source
    raise InputError(
        wanted,
        f"{path} ({source.what})",
        "the run folder of one policy",
        f"name one of {', '.join(source.names)}",
    )


def _checked(folder: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    beside = all(Path(name).name == name and name != ".." for name in names)
    if not names or len(set(names)) < len(names) or not beside:
        raise InputError(
            f"runs in {COMPARISON}", list(names), "one or more names of folders beside it, each once",
            f"check {folder}",
        )  # fmt: skip
    return names
