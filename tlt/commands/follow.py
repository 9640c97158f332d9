"""`--follow`: a command that reads a run does so again whenever more of it is there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

POLL_S = 10.0
Stamp = tuple[int, int]  # bytes, and the time of the last change

follow_option = click.option(
    "--follow", is_flag=True, help="Read again whenever more is there, until Ctrl-C."
)


def followed(paths: Sequence[Path], read: Callable[[], None], follow: bool) -> None:
    """Call `read` once, or again and again: after each change that has come to rest for one poll.

    What `read` raises is raised; while following an InputError is told and reading goes on, since a run that
    has just begun may hold nothing yet.
    """
    from tltsched.errors import InputError

    if not follow:
        read()
        return
    for _ in _changes(paths):
        try:
            read()
        except InputError as error:
            click.echo(f"error: {error}", err=True)
        click.echo(f"following {', '.join(path.name for path in paths)}; Ctrl-C ends", err=True)


def _changes(paths: Sequence[Path]) -> Iterator[None]:
    """Yield once, then after each change; a change is waited out, so that no half step is read."""
    seen = _stamps(paths)
    yield
    while True:
        time.sleep(POLL_S)
        found = _stamps(paths)
        if found == seen:
            continue
        while True:
            time.sleep(POLL_S)
            again = _stamps(paths)
            if again == found:
                break
            found = again
        seen = found
        yield


def _stamps(paths: Sequence[Path]) -> dict[str, Stamp]:
    stamps: dict[str, Stamp] = {}
    for path in paths:
        files = (
            [path]
            if not path.is_dir()
            else [Path(top) / name for top, _, names in os.walk(path) for name in names]
        )
        for file in files:
            try:
                found = file.stat()
            except OSError:
                continue
            stamps[str(file)] = (found.st_size, found.st_mtime_ns)
    return stamps
