"""Runs a sweep into a folder, and goes on with one that was stopped.

sweep.jsonl gets a line a configuration as soon as it is done, under a key of everything that its figures
follow from. A call into the same folder simulates what has no line yet; a line that was torn counts for
nothing. sweep.parquet and sweep.csv are the table, in the order of the grid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec
import pandas as pd

from tlt.sim.comparison import code_digest
from tlt.sim.config import Config
from tlt.sim.parallel.executors import Executor
from tlt.sim.sweep.figures import Row, figures
from tlt.sim.sweep.grid import Axis, Point
from tlt.traces.runs.runfolder import write_json
from tlt.version import VERSION

LINES, TABLE, TEXT, ABOUT = "sweep.jsonl", "sweep.parquet", "sweep.csv", "sweep.json"
Progress = Callable[[int, int], None]


class Line(msgspec.Struct, frozen=True):
    """A configuration that is done."""

    key: str
    row: Row


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What was swept."""

    axes: tuple[Axis, ...]
    points: int
    failed: int
    seed: int
    tool_version: str


def sweep(
    points: Sequence[Point], axes: Sequence[Axis], out: Path, executor: Executor, progress: Progress
) -> pd.DataFrame:
    """Simulate every point that `out` does not hold yet, and write the table; returns it.

    `progress(done, of)` is called at the start and after each configuration.
    """
    out.mkdir(parents=True, exist_ok=True)
    keys = _keys(points)
    configs = {key: point.config for key, point in zip(keys, points, strict=True) if point.config is not None}
    done = {key: row for key, row in _read(out / LINES).items() if key in configs}
    left = [key for key in configs if key not in done]
    progress(len(done), len(configs))
    with (out / LINES).open("ab") as file:
        for number, row in executor.run(figures, [configs[key] for key in left]):
            done[left[number]] = row
            _append(file, Line(left[number], row))
            progress(len(done), len(configs))
    rows = [done.get(key) or Row(error=point.error) for key, point in zip(keys, points, strict=True)]
    return _write(points, axes, rows, out)


def _keys(points: Sequence[Point]) -> list[str]:
    """Return what the figures of each point follow from, hashed; points alike have one key."""
    code, files = code_digest(), dict[str, str]()
    keys = []
    for point in points:
        if point.config is None:
            keys.append("")
            continue
        digest = hashlib.sha256(code.encode() + msgspec.json.encode(point.config))
        for name in _files(point.config):
            if name not in files:
                files[name] = hashlib.sha256(Path(name).read_bytes()).hexdigest()
            digest.update(files[name].encode())
        keys.append(digest.hexdigest())
    return keys


def _files(config: Config) -> list[str]:
    """Return the files that a configuration names: lengths, step times, shapes of models and GPUs."""
    named = set(_texts(msgspec.to_builtins(config)))
    inside = {str(Path(name) / "config.json") for name in named}
    return sorted(name for name in named | inside if name and Path(name).is_file())


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _read(path: Path) -> dict[str, Row]:
    """Return the rows of an earlier call; lines that are none are left out."""
    rows = {}
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            found = msgspec.json.decode(line, type=Line)
        except msgspec.MsgspecError:
            continue
        rows[found.key] = found.row
    return rows


def _append(file: IO[bytes], line: Line) -> None:
    if file.tell() and not _ends_a_line(Path(file.name)):
        file.write(b"\n")
    file.write(msgspec.json.encode(line) + b"\n")
    file.flush()


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def _write(points: Sequence[Point], axes: Sequence[Axis], rows: Sequence[Row], out: Path) -> pd.DataFrame:
    values = {each.field: [point.values[index] for point in points] for index, each in enumerate(axes)}
    figures_of = {name: [getattr(row, name) for row in rows] for name in Row.__struct_fields__}
    table = pd.DataFrame(values | figures_of)
    table.to_parquet(out / TABLE, index=False)
    table.to_csv(out / TEXT, index=False)
    seeds = {point.config.run.seed for point in points if point.config is not None}
    about = About(
        axes=tuple(axes), points=len(points), failed=sum(bool(row.error) for row in rows),
        seed=min(seeds), tool_version=VERSION,
    )  # fmt: skip
    write_json(out / ABOUT, about)
    return table
